from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.engine import Sampling
from models.fake import FakeEngine
from sessions import portable
from sessions.attachments import Part, block, joined, moved, n_lines, name_of, pieces_of, spans_in, text_hash
from sessions.conversation import Draft
from sessions.manager import SessionManager
from sessions.store import Store
from sessions.transcript import load
from tests.sessions.helpers import Clock

SAMPLING = Sampling()
FILE = Part("보고서.txt", block("보고서.txt", "하나\n둘\n"))


def test_a_file_stands_apart_under_its_name() -> None:
    """Its text is fenced, with an empty line to what is around it, and its span covers name and fence."""
    draft = joined(["look at ", FILE, " and tell"])
    assert draft.text == "look at \n\n보고서.txt:\n```\n하나\n둘\n```\n\n and tell"
    [span] = draft.attachments
    assert draft.text[span.start : span.end] == FILE.text
    assert (span.name, span.sha256) == ("보고서.txt", text_hash(FILE.text))


def test_a_paste_stays_in_its_line() -> None:
    """What was pasted is kept to the letter, between what was typed around it."""
    draft = joined(["a ", Part("pasted", "x" * 9), " b"])
    assert draft.text == "a xxxxxxxxx b"
    assert [(one.start, one.end) for one in draft.attachments] == [(2, 11)]


def test_no_text_closes_its_fence() -> None:
    """The fence is longer than any run of backticks in the text."""
    assert block("a.md", "```py\n````\n```").split("\n")[1] == "`````"


@given(st.lists(st.one_of(st.text(max_size=20), st.builds(Part, st.just("n"), st.text(min_size=1, max_size=20)))))
def test_a_draft_is_the_same_taken_apart_and_joined_again(pieces: list[str | Part]) -> None:
    """So that a draft comes back from the disk, or into the box, with its attachments."""
    draft = joined([*pieces, FILE])
    assert joined(pieces_of(draft)) == draft
    for one in draft.attachments:
        assert text_hash(draft.text[one.start : one.end]) == one.sha256


def test_spans_do_not_overlap() -> None:
    """Of two that overlap the first stays, one beyond the text goes."""
    found = spans_in("0123456789", [("b", 3, 6), ("a", 0, 4), ("c", 8, 12), ("d", 4, 5)])
    assert [one.name for one in found] == ["a", "d"]
    assert [one.start for one in moved(found, 2)] == [2, 6]


@pytest.mark.parametrize(("text", "n"), [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2)])
def test_lines_are_counted_as_people_do(text: str, n: int) -> None:
    """A last line end begins no further line."""
    assert n_lines(Part("pasted", text)) == n
    assert n_lines(Part("a.txt", block("a.txt", text))) == n


def test_names_are_one_printable_line() -> None:
    """What a file is called cannot command a terminal, nor fill it."""
    assert name_of("a\n\x1b[2J b") == "a [2J b"
    assert len(name_of("x" * 500)) == 80


async def _asked(store: Store) -> tuple[SessionManager, str, Draft]:
    manager = SessionManager(store, FakeEngine(lambda _: "ok"))
    session = manager.new()
    draft = joined(["read ", FILE])
    async for _ in manager.send(session.id, draft.text, SAMPLING, attachments=draft.attachments):
        pass
    return manager, session.id, draft


async def test_a_message_keeps_its_attachments(store: Store) -> None:
    """They come back with it, a fork has them too, and deleting the conversation leaves nothing of them."""
    manager, session_id, draft = await _asked(store)
    assert manager.messages(session_id)[0].attachments == draft.attachments
    fork = manager.fork(session_id)
    assert manager.messages(fork.id)[0].attachments == draft.attachments
    manager.delete_forever(session_id)
    manager.delete_forever(fork.id)
    assert store.db.rows("SELECT * FROM attachments") == []


async def test_spans_of_a_text_that_is_changed_are_dropped(store: Store) -> None:
    """A text that is not as it was when its parts were found has none."""
    manager = SessionManager(store, FakeEngine(lambda _: "ok"))
    session = manager.new()
    spans = spans_in("a\r\nb", [("x", 0, 4)])
    async for _ in manager.send(session.id, "a\r\nb", SAMPLING, attachments=spans):
        pass
    assert [(m.text, m.attachments) for m in manager.messages(session.id)[:1]] == [("a\nb", ())]


async def test_an_export_has_them(store: Store) -> None:
    """Own JSON holds names and places; the hash is made anew, because a file may say anything."""
    _, session_id, draft = await _asked(store)
    value = portable.to_object(load(store, session_id), tokens=False)
    assert value["messages"][0]["attachments"] == [[one.name, one.start, one.end] for one in draft.attachments]
    back, _ = portable.from_object(value, tokens=False, now=0.0)
    assert back.lines[0].attachments == draft.attachments
    value["messages"][0]["attachments"] = [["x", 0, 10**6], ["y", True, 3], "z", ["w", 5, 2]]
    assert portable.from_object(value, tokens=False, now=0.0)[0].lines[0].attachments == ()


def test_drafts_come_back_with_what_is_attached(tmp_path: Path) -> None:
    """Also that of a conversation which is not stored yet, after the program ended."""
    draft = joined(["read ", FILE])
    store = Store(tmp_path, clock=Clock())
    store.keep_draft(None, Draft("old"))
    store.keep_draft(None, draft)
    store.keep_draft("gone", draft)
    store.close()
    store = Store(tmp_path, clock=Clock())
    assert store.draft(None) == draft
    assert store.draft("gone") == Draft("")
    assert store.drafts() == {}
    store.keep_draft(None, Draft(""))
    assert store.draft(None) == Draft("")
    store.close()
