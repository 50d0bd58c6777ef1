"""Who is welcomed: somebody without conversations, once in the window and once in plain mode."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chatapp.config import Settings
from chatapp.firststart import is_first_start, note_welcome
from chatapp.plain.welcome import welcome
from sessions.conversations import Conversations
from sessions.store import Store


@pytest.fixture
def conversations(tmp_path: Path) -> Iterator[Conversations]:
    """None yet."""
    store = Store(tmp_path / "data")
    yield Conversations(store)
    store.close()


def test_a_welcome_is_remembered_by_mode(tmp_path: Path, conversations: Conversations) -> None:
    """The window's and plain mode's are two; without a folder there is none."""
    folder = tmp_path / "window"
    assert is_first_start(folder, "window", conversations)
    note_welcome(folder, "window")
    assert not is_first_start(folder, "window", conversations)
    assert is_first_start(folder, "plain", conversations)
    assert not is_first_start(None, "plain", conversations)


@pytest.mark.parametrize("where", ["list", "archive", "trash"])
def test_who_has_conversations_is_not_welcomed(tmp_path: Path, conversations: Conversations, where: str) -> None:
    """Wherever they lie."""
    session = conversations.new()
    if where == "archive":
        conversations.archive(session.id)
    elif where == "trash":
        conversations.trash(session.id)
    assert not is_first_start(tmp_path / "window", "window", conversations)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, conversations: Conversations) -> None:
    """Then the next start welcomes again."""
    (tmp_path / "file").write_bytes(b"")
    note_welcome(tmp_path / "file", "window")
    assert is_first_start(tmp_path / "file", "window", conversations)


def test_plain_mode_says_three_lines_once(tmp_path: Path, conversations: Conversations) -> None:
    """Over a real engine; the scripted one is for tests and demonstrations."""
    settings = Settings(tmp_path, tmp_path)
    assert welcome(replace(settings, engine="fake:20"), conversations) == ()
    lines = welcome(settings, conversations)
    assert len(lines) == 3
    assert all("\n" not in line and line.endswith(".") for line in lines)
    assert welcome(settings, conversations) == ()
