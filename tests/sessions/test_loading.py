import asyncio
import threading
from pathlib import Path

import pytest

from models.engine import Engine, Event, Failed, Finished, Loaded, ModelInfo, Prepared
from models.errors import ModelError
from models.fake import FakeEngine, weights_of
from models.switch import Choice, EngineSwitch
from sessions.conversation import ModelRef
from sessions.loading import MODEL_GONE, NO_MEMORY, Loading, Shelf
from sessions.manager import SessionManager
from sessions.store import Store
from tests.sessions.helpers import GREEDY, Clock, drain

LARGE = "large models do not fit"


class Shop:
    """Fake models by the name of their file; `gone` are no longer there."""

    def __init__(self, store: Store) -> None:
        self.made: list[FakeEngine] = []
        self.gone: set[str] = set()
        self.switch = EngineSwitch(self.make)
        self.manager = SessionManager(store, self.switch, monotonic=Clock(step=0.01), shelf=Shelf(self.find, self.lack))

    def make(self, choice: Choice) -> Engine:
        """Return the engine of a file."""
        name = choice.path.stem if choice.path else "usual"
        if name == "broken":
            raise ModelError("broken is no model.")
        engine = FakeEngine(lambda _: f"I am {name}", name=name, n_ctx=choice.n_ctx or 2048)
        engine.load_error = "unloadable cannot be loaded." if name == "unloadable" else None
        self.made.append(engine)
        return engine

    def find(self, model: ModelRef) -> Path | None:
        """Return the file of a model that is still there."""
        return None if model.name in self.gone else Path(f"{model.name}.gguf")

    def lack(self, path: Path | None, _n_ctx: int | None, _loaded: ModelInfo | None) -> str | None:
        """Say that large models do not fit."""
        return LARGE if path and path.stem == "large" else None

    @property
    def loaded(self) -> str | None:
        """The name of the loaded model."""
        return self.switch.info.name if self.switch.info else None


def failure(events: list[Event]) -> tuple[str, str]:
    """Return kind and sentence of the failure that ends these events."""
    assert isinstance(events[-1], Failed), events
    return events[-1].kind, events[-1].message


async def test_opening_loads_the_conversations_model(store: Store) -> None:
    """Another conversation's model takes the place of the loaded one, and back; a new one takes what is there."""
    shop = Shop(store)
    manager = shop.manager
    usual, other = manager.new(), manager.new()
    await drain(manager.send(usual.id, "hi", GREEDY))
    await drain(manager.switch_model(other.id, Path("other.gguf")))
    await drain(manager.send(other.id, "hi", GREEDY))
    assert [message.text for message in manager.messages(other.id)] == ["hi", "I am other"]
    events = await drain(manager.open(usual.id))
    assert [type(event) for event in events if isinstance(event, Loaded | Prepared)] == [Loaded, Prepared]
    assert shop.loaded == "usual"
    await drain(manager.send(other.id, "again", GREEDY))
    assert shop.loaded == "other"
    new = manager.new()
    await drain(manager.send(new.id, "hi", GREEDY))
    model = manager.session(new.id).model
    assert model is not None
    assert model.weights == weights_of("other")


async def test_the_right_model_is_not_loaded_twice(store: Store) -> None:
    """Conversations of one model share it."""
    shop = Shop(store)
    one, two = shop.manager.new(), shop.manager.new()
    for session in (one, two, one):
        await drain(shop.manager.send(session.id, "hi", GREEDY))
        await drain(shop.manager.open(session.id))
    assert len(shop.made) == 1


async def test_a_model_that_is_gone_is_said_before_anything_is_stored(store: Store) -> None:
    """The question is not taken, the text can be read, and another model can go on: text stays, tokens start anew."""
    shop = Shop(store)
    manager = shop.manager
    session = manager.new()
    await drain(manager.switch_model(None, Path("other.gguf")))
    await drain(manager.send(session.id, "hi", GREEDY))
    await drain(manager.switch_model(None, Path("usual.gguf")))
    shop.gone.add("other")
    for attempt in (manager.open(session.id), manager.send(session.id, "more", GREEDY), manager.load(session.id)):
        kind, sentence = failure(await drain(attempt))
        assert (kind, "other" in sentence) == (MODEL_GONE, True)
    assert len(manager.messages(session.id)) == 2
    events = await drain(manager.switch_model(session.id, Path("third.gguf")))
    assert isinstance(events[-1], Loaded)
    assert [message.run for message in manager.messages(session.id)] == [None, None]
    await drain(manager.send(session.id, "more", GREEDY))
    assert [message.text for message in manager.messages(session.id)][2:] == ["more", "I am third"]
    assert all(message.run for message in manager.messages(session.id))


async def test_memory_is_looked_at_before_the_loaded_model_goes(store: Store) -> None:
    """A model that would not fit is said, and what was loaded stays; forced, it is tried."""
    shop = Shop(store)
    manager = shop.manager
    session = manager.new()
    await drain(manager.switch_model(session.id, Path("large.gguf"), force=True))
    await drain(manager.send(session.id, "hi", GREEDY))
    await drain(manager.switch_model(None, Path("usual.gguf")))
    assert failure(await drain(manager.open(session.id))) == (NO_MEMORY, LARGE)
    assert shop.loaded == "usual"
    events = await drain(manager.open(session.id, force=True))
    assert any(isinstance(event, Prepared) for event in events)
    assert shop.loaded == "large"


