import json
import os
from pathlib import Path

import pytest

from models.fake import echo
from tests.chatapp.test_cli import Shell

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def chatapp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The command line over empty folders."""
    return Shell(tmp_path, monkeypatch)


def asked(chatapp: Shell, text: str) -> str:
    """Ask a question in a new conversation; return its id."""
    session_id: str = chatapp.json("run", text)["session"]
    return session_id


def test_export_writes_markdown_to_stdout(chatapp: Shell) -> None:
    """Without options a conversation is printed, for a pipe or for reading."""
    session_id = asked(chatapp, "hello")
    printed = chatapp("sessions", "export", session_id)
    assert printed.startswith("# hello\n")
    assert f"## Assistant\n\n{echo('hello')}" in printed
    assert chatapp("sessions", "export", session_id, "--format", "txt").startswith("hello\n")


def test_json_goes_there_and_back(chatapp: Shell, tmp_path: Path) -> None:
    """An export that is imported into an empty folder is exported the same."""
    for text in ("one", "two", "three"):
        asked(chatapp, text)
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    chatapp("sessions", "export", "--all", "--tokens", "-o", str(first))
    other = ("--data-dir", str(tmp_path / "other"))
    assert "3 added, 0 already there" in chatapp("sessions", "import", str(first), "--tokens", *other)
    chatapp("sessions", "export", "--all", "--tokens", "-o", str(second), *other)
    assert first.read_bytes() == second.read_bytes()
    assert "0 added, 3 already there" in chatapp("sessions", "import", str(first), *other)


def test_a_folder_gets_a_file_each_and_nothing_is_overwritten(chatapp: Shell, tmp_path: Path) -> None:
    """Names come from titles and are free; a file that is there is left alone."""
    for text in ("../x", "../x"):
        asked(chatapp, text)
    for _ in range(2):
        chatapp("sessions", "export", "--all", "-o", str(tmp_path / "out") + os.sep)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["x 2.md", "x 3.md", "x 4.md", "x.md"]
    said = chatapp("sessions", "export", "--all", "-o", str(tmp_path / "out" / "x.md"), code=1)
    assert "choose another name" in said
    assert "already" in said


def test_the_trash_is_exported_by_name_only(chatapp: Shell) -> None:
    """--all leaves it out."""
    kept, trashed = asked(chatapp, "kept"), asked(chatapp, "trashed")
    chatapp("sessions", "delete", trashed)
    value = json.loads(chatapp("sessions", "export", "--all", "--format", "json"))
    assert [item["id"] for item in value["conversations"]] == [kept]
    assert "# trashed" in chatapp("sessions", "export", trashed)


@pytest.mark.parametrize("arguments", [(), ("--all", "0"), ("--all", "--tokens")])
def test_exports_that_make_no_sense_are_refused(chatapp: Shell, arguments: tuple[str, ...]) -> None:
    """No id, an id and --all, token ids in Markdown."""
    chatapp("sessions", "export", *arguments, code=2)


def test_import_counts_and_reports(chatapp: Shell) -> None:
    """What failed and what was changed is said on stderr, the counts on stdout; some failed is exit code 3."""
    said = chatapp("sessions", "import", str(DATA / "chatgpt.json"), str(DATA / "claude.json"), code=3)
    assert "Conversation 2 (No tree) was not imported" in said
    assert "messages to and from tools were left out" in said
    value = json.loads(chatapp("sessions", "export", "--all", "--format", "json"))
    assert [item["title"] for item in value["conversations"]] == ["Sourdough in winter", "강릉 여행"]


def test_import_json_is_the_documented_object(chatapp: Shell) -> None:
    """Each file has counts, changes, and each conversation its place, title, status, id and reason."""
    (report,) = chatapp.json("sessions", "import", str(DATA / "openwebui.json"), "--dry-run")
    assert (report["added"], report["there"], report["empty"], report["failed"], report["error"]) == (1, 0, 0, 0, None)
    (item,) = report["conversations"]
    assert (item["index"], item["title"], item["status"], item["reason"]) == (1, "Bicycle chain", "added", None)
    assert set(report["changes"].values()) == {0}
    assert chatapp.json("sessions", "list") == []


def test_a_file_that_cannot_be_read_is_exit_code_1(chatapp: Shell, tmp_path: Path) -> None:
    """With a file that could be read beside it, it is 3."""
    assert "missing.json cannot be read" in chatapp("sessions", "import", str(tmp_path / "missing.json"), code=1)
    chatapp("sessions", "import", str(tmp_path / "missing.json"), str(DATA / "talk.md"), code=3)


def test_an_imported_conversation_can_be_gone_on_with(chatapp: Shell) -> None:
    """It is a conversation like any other."""
    (report,) = chatapp.json("sessions", "import", str(DATA / "talk.md"))
    session_id = report["conversations"][0]["id"]
    assert chatapp("run", "--session", session_id, "and now?").startswith("You said")
    value = json.loads(chatapp("sessions", "export", session_id, "--format", "json"))
    assert len(value["conversations"][0]["messages"]) == 6
