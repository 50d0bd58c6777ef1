from sessions.asked import asked
from sessions.attachments import spans_in
from sessions.conversation import Draft
from sessions.store import Store


def _ask(store: Store, session_id: str, *texts: str) -> None:
    for text in texts:
        question = store.add_question(session_id, text, title="", attachments=spans_in(text, [("x", 0, 1)]))
        store.add_answer(question, "ok", "complete", run=None)


def test_own_questions_come_before_all_others(store: Store) -> None:
    """Page by page, newest first; nothing is left out or told twice, and the trash is left out."""
    own, other, gone = (store.create_session().id for _ in range(3))
    _ask(store, other, "o1", "o2")
    _ask(store, own, "m1", "m2", "m3")
    _ask(store, other, "o3")
    _ask(store, gone, "g")
    store.set_trashed(gone, trashed=True)
    found: list[Draft] = []
    for limit in (1, 2, 3, 4, 10):
        found, mark = asked(store.db, own, limit=limit)
        while mark is not None:
            more, mark = asked(store.db, own, mark, limit=limit)
            found += more
        assert [draft.text for draft in found] == ["m3", "m2", "m1", "o3", "o2", "o1"]
    assert found[0].attachments == spans_in("m3", [("x", 0, 1)])


def test_a_new_conversation_has_all_questions_before_it(store: Store) -> None:
    """There is no own part."""
    session_id = store.create_session().id
    _ask(store, session_id, "one", "two")
    assert [draft.text for draft in asked(store.db, None)[0]] == ["two", "one"]
