"""Conversations at a server: what is stored of answers without token ids, broken ones too."""

from pathlib import Path

from models.engine import Event, Failed, Sampling
from models.fake import FakeEngine
from sessions.manager import SessionManager
from sessions.store import Store
from tests.models.remote_talk import engine_at
from tests.models.scripted_server import CUT, STREAM, answer, chunk, delta, serving


async def send(manager: SessionManager, session_id: str, text: str) -> list[Event]:
    """All events of one turn."""
    return [event async for event in manager.send(session_id, text, Sampling())]


async def test_answers_without_token_ids(tmp_path: Path) -> None:
    """Texts and the model are stored, runs are not made up; the next turn sends what was said."""
    async with serving() as server:
        server.chat = [answer("Pears.")]
        engine = engine_at(server)
        store = Store(tmp_path)
        manager = SessionManager(store, engine)
        session = manager.new(system="Be brief.")
        await send(manager, session.id, "Which fruit?")
        await send(manager, session.id, "Sure?")
        messages = store.messages(session.id)
        model = store.session(session.id).model
        await engine.close()
        store.close()
        assert [message["content"] for message in server.asked[-1].body["messages"]] == [
            "Be brief.",
            "Which fruit?",
            "Pears.",
            "Sure?",
        ]
    assert [(m.role, m.text, m.status, m.run) for m in messages] == [
        ("system", "Be brief.", "complete", None),
        ("user", "Which fruit?", "complete", None),
        ("assistant", "Pears.", "complete", None),
        ("user", "Sure?", "complete", None),
        ("assistant", "Pears.", "complete", None),
    ]
    assert model is not None
    assert (model.name, model.path) == ("m at box", "engine:box/m")


async def test_a_broken_answer_is_kept_as_interrupted(tmp_path: Path) -> None:
    """With the text that came, and no run that would stand for none of it."""
    async with serving() as server:
        server.chat = [[STREAM, chunk(delta("Half of")), CUT]]
        engine = engine_at(server)
        store = Store(tmp_path)
        manager = SessionManager(store, engine)
        session = manager.new(system=None)
        events = await send(manager, session.id, "Which fruit?")
        last = store.messages(session.id)[-1]
        await engine.close()
        store.close()
    assert isinstance(events[-1], Failed)
    assert (last.text, last.status, last.run) == ("Half of", "interrupted", None)


async def test_another_engine_goes_on_with_the_text(tmp_path: Path) -> None:
    """What a server answered is the beginning of the prompt elsewhere."""
    async with serving() as server:
        server.chat = [answer("Pears.")]
        engine = engine_at(server)
        store = Store(tmp_path)
        manager = SessionManager(store, engine)
        session = manager.new(system=None)
        await send(manager, session.id, "Which fruit?")
        await engine.close()
    other = FakeEngine(lambda _: "Plums.")
    _ = [event async for event in other.load()]
    assert other.info is not None
    from sessions.conversation import model_ref

    store.set_model(session.id, model_ref(other.info))
    await send(SessionManager(store, other), session.id, "Sure?")
    assert [entry.text for entry in other.prompts[-1].entries] == ["Which fruit?", "Pears.", "Sure?"]
    assert all(message.run for message in store.messages(session.id))
    store.close()
