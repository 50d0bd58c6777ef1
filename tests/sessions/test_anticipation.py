"""What of a draft an engine is asked to read ahead."""

from dataclasses import replace
from pathlib import Path

import pytest

from models.engine import Entry, ModelInfo, Prompt, Sampling, Server
from models.fake import FakeEngine
from sessions.anticipation import prompt_ahead
from sessions.conversation import ModelRef, Session
from sessions.errors import SessionNotFound
from sessions.manager import SessionManager
from sessions.store import Store


async def loaded() -> tuple[FakeEngine, ModelInfo]:
    """An engine with its model."""
    engine = FakeEngine(lambda _: "ok")
    async for _ in engine.load():
        pass
    assert engine.info
    return engine, engine.info


async def talked(manager: SessionManager, text: str = "Hello there, engine") -> Session:
    """A conversation of one turn."""
    session = manager.new(system="Be brief.")
    async for _ in manager.send(session.id, text, Sampling()):
        pass
    return manager.session(session.id)


@pytest.fixture
async def engine() -> FakeEngine:
    """An engine with its model."""
    return (await loaded())[0]


@pytest.fixture
def manager(tmp_path: Path, engine: FakeEngine) -> SessionManager:
    """A manager over a fresh store."""
    return SessionManager(Store(tmp_path), engine)


async def read(manager: SessionManager, session_id: str | None, draft: str) -> bool:
    """True if the engine read something."""
    return bool([ahead async for ahead in manager.anticipate(session_id, draft)])


async def test_a_draft_is_asked_as_it_would_be_sent(manager: SessionManager, engine: FakeEngine) -> None:
    """The same prompt as `send` makes of it, line ends and all, so that nothing of it is evaluated twice."""
    session = await talked(manager)
    draft = "And now\r\nanother question"
    assert await read(manager, session.id, draft)
    async for _ in manager.send(session.id, draft, Sampling()):
        pass
    drafted, sent = engine.drafts[-1], engine.prompts[-1]
    assert drafted.entries == sent.entries
    assert manager.messages(session.id)[-1].stats is not None


async def test_nothing_is_stored(manager: SessionManager) -> None:
    """A conversation is what it was."""
    session = await talked(manager)
    before = manager.messages(session.id)
    await read(manager, session.id, "Something that is never sent")
    assert manager.messages(session.id) == before
    assert manager.session(session.id) == session


async def test_a_new_conversation_has_no_history(manager: SessionManager, engine: FakeEngine) -> None:
    """It is not made before its first message is sent."""
    assert await read(manager, None, "The first words")
    assert engine.drafts[-1] == Prompt((Entry("user", "The first words"),))
    assert manager.sessions() == []


async def test_the_turn_counts_what_was_read_as_resident(manager: SessionManager) -> None:
    """Resident and evaluated tokens add up to the prompt, and nothing was missed."""
    session = await talked(manager)
    draft = "one two three four five six seven"
    await read(manager, session.id, draft)
    async for _ in manager.send(session.id, draft, Sampling()):
        pass
    stats = manager.messages(session.id)[-1].stats
    assert stats is not None
    assert stats.prefilled_tokens == len(" seven") + 2  # the last word, the closing and the opening of the answer
    assert stats.prompt_tokens == (stats.resident_tokens or 0) + stats.prefilled_tokens
    assert (stats.restored_tokens, stats.miss_reason) == (0, None)


async def test_what_cannot_be_sent_as_it_is_is_not_read(manager: SessionManager) -> None:
    """A closed conversation, an open question, another model, a larger context, a server, a blank draft."""
    session = await talked(manager)
    messages = manager.messages(session.id)
    _, info = await loaded()
    other = ModelRef("other weights", "other", "/other.gguf", 1)
    server = replace(info, server=Server("there", "host", "openai"))
    for changed, history, draft, model in (
        (replace(session, state="done"), messages, "hi there", info),
        (replace(session, trashed_at=1.0), messages, "hi there", info),
        (replace(session, model=other), messages, "hi there", info),
        (replace(session, n_ctx=1 << 20), messages, "hi there", info),
        (session, messages[:-1], "hi there", info),
        (session, messages, " \n ", info),
        (session, messages, "hi there", server),
    ):
        assert prompt_ahead(changed, history, draft, model) is None
    assert prompt_ahead(session, messages, "hi there", info) is not None


async def test_nothing_is_read_before_a_model_is_there(tmp_path: Path) -> None:
    """Typing loads nothing."""
    engine = FakeEngine()
    assert not await read(SessionManager(Store(tmp_path), engine), None, "some words here")
    assert (engine.info, engine.drafts) == (None, [])


async def test_an_unknown_conversation_is_an_error(manager: SessionManager) -> None:
    """As everywhere."""
    with pytest.raises(SessionNotFound):
        await read(manager, "nobody", "some words here")


async def test_a_question_that_runs_is_not_disturbed(manager: SessionManager, engine: FakeEngine) -> None:
    """While another request has the engine, nothing is read."""
    session = await talked(manager)
    events = manager.send(session.id, "A long question", Sampling())
    await anext(events)
    assert not await read(manager, session.id, "the next words")
    assert engine.drafts == []
    await events.aclose()
