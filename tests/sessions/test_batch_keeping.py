from models.engine import Entry
from models.fake import FakeEngine
from sessions.batch import Answered, Shared, answer_row, prepare
from sessions.batch_keeping import Keeper
from sessions.batch_rows import Reading, Row
from sessions.store import Store
from tests.sessions.helpers import GREEDY, Clock, drain, make_manager

ROW = b'{"id": 1, "prompt": "What is up?"}'


def row(content: bytes = ROW) -> Row:
    """Return a row."""
    return Reading().row(1, 0, content)


async def answered(engine: FakeEngine, shared: Shared, content: bytes = ROW) -> Answered:
    """Return the answer to a row."""
    return await answer_row(engine, row(content), shared, monotonic=Clock())


async def test_a_row_is_a_conversation_that_goes_on(store: Store) -> None:
    """With its system prompt, tokens and stats: the next question evaluates nothing but itself and the glue."""
    engine = FakeEngine(str.upper)
    shared, _ = await prepare(engine, Shared((Entry("system", "Be brief."),)))
    keeper = Keeper(store, shared.entries, clock=Clock())
    one = await answered(engine, shared)
    session_id = keeper.new_id(one)
    assert session_id
    keeper.keep(session_id, one, engine.info)
    session = store.session(session_id)
    assert (session.title, session.task, session.system, session.tags) == (
        "What is up?",
        "What is up?",
        "Be brief.",
        ("batch",),
    )
    messages = store.messages(session_id)
    assert [(message.role, message.text) for message in messages] == [
        ("system", "Be brief."),
        ("user", "What is up?"),
        ("assistant", "WHAT IS UP?"),
    ]
    assert messages[-1].stats == one.stats
    await drain(make_manager(store, engine).send(session_id, "More", GREEDY))
    stats = store.messages(session_id)[-1].stats
    assert stats
    assert stats.resident_tokens == sum(len(message.run.ids) for message in messages if message.run)
    assert stats.prefilled_tokens == len("More") + 3


async def test_a_row_behind_a_conversation_is_a_fork_of_it(store: Store) -> None:
    """It has its messages, and names it."""
    engine = FakeEngine(str.upper)
    manager = make_manager(store, engine)
    origin = manager.new()
    await drain(manager.send(origin.id, "First", GREEDY))
    shared = Shared(tuple(Entry(message.role, message.text, message.run) for message in store.messages(origin.id)))
    one = await answered(engine, shared)
    keeper = Keeper(store, shared.entries, origin=store.session(origin.id))
    session_id = keeper.new_id(one)
    assert session_id
    keeper.keep(session_id, one, engine.info)
    assert store.session(session_id).forked_from == origin.id
    assert [message.text for message in store.messages(session_id)] == ["First", "FIRST", "What is up?", "WHAT IS UP?"]


async def test_a_row_that_failed_is_no_conversation(store: Store) -> None:
    """There is nothing to go on with."""
    one = await answered(FakeEngine(fail_at=1), Shared())
    assert Keeper(store, ()).new_id(one) is None


def test_a_conversation_that_a_kill_came_before_is_added_later(store: Store) -> None:
    """From its record in either form, once; one that was deleted before the last answer stays deleted."""
    keeper = Keeper(store, (), clock=Clock(step=1))
    keeper.missed(row(), {"session": "0" * 16, "text": "Fine."})
    keeper.missed(row(), {"session": "0" * 16, "text": "Fine."})
    body = {"session": "1" * 16, "choices": [{"message": {"content": "Well."}}]}
    keeper.missed(row(), {"response": {"body": body}})
    keeper.missed(row(), {"response": None, "error": {}})
    keeper.missed(row(), {"session": None, "text": "x"})
    assert len(store.summaries()) == 2
    assert [message.text for message in store.messages("0" * 16)] == ["What is up?", "Fine."]
    assert store.messages("1" * 16)[-1].text == "Well."
