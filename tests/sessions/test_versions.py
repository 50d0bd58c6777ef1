"""What becomes of answers that are given again, go on, or break off: nothing said is lost or misplaced."""

from contextlib import aclosing, closing
from dataclasses import replace
from pathlib import Path

import pytest

from models.engine import Failed, Finished, Piece
from models.fake import BEGIN, FakeDisk, FakeEngine
from sessions.conversation import Message, Session, model_ref
from sessions.errors import BadRequest, SessionNotFound
from sessions.journal import recover
from sessions.manager import SessionManager
from sessions.store import Store
from sessions.titles import read_title
from tests.models.helpers import one
from tests.sessions.helpers import GREEDY, Clock, crash_copy, drain, make_manager

THINKS = "<think>" + "secret " * 20 + "</think>fine"


def told(manager: SessionManager, session: Session) -> list[tuple[str, str]]:
    """Text and status of every message that is shown."""
    return [(message.text, message.status) for message in manager.messages(session.id)]


def prompt_ids(engine: FakeEngine) -> list[int]:
    """The stored tokens that the last prompt consisted of."""
    return [token for entry in engine.prompts[-1].entries if entry.run for token in entry.run.ids]


async def test_a_regenerated_answer_survives_a_crash(store: Store, tmp_path: Path) -> None:
    """What was said of the second answer is recovered, as another version, and the first is not touched."""
    manager = make_manager(store, FakeEngine(lambda _: "answer text"), Clock(step=1.0))
    session = manager.new()
    await drain(manager.send(session.id, "q", GREEDY))
    seen, folder = 0, tmp_path
    async with aclosing(manager.regenerate(session.id, GREEDY)) as events:
        async for event in events:
            seen += isinstance(event, Piece)
            if seen == 6:
                folder = crash_copy(store, tmp_path)
                break
    with closing(Store(folder)) as crashed:
        (recovered,) = recover(crashed)
        assert "answer text".startswith(recovered.text)
        assert recovered.text
        assert len(crashed.versions(session.id)) == 2
        assert recover(crashed) == []


async def test_a_question_that_was_to_be_answered_again_keeps_its_answer(store: Store) -> None:
    """Killed before the second answer began, the first one is in the prompt and on the screen."""
    engine = FakeEngine(lambda _: "the good answer")
    manager = make_manager(store, engine)
    session = manager.new()
    await drain(manager.send(session.id, "q", GREEDY))
    store.set_head(session.id, manager.messages(session.id)[0].id)  # all that regenerating has stored by then
    await drain(manager.send(session.id, "next", GREEDY))
    assert told(manager, session)[1] == ("the good answer", "complete")
    assert [entry.text for entry in engine.prompts[-1].entries] == ["q", "the good answer", "next"]


@pytest.mark.parametrize("how", ["fails", "is too long", "is stopped"])
async def test_an_answer_that_never_came_takes_the_place_of_none(store: Store, how: str) -> None:
    """Regenerating without a result leaves the turn as it was, in later prompts too."""
    engine = FakeEngine(lambda _: "ok")
    manager = make_manager(store, engine)
    session = manager.new()
    await drain(manager.send(session.id, "my name is Bob", GREEDY))
    if how == "fails":
        engine.fail_at = 0
        await drain(manager.regenerate(session.id, GREEDY))
    elif how == "is too long":
        engine._n_ctx = 5
        assert isinstance((await drain(manager.regenerate(session.id, GREEDY)))[-1], Failed)
    else:
        events = manager.regenerate(session.id, GREEDY)
        await anext(events)
        await events.aclose()
    engine.fail_at, engine._n_ctx = None, 32_768
    assert told(manager, session) == [("my name is Bob", "complete"), ("ok", "complete")]
    await drain(manager.send(session.id, "who am I", GREEDY))
    assert len(engine.prompts[-1].entries) == 3


async def test_an_answer_that_fills_the_context_stays(store: Store) -> None:
    """Asked to go on without room, it says so, and its question is not given up."""
    engine = FakeEngine(lambda _: "x" * 100, n_ctx=40)
    manager = make_manager(store, engine)
    session = manager.new()
    await drain(manager.send(session.id, "q", GREEDY))
    before = told(manager, session)
    await drain(manager.continue_answer(session.id, GREEDY))
    assert [text for text, _ in told(manager, session)] == [text for text, _ in before]
    assert told(manager, session)[0] == ("q", "complete")


