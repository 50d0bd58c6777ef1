"""What vLLM's environment is called, when it is made, what is said when it cannot be."""

import io
import sys
from pathlib import Path

import pytest

from tools import bootstrap, vllm_server
from tools.vllm_server import VERSION, folder_of, obtain
from tools.wheels import BuildError


def test_it_is_kept_beside_the_wheels(tmp_path: Path) -> None:
    """One folder a version, and one for each environment of the user's own."""
    store = tmp_path / "wheels"
    assert folder_of(store, None).parent == tmp_path / "vllm"
    assert folder_of(store, None).name.startswith(VERSION)
    assert len({folder_of(store, own) for own in (None, Path("/a"), Path("/b"))}) == 3


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    """A second call answers at once and says nothing."""
    (tmp_path / "complete").touch()
    out = io.StringIO()
    assert obtain(tmp_path, None, tmp_path / "none.gguf", {}, out) == tmp_path
    assert out.getvalue() == ""


def test_an_address_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that runs needs nothing to be set up."""
    assert vllm_server.main(["http://127.0.0.1:8000"]) == 0
    assert capsys.readouterr().out == "http://127.0.0.1:8000\n"


def test_a_folder_that_is_no_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence says what to name."""
    assert vllm_server.main([str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert (told.out, "no virtual environment" in told.err) == ("", True)


def test_an_environment_beside_is_that_of_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another folder's `venv` is another environment."""
    asked: list[Path | None] = []

    def obtain(folder: Path, own: Path | None, *_: object) -> Path:
        asked.append(own)
        return folder

    monkeypatch.setattr(vllm_server, "obtain", obtain)
    monkeypatch.setattr(vllm_server, "starter_model", lambda: tmp_path / "starter.gguf")
    for name in ("a", "b"):
        python = bootstrap.venv_python(tmp_path / name / "venv")
        python.parent.mkdir(parents=True)
        python.touch()
        monkeypatch.chdir(tmp_path / name)
        assert vllm_server.main(["venv"]) == 0
    assert asked == [tmp_path / "a" / "venv", tmp_path / "b" / "venv"]


@pytest.mark.skipif(sys.platform == "win32", reason="makes an executable by its mode")
def test_an_environment_without_vllm(tmp_path: Path) -> None:
    """The sentence names the log, which has what the converter said, and nothing counts as complete."""
    own = tmp_path / "own"
    (own / "bin").mkdir(parents=True)
    (own / "bin" / "python").write_text("#!/bin/sh\necho no transformers here\nexit 1\n")
    (own / "bin" / "python").chmod(0o755)
    folder = tmp_path / "vllm" / "own"
    log = folder.with_name("own.log")
    for _ in range(2):  # what the first run left does not stand in the second one's way
        with pytest.raises(BuildError, match="starter model") as failure:
            obtain(folder, own, tmp_path / "none.gguf", {}, io.StringIO())
        assert str(failure.value).endswith(str(log))
    assert "no transformers here" in log.read_text()
    assert not (folder / "complete").exists()
    assert (own / "bin" / "python").exists()
