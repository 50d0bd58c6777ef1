from contextlib import closing
from pathlib import Path

import pytest

from models.engine import Failed, Finished, Piece, Prepared, Sampling
from models.fake import FakeEngine
from sessions.errors import BadRequest
from sessions.journal import recover
from sessions.manager import SessionManager
from sessions.store import Store
from tests.sessions.helpers import GREEDY, Clock, crash_copy, drain, make_manager


class Answers:
    """Answers that count up."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, text: str) -> str:
        """Return an answer that was not given before."""
        self.n += 1
        return f"{text}: answer {self.n}"


def texts(manager: SessionManager, session_id: str) -> list[str]:
    """Return what the shown branch says."""
    return [message.text for message in manager.messages(session_id)]


async def test_an_edited_question_is_a_version(store: Store) -> None:
    """The new branch shares what stands before the question, and evaluates only what differs."""
    manager = make_manager(store, FakeEngine(Answers()))
    session = manager.new()
    for text in ("one", "two"):
        await drain(manager.send(session.id, text, GREEDY))
    second = manager.messages(session.id)[2]
    events = await drain(manager.send(session.id, "too", GREEDY, edits=second.id))
    prepared = next(event for event in events if isinstance(event, Prepared))
    assert texts(manager, session.id) == ["one", "one: answer 1", "too", "too: answer 3"]
    shared = sum(len(message.run.ids) for message in manager.messages(session.id)[:2] if message.run)
    assert prepared.resident >= shared
    manager.show_branch(session.id, second.id)
    assert texts(manager, session.id) == ["one", "one: answer 1", "two", "two: answer 2"]


async def test_regenerating_keeps_both_answers(store: Store) -> None:
    """The question is asked once more, its tokens stay, and the versions are counted."""
    engine = FakeEngine(Answers())
    manager = make_manager(store, engine)
    session = manager.new(system="s")
    await drain(manager.send(session.id, "one", GREEDY))
    first = manager.messages(session.id)[-1]
    events = await drain(manager.regenerate(session.id, GREEDY))
    assert any(isinstance(event, Finished) for event in events)
    assert texts(manager, session.id) == ["s", "one", "one: answer 2"]
    second = manager.messages(session.id)[-1]
    assert manager.versions(session.id)[second.id].ids == (first.id, second.id)
    assert [entry.text for entry in engine.prompts[-1].entries] == ["s", "one"]
    assert all(entry.run for entry in engine.prompts[-1].entries)


async def test_an_earlier_answer_can_be_regenerated(store: Store) -> None:
    """What followed it is on the other branch."""
    manager = make_manager(store, FakeEngine(Answers()))
    session = manager.new()
    for text in ("one", "two"):
        await drain(manager.send(session.id, text, GREEDY))
    messages = manager.messages(session.id)
    await drain(manager.regenerate(session.id, GREEDY, answer_id=messages[1].id))
    assert texts(manager, session.id) == ["one", "one: answer 3"]
    manager.show_branch(session.id, messages[1].id)
    assert len(texts(manager, session.id)) == 4


async def test_what_is_not_shown_can_not_be_changed(store: Store) -> None:
    """Messages of other branches and conversations, and those of the wrong role, are refused; nothing changes."""
    manager = make_manager(store, FakeEngine(Answers()))
    session = manager.new()
    with pytest.raises(BadRequest, match="no question"):
        await drain(manager.regenerate(session.id, GREEDY))
    await drain(manager.send(session.id, "one", GREEDY))
    question, answer = manager.messages(session.id)
    with pytest.raises(BadRequest, match="no such message"):
        await drain(manager.send(session.id, "x", GREEDY, edits=answer.id))
    with pytest.raises(BadRequest, match="no such message"):
        await drain(manager.regenerate(session.id, GREEDY, answer_id=question.id))
    assert texts(manager, session.id) == ["one", "one: answer 1"]


async def test_a_stopped_answer_goes_on(store: Store) -> None:
    """The same message becomes longer; its beginning is not said twice and not evaluated again."""
    engine = FakeEngine(lambda _: "one two three four")
    manager = make_manager(store, engine)
    session = manager.new(system="s")
    await drain(manager.send(session.id, "hi", Sampling(max_tokens=7)))
    cut = manager.messages(session.id)[-1]
    assert (cut.text, cut.status) == ("one two", "cut")
    events = await drain(manager.continue_answer(session.id, GREEDY))
    prepared = next(event for event in events if isinstance(event, Prepared))
    assert prepared.prefilled <= 1
    answer = manager.messages(session.id)[-1]
    assert (answer.id, answer.text, answer.status) == (cut.id, "one two three four", "complete")
    assert answer.run
    assert bytes(answer.run.body) == b"one two three four"
    with pytest.raises(BadRequest, match="no answer that was stopped"):
        await drain(manager.continue_answer(session.id, GREEDY))


@pytest.mark.parametrize("journalled", [True, False])
async def test_going_on_loses_nothing(store: Store, tmp_path: Path, *, journalled: bool) -> None:
    """Killed or failing while it goes on, an answer is what it was, or longer."""
    engine = FakeEngine(lambda _: "one two three four")
    manager = make_manager(store, engine, Clock(step=1))
    session = manager.new()
    await drain(manager.send(session.id, "hi", Sampling(max_tokens=7)))
    engine.fail_at = 0 if not journalled else 6
    events = manager.continue_answer(session.id, GREEDY)
    if journalled:
        async for event in events:
            if isinstance(event, Piece) and event.text == "e":
                with closing(Store(crash_copy(store, tmp_path))) as crashed:
                    (recovered,) = recover(crashed)
                    assert recovered.text.startswith("one two t")
                    assert len(crashed.messages(session.id)) == 2
                break
        await events.aclose()
    else:
        assert isinstance((await drain(events))[-1], Failed)
    assert manager.messages(session.id)[-1].text.startswith("one two")
    assert len(manager.messages(session.id)) == 2
