import pytest

from sessions.errors import SessionNotFound
from sessions.purge import delete_forever, forget_nothing
from sessions.store import Store

Calls = list[tuple[list[str], list[str]]]


def test_kv_is_forgotten_without_a_tip_too(store: Store) -> None:
    """A turn that was cut down by a crash may have stored KV and recorded none."""
    calls: Calls = []
    kept, gone = store.create_session(), store.create_session()
    store.record_kv(kept.id, fingerprint="f", tip="t")
    delete_forever(store, gone.id, lambda dead, alive: calls.append((dead, alive)))
    assert calls == [([], ["t"])]


def test_dead_tips_are_dropped_once_their_kv_is_gone(store: Store) -> None:
    """When forgetting fails they stay, so that the next deletion makes up for it."""

    def fail(dead: list[str], alive: list[str]) -> None:
        raise OSError(dead, alive)

    one, other = store.create_session(), store.create_session()
    store.record_kv(one.id, fingerprint="f", tip="t")
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
