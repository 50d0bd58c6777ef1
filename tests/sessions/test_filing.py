from pathlib import Path

import pytest

from sessions.conversations import Conversations
from sessions.errors import BadRequest
from sessions.store import Store


def _conversation(store: Store) -> str:
    session = store.create_session()
    question = store.add_question(session.id, "질문 하나", title="질문 하나")
    store.add_answer(question, "answer", "complete", run=None)
    return session.id


def test_the_ending_names_the_format(store: Store, tmp_path: Path) -> None:
    """A folder gets a file below the title; what is there stays."""
    them = Conversations(store)
    session_id = _conversation(store)
    for name, words in (("a.md", "# 질문 하나"), ("a.txt", "--- "), ("a.json", '"chatapp-conversations"')):
        path = them.export(session_id, tmp_path / name)
        assert words in path.read_text(encoding="utf-8")
    assert them.export(session_id, tmp_path / "out", is_folder=True) == tmp_path / "out" / "질문 하나.md"
    with pytest.raises(BadRequest, match="is there already"):
        them.export(session_id, tmp_path / "a.md")


def test_a_file_is_taken_in_once(store: Store, tmp_path: Path) -> None:
    """The counts say what became of it."""
    them = Conversations(store)
    session_id = _conversation(store)
    path = them.export(session_id, tmp_path / "a.json")
    assert dict(them.import_from(path).counts) == {"there": 1}
    store.purge(session_id)
    found = them.import_from(path)
    assert (dict(found.counts), found.reason) == ({"added": 1}, None)
    with pytest.raises(BadRequest):
        them.import_from(tmp_path / "missing")
