from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sessions.conversations import Conversations
from sessions.errors import SessionNotFound
from sessions.journal import Journal
from sessions.purge import TRASH_S, delete_forever, empty_trash, forget_nothing
from sessions.store import Store
from tests.sessions.helpers import Clock

Calls = list[tuple[list[str], list[str]]]


def test_kv_is_forgotten_without_a_tip_too(store: Store) -> None:
    """A turn that was cut down by a crash may have stored KV and recorded none."""
    calls: Calls = []
    kept, gone = store.create_session(), store.create_session()
    store.record_kv(kept.id, 1, fingerprint="f", tip="t")
    delete_forever(store, gone.id, lambda dead, alive: calls.append((dead, alive)))
    assert calls == [([], ["t"])]


def test_dead_tips_are_dropped_once_their_kv_is_gone(store: Store) -> None:
    """When forgetting fails they stay, so that the next deletion makes up for it."""

    def fail(dead: list[str], alive: list[str]) -> None:
        raise OSError(dead, alive)

    one, other = store.create_session(), store.create_session()
    store.record_kv(one.id, 1, fingerprint="f", tip="t")
    with pytest.raises(OSError, match="t"):
        delete_forever(store, one.id, fail)
    assert store.tips() == (["t"], [])
    delete_forever(store, other.id, forget_nothing)
    assert store.tips() == ([], [])


def test_an_unknown_conversation_forgets_nothing(store: Store) -> None:
    """Nothing is deleted for a mistyped id."""
    calls: Calls = []
    with pytest.raises(SessionNotFound):
        delete_forever(store, "nobody", lambda dead, alive: calls.append((dead, alive)))
    assert calls == []


@pytest.fixture
def aged(tmp_path: Path) -> Iterator[tuple[Store, Clock, list[str]]]:
    """Four conversations: one that is not in the trash, three that went there a day after each other."""
    clock = Clock()
    with closing(Store(tmp_path, clock=clock)) as store:
        keys = [store.create_session().id for _ in range(4)]
        for key in keys:
            store.add_question(key, f"durian {key}", title="t")
        for key in keys[1:]:
            store.set_trashed(key, trashed=True)
            clock.now += 86_400.0
        yield store, clock, keys


def test_the_trash_keeps_for_thirty_days(aged: tuple[Store, Clock, list[str]]) -> None:
    """What is older is deleted for good, with its KV; the rest stays, and so does what never went there."""
    store, clock, (kept, *trashed) = aged
    calls: Calls = []
    start = clock.now - 3 * 86_400.0
    conversations = Conversations(store, forget_kv=lambda dead, alive: calls.append((dead, alive)))
    assert conversations.expire(start + TRASH_S) == []
    assert calls == []
    store.record_kv(trashed[0], 1, fingerprint="f", tip="t")
    assert conversations.expire(start + TRASH_S + 86_400.0) == trashed[:1]
    assert calls == [(["t"], [])]
    assert store.trashed() == trashed[1:]
    assert store.has_session(kept)


def test_emptying_the_trash_deletes_all_of_it(
    aged: tuple[Store, Clock, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also more than go at once; no word and no lock of them is left."""
    monkeypatch.setattr("sessions.purge._AT_ONCE", 2)
    store, _, (kept, *trashed) = aged
    store.search("durian")
    assert empty_trash(store, forget_nothing) == trashed
    assert empty_trash(store, forget_nothing) == []
    content = b"".join(path.read_bytes() for path in store.path.parent.rglob("*") if path.is_file())
    assert [key for key in trashed if key.encode() in content] == []
    assert list(store.journal_dir.iterdir()) == []
    assert [hit.session.id for hit in store.search("durian").hits] == [kept]


def test_what_is_being_answered_stays_in_the_trash(aged: tuple[Store, Clock, list[str]]) -> None:
    """The next time deletes it."""
    store, _, (_, first, *others) = aged
    with Journal(store.journal_dir, first, monotonic=Clock()):
        assert empty_trash(store, forget_nothing) == others
    assert empty_trash(store, forget_nothing) == [first]