@pytest.mark.parametrize("how", ["abandoned", "failed", "crashed"])
async def test_reasoning_of_an_answer_that_broke_off_is_stripped_too(store: Store, tmp_path: Path, how: str) -> None:
    """Whatever ended it, its reasoning is in the text and in no later prompt."""
    engine = FakeEngine(lambda _: THINKS)
    manager = make_manager(store, engine, Clock(step=1.0))
    session = manager.new()
    manager.set_reasoning(session.id, "strip")
    used = store
    if how == "failed":
        engine.fail_at = 60
        await drain(manager.send(session.id, "q", GREEDY))
        engine.fail_at = None
    else:
        seen, folder = 0, tmp_path
        async with aclosing(manager.send(session.id, "q", GREEDY)) as events:
            async for event in events:
                seen += isinstance(event, Piece)
                if seen == 60:
                    folder = crash_copy(store, tmp_path)
                    break
        if how == "crashed":
            used = Store(folder)
            recover(used)
    try:
        manager = make_manager(used, engine)
        assert "secret" in manager.messages(session.id)[1].text
        await drain(manager.send(session.id, "q2", GREEDY))
        assert not any("secret" in entry.text for entry in engine.prompts[-1].entries)
        assert b"secret" not in bytes(token for token in prompt_ids(engine) if token < BEGIN)
    finally:
        if used is not store:
            used.close()


async def test_an_answer_others_go_on_from_is_not_changed(store: Store) -> None:
    """Continued on one branch, it becomes another version; the other branch replies to what it was."""
    manager = make_manager(store, FakeEngine(lambda _: "abcdefghij"))
    session = manager.new()
    await drain(manager.send(session.id, "q1", replace(GREEDY, max_tokens=3)))
    await drain(manager.send(session.id, "q2", GREEDY))
    follow_up = manager.messages(session.id)[2]
    manager.undo(session.id)
    await drain(manager.continue_answer(session.id, GREEDY))
    assert told(manager, session)[1] == ("abcdefghij", "complete")
    manager.show_branch(session.id, follow_up.id)
    assert told(manager, session)[1] == ("abc", "cut")


async def test_tokens_of_the_question_come_with_a_continued_answer(store: Store) -> None:
    """After a change of model its predecessors are tokenized for the first time, and that is kept."""
    manager = make_manager(store, FakeEngine(lambda _: "abcdefghijkl", name="a"))
    session = manager.new()
    await drain(manager.send(session.id, "q", replace(GREEDY, max_tokens=4)))
    other = FakeEngine(lambda _: "abcdefghijkl", name="b")
    manager = make_manager(store, other)
    await drain(manager.load())
    assert other.info
    store.set_model(session.id, model_ref(other.info))
    await drain(manager.continue_answer(session.id, GREEDY))
    assert all(message.run for message in manager.messages(session.id))


@pytest.fixture
def unanswered(store: Store) -> Message:
    """The second of two questions in a row, answered; the first never was."""
    session = store.create_session()
    store.add_question(session.id, "first", title="t")
    question = store.add_question(session.id, "second", title="t")
    store.add_answer(question, "ans", "complete", run=None)
    return question


@pytest.mark.parametrize("how", ["edit", "regenerate"])
async def test_a_prompt_always_begins_as_conversations_do(store: Store, unanswered: Message, how: str) -> None:
    """Behind a question without an answer too: no later prompt begins in the middle, nor is anything put between."""
    engine = FakeEngine(lambda _: "ok")
    manager = make_manager(store, engine)
    key = unanswered.session_id
    before = len(manager.tree(key))
    if how == "edit":
        await drain(manager.send(key, "second, better", GREEDY, edits=unanswered.id))
    else:
        await drain(manager.regenerate(key, GREEDY))
    assert len(manager.tree(key)) == before + (2 if how == "edit" else 1)
    await drain(manager.send(key, "third", GREEDY))
    assert prompt_ids(engine)[0] == BEGIN


async def test_a_fork_that_begins_in_the_middle_begins_as_conversations_do(store: Store) -> None:
    """Messages that were in no prompt yet, or not in this place, get the opening of where they stand now."""
    engine = FakeEngine(lambda _: "ok")
    manager = make_manager(store, engine)
    session = manager.new()
    for text in ("one", "two"):
        await drain(manager.send(session.id, text, GREEDY))
    first, _, second, _ = manager.messages(session.id)
    fork = manager.fork(session.id, through=second.id, without=[first.id])
    await drain(manager.regenerate(fork.id, GREEDY))
    await drain(manager.send(fork.id, "three", GREEDY))
    assert engine._context[:2] == (BEGIN, 258)
    assert engine._context.count(BEGIN) == 1


