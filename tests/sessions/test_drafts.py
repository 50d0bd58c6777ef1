from sessions.conversation import Attachment, Draft
from sessions.drafts import NOBODY, claim, drafts_of, keep, let_go, newest_drafts
from sessions.store import Store

ATTACHED = Draft("see this", (Attachment("a.txt", 4, 8, "00"),))


def texts(store: Store, session_id: str | None) -> dict[str, str]:
    """The drafts of a conversation by window."""
    return {kept.window: kept.draft.text for kept in drafts_of(store.db, session_id)}


def test_windows_do_not_write_over_each_other(store: Store) -> None:
    """Each has one draft in a conversation, and one in the new one."""
    key = store.create_session().id
    for session_id in (key, None):
        keep(store.db, session_id, "one", Draft("first"))
        keep(store.db, session_id, "two", Draft("second"))
        keep(store.db, session_id, "one", Draft("first, longer"))
        assert texts(store, session_id) == {"one": "first, longer", "two": "second"}
        keep(store.db, session_id, "one", Draft(""))
        assert texts(store, session_id) == {"two": "second"}


def test_the_newest_is_first(store: Store) -> None:
    """It is also what is told of a conversation as a whole."""
    key = store.create_session().id
    for window in ("one", "two", "one"):
        keep(store.db, key, window, Draft(f"by {window}"))
    assert [kept.window for kept in drafts_of(store.db, key)] == ["one", "two"]
    assert newest_drafts(store.db) == {key: "by one"}
    assert store.draft(key) == Draft("by one")


def test_one_window_gets_what_was_left_behind(store: Store) -> None:
    """Its attachments come along; whoever is later gets nothing."""
    keep(store.db, None, "gone", ATTACHED)
    (kept,) = drafts_of(store.db, None)
    assert claim(store.db, kept, "one")
    assert not claim(store.db, kept, "two")
    (claimed,) = drafts_of(store.db, None)
    assert (claimed.window, claimed.draft) == ("one", ATTACHED)


def test_what_is_let_go_is_anybodys(store: Store) -> None:
    """Several may be left behind in a conversation; none of them is lost."""
    key = store.create_session().id
    for window in ("one", "two"):
        keep(store.db, key, window, Draft(window))
        let_go(store.db, key, window)
    let_go(store.db, key, "three")
    assert [(kept.window, kept.draft.text) for kept in drafts_of(store.db, key)] == [(NOBODY, "two"), (NOBODY, "one")]


def test_nothing_is_kept_of_a_conversation_that_is_gone(store: Store) -> None:
    """Neither what was written before it was deleted, nor what comes after that."""
    key = store.create_session().id
    keep(store.db, key, "one", Draft("before"))
    store.purge(key)
    keep(store.db, key, "one", Draft("after"))
    assert drafts_of(store.db, key) == []
