"""A window over a real store and the scripted engine, and ways to wait for what it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

from textual.pilot import Pilot

from chatapp.tui.app import ChatApp
from chatapp.tui.composer import Composer
from chatapp.tui.desk import Tools
from chatapp.tui.overview import Prices
from chatapp.tui.prefetch import Prefetcher
from chatapp.tui.sidebar import Library, Sidebar
from chatapp.tui.surroundings import Surroundings
from chatapp.tui.switching import Models
from chatapp.tui.transcript import Transcript
from models.engine import Event, ModelInfo, Sampling
from models.fake import FakeDisk, FakeEngine
from models.switch import Choice, EngineSwitch
from sessions.loading import Shelf
from sessions.manager import SessionManager
from sessions.store import Store


class ScriptedEngine(FakeEngine):
    """The fake, trained for a larger context than it runs with (`n_ctx_max`); loading waits for `load_gate`."""

    n_ctx_max: int | None = None
    load_gate: asyncio.Event | None = None

    async def load(self) -> AsyncIterator[Event]:
        """Load nothing, as soon as that may be."""
        if self.load_gate:
            await self.load_gate.wait()
        async for event in super().load():
            yield event

    @property
    def info(self) -> ModelInfo | None:
        """The made-up model."""
        info = super().info
        return replace(info, n_ctx_train=self.n_ctx_max) if info and self.n_ctx_max else info


class Window:
    """The app, its manager and its engine; one folder and disk can be given to several, one after another."""

    def __init__(
        self,
        folder: Path,
        *,
        reply: Callable[[str], str] | None = None,
        disk: FakeDisk | None = None,
        tokens_per_s: float | None = None,
        session_id: str | None = None,
        load_error: str | None = None,
        n_ctx: int = 32_768,
        n_ctx_max: int | None = None,
        models: Models | None = None,
        shelf: Shelf | None = None,
        prices: Prices | None = None,
        tools: Tools = Tools(),  # noqa: B008 - frozen
        surroundings: Surroundings = Surroundings(),  # noqa: B008 - frozen
        may_read_ahead: Callable[[], bool] | None = None,
        prefetcher: Prefetcher | None = None,
    ) -> None:
        """`n_ctx_max` is what the model was trained for; with `models`, each is one that the engine can load."""
        self.made: list[FakeEngine] = []
        """Every engine that was made, oldest first."""
        self.load_gates: dict[str, asyncio.Event] = {}
        """What the models with these names wait for before they load."""

        def make(choice: Choice) -> FakeEngine:
            name = choice.path.stem if choice.path else "fake"
            engine = ScriptedEngine(
                reply,
                name=name,
                disk=disk,
                tokens_per_s=tokens_per_s,
                load_error=load_error,
                n_ctx=choice.n_ctx or n_ctx,
            )
            engine.n_ctx_max = n_ctx_max
            engine.load_gate = self.load_gates.get(name)
            self.made.append(engine)
            return engine

        engine = EngineSwitch(make)
        self.store = Store(folder)
        self.manager = SessionManager(self.store, engine, shelf=shelf or Shelf())
        self.app = ChatApp(
            self.manager,
            sampling=Sampling(),
            session_id=session_id,
            models=models,
            prices=prices,
            tools=tools,
            surroundings=surroundings,
            may_read_ahead=may_read_ahead,
            prefetcher=prefetcher,
        )

    @property
    def engine(self) -> FakeEngine:
        """The engine that is used now."""
        return self.made[-1]

    @property
    def composer(self) -> Composer:
        """The box the user writes in."""
        return self.app.screen_stack[0].query_one(Composer)

    @property
    def transcript(self) -> Transcript:
        """The conversation on the screen."""
        return self.app.screen_stack[0].query_one(Transcript)

    @property
    def sidebar(self) -> Sidebar:
        """The list of conversations."""
        return self.app.screen_stack[0].query_one(Sidebar)

    @property
    def listing(self) -> Library:
        """The list with the search above it."""
        return self.app.stage.listing

    def screen_text(self) -> str:
        """What the terminal shows, control characters included."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip) for strip in strips)

    async def ask(self, text: str, session_id: str | None = None) -> str:
        """Store one turn without the window; return the conversation's id."""
        session_id = session_id or self.manager.new().id
        async for _ in self.manager.send(session_id, text, Sampling()):
            pass
        return session_id


async def until(pilot: Pilot[None], is_so: Callable[[], bool], what: str) -> None:
    """Let the window work until something is so."""
    for _ in range(1000):
        if is_so():
            await pilot.pause()
            return
        await asyncio.sleep(0.01)  # a pause visits every widget: too slow to poll with
    raise AssertionError(f"never happened: {what}")


async def sees(pilot: Pilot[None], window: Window, text: str) -> None:
    """Wait until a text is on the screen."""
    try:
        await until(pilot, lambda: text in window.screen_text(), text)
    except AssertionError:
        raise AssertionError(f"{text!r} is not on the screen:\n{window.screen_text()}") from None


async def hears(pilot: Pilot[None], window: Window, text: str) -> None:
    """Wait until a notice says something."""
    await until(pilot, lambda: any(text in one.message for one in window.app._notifications), text)