async def test_a_summary_and_what_is_quoted_are_everything(store: Store) -> None:
    """No turn is in neither, a long system prompt or not."""
    engine = FakeEngine(lambda _: "a" * 200, n_ctx=4000)
    manager = make_manager(store, engine)
    session = manager.new(system="S" * 1900)
    questions = {f"question number {n}" for n in range(8)}
    for text in sorted(questions):
        await drain(manager.send(session.id, text, GREEDY))
    await drain(manager.summarize(session.id))
    summarized = {entry.text for entry in engine.prompts[-1].entries if entry.role == "user"} & questions
    begun = manager.continuation(session.id, "summary")
    assert summarized | {text for text in questions if text in begun} == questions
    assert "SSS" not in begun


async def test_a_model_that_reasons_makes_a_title(store: Store) -> None:
    """It is asked to begin behind its reasoning: 32 tokens would end inside it."""
    manager = make_manager(store, FakeEngine(lambda _: "<think>" + "hmm " * 200 + "</think>Good title"))
    session = manager.new()
    await drain(manager.send(session.id, "q", GREEDY))
    assert read_title(one(Finished, await drain(manager.suggest_title(session.id))).text) == "Good title"


async def test_kv_of_a_fork_survives_its_origin(store: Store) -> None:
    """Deleting for good leaves what other conversations and branches begin with, and nothing else."""
    disk = FakeDisk()

    def forget(dead: list[str], alive: list[str]) -> None:
        disk.forget(sorted(set(dead) - set(alive)))

    manager = SessionManager(store, FakeEngine(disk=disk), forget_kv=forget)
    session = manager.new()
    await drain(manager.send(session.id, "q" * 100, GREEDY))
    question = manager.messages(session.id)[0]
    await drain(manager.send(session.id, "other" * 20, GREEDY, edits=question.id))
    tips = set(store.tips()[1])
    assert len(tips) == 2
    fork = manager.fork(session.id)
    without = manager.fork(session.id, without=[manager.messages(session.id)[0].id])
    manager.delete_forever(session.id)
    assert len(set(store.tips()[1]) & tips) == 1
    assert len(disk) == 1
    assert without.id not in store.kv_tips()
    assert fork.id in store.kv_tips()


async def test_a_conversation_deleted_while_it_opens_is_gone(store: Store) -> None:
    """What its opening would have stored is not, and that is what is said."""
    manager = make_manager(store, FakeEngine())
    session = manager.new()
    await drain(manager.send(session.id, "q", GREEDY))
    with store.db.transaction() as db:
        db.execute("DELETE FROM token_runs")
    manager = make_manager(store, FakeEngine())
    events = manager.open(session.id)
    await anext(events)
    manager.delete_forever(session.id)
    with pytest.raises(SessionNotFound):
        await drain(events)


async def test_what_a_process_said_before_it_ended_is_of_its_model(store: Store) -> None:
    """The answer's tokens are kept though nothing is loaded any more when its end arrives."""

    class Ending(FakeEngine):
        async def generate(self, *asked: object) -> object:  # type: ignore[override]
            async for event in super().generate(*asked):  # type: ignore[arg-type]
                if isinstance(event, Finished):
                    self._info = None
                yield event

    manager = make_manager(store, Ending(lambda _: "ok"))
    session = manager.new()
    await drain(manager.send(session.id, "q", GREEDY))
    assert all(message.run for message in manager.messages(session.id))


def test_a_system_prompt_is_for_conversations_without_messages(store: Store) -> None:
    """A turn that was taken back is a message too: a prompt before it would be another version of it."""
    manager = make_manager(store, FakeEngine())
    session = manager.new()
    store.add_question(session.id, "q", title="q")
    manager.undo(session.id)
    with pytest.raises(BadRequest, match="sessions system"):
        manager.set_system(session.id, "Be kind.")


def test_odd_characters_in_an_id_find_nothing(store: Store) -> None:
    """What cannot be looked up is no error of the program; `last` is the last used conversation."""
    with pytest.raises(SessionNotFound, match="no conversation yet"):
        store.find("last")
    with pytest.raises(SessionNotFound):
        store.find("\udc80")
    store.create_session()
    newest = store.create_session()
    assert store.find("last").id == newest.id
