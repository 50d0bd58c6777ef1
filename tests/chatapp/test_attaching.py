import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from chatapp.attaching import with_files
from chatapp.cli import cli
from sessions.errors import BadRequest


def test_files_stand_before_the_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each under its name, in the order given; damaged characters are counted on stderr."""
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("하나\n", encoding="utf-8")
    Path("b.txt").write_bytes("둘".encode()[:-1] + "셋".encode())
    draft = with_files([Path("a.txt"), Path("b.txt")], "요약", max_tokens=None)
    assert draft.text == "a.txt:\n```\n하나\n```\n\nb.txt:\n```\n�셋\n```\n\n요약"
    assert [one.name for one in draft.attachments] == ["a.txt", "b.txt"]


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """The sentence has the numbers."""
    (tmp_path / "a.txt").write_text("x" * 100_000, encoding="utf-8")
    with pytest.raises(BadRequest, match="the context holds 512"):
        with_files([tmp_path / "a.txt"], "", max_tokens=512)


def test_run_attaches_files(tmp_path: Path) -> None:
    """The title is made of the question; files alone are a question too; what cannot be read ends with exit code 1."""
    (tmp_path / "a.txt").write_text("text of a file", encoding="utf-8")
    folders = ["--engine", "fake", "--data-dir", str(tmp_path / "data"), "--cache-dir", str(tmp_path / "cache")]
    runner = CliRunner()
    for question in (["요약해줘"], []):
        done = runner.invoke(cli, ["run", *folders, "--attach", str(tmp_path / "a.txt"), *question])
        assert done.exit_code == 0, done.output
    shown = runner.invoke(cli, ["sessions", "list", "--json", "--data-dir", str(tmp_path / "data")])
    assert "요약해줘" in [session["title"] for session in json.loads(shown.stdout)]
    done = runner.invoke(cli, ["run", *folders, "--attach", str(tmp_path / "missing"), "x"])
    assert done.exit_code == 1
    assert isinstance(done.exception, BadRequest)