async def test_a_switch_that_fails_changes_nothing(store: Store) -> None:
    """Neither a file that is no model nor one that cannot be loaded takes the conversation's model away."""
    shop = Shop(store)
    manager = shop.manager
    session = manager.new()
    await drain(manager.send(session.id, "hi", GREEDY))
    before = manager.session(session.id).model
    for name in ("broken", "unloadable"):
        kind, sentence = failure(await drain(manager.switch_model(session.id, Path(f"{name}.gguf"))))
        assert (kind, name in sentence) == ("model", True)
        assert manager.session(session.id).model == before
        events = await drain(manager.send(session.id, "more", GREEDY))
        assert any(isinstance(event, Finished) for event in events)
        assert shop.loaded == "usual"


async def test_a_load_that_is_overtaken_says_nothing(store: Store) -> None:
    """A model that is exchanged while it loads is no failure of the one that is wanted now."""
    shop = Shop(store)
    manager = shop.manager
    loading = manager.load()
    await anext(loading)
    await shop.switch.use(Choice(Path("other.gguf")))
    rest = await drain(loading)
    assert not any(isinstance(event, Failed) for event in rest)


async def test_a_conversation_that_needs_more_context_gets_it(store: Store) -> None:
    """It keeps the larger context; a model that is loaded with enough is left alone."""
    shop = Shop(store)
    manager = shop.manager
    session, other = manager.new(), manager.new()
    await drain(manager.send(session.id, "hi", GREEDY))
    store.set_context(session.id, 4096)
    await drain(manager.send(session.id, "more", GREEDY))
    assert shop.switch.info
    assert shop.switch.info.n_ctx == 4096
    await drain(manager.send(other.id, "hi", GREEDY))
    await drain(manager.open(session.id))
    assert len(shop.made) == 2


async def test_an_engine_with_one_model_says_so(store: Store) -> None:
    """Without a switch another model's conversation is refused, not answered with wrong tokens."""
    engine = FakeEngine(name="one")
    manager = SessionManager(store, engine, monotonic=Clock(step=0.01))
    session = manager.new()
    store.set_model(session.id, ModelRef(weights_of("two"), "two", "", 0))
    await drain(manager.load())
    kind, sentence = failure(await drain(manager.send(session.id, "hi", GREEDY)))
    assert (kind, "two" in sentence) == (MODEL_GONE, True)
    assert failure(await drain(manager.switch_model(session.id, Path("two.gguf"))))[0] == "model"


async def test_a_larger_context_is_its_conversations_own(store: Store) -> None:
    """Neither another model's conversation gets it, nor another model of the same conversation."""
    shop = Shop(store)
    manager = shop.manager
    session, other = manager.new(), manager.new()
    await drain(manager.switch_model(other.id, Path("small.gguf")))
    await drain(manager.send(other.id, "hi", GREEDY))
    await drain(manager.switch_model(session.id, Path("big.gguf")))
    await drain(manager.send(session.id, "hi", GREEDY))
    store.set_context(session.id, 131_072)
    await drain(manager.open(session.id))
    assert shop.switch.choice.n_ctx == 131_072
    await drain(manager.open(other.id))
    assert shop.switch.choice == Choice(Path("small.gguf"))
    await drain(manager.switch_model(session.id, Path("third.gguf")))
    assert manager.session(session.id).n_ctx is None


async def test_a_choice_that_cannot_be_made_closes_nothing(store: Store) -> None:
    """The engine that is there goes on."""
    shop = Shop(store)
    before = shop.made[-1]
    with pytest.raises(ModelError):
        await shop.switch.use(Choice(Path("broken.gguf")))
    assert not before._is_closed


async def test_a_switch_that_is_given_up_leaves_the_usual_model(store: Store) -> None:
    """New conversations do not get what never was loaded."""
    shop = Shop(store)
    manager = shop.manager
    await drain(manager.load())
    events = manager.switch_model(None, Path("other.gguf"))
    await anext(events)
    await events.aclose()
    session = manager.new()
    await drain(manager.send(session.id, "x", GREEDY))
    assert shop.loaded == "usual"


async def test_stopping_while_the_model_is_looked_for(store: Store) -> None:
    """Nothing is asked then, and nothing is stored."""
    shop = Shop(store)
    manager = shop.manager
    session = manager.new()
    await drain(manager.switch_model(session.id, Path("b.gguf")))
    await drain(manager.send(session.id, "x", GREEDY))
    await drain(manager.switch_model(None, Path("c.gguf")))
    is_looking, may_find = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def find(_model: ModelRef) -> Path:
        loop.call_soon_threadsafe(is_looking.set)
        may_find.wait(30)
        return Path("b.gguf")

    manager._loading = Loading(shop.switch, Shelf(find))
    sending = asyncio.create_task(drain(manager.send(session.id, "y", GREEDY)))
    await is_looking.wait()
    await manager.stop()
    may_find.set()
    assert failure(await sending)[0] == "cancelled"
    assert len(manager.messages(session.id)) == 2
