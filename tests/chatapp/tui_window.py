"""A window over a real store and the scripted engine, and ways to wait for what it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from chatapp.tui.app import ChatApp
from chatapp.tui.composer import Composer
from chatapp.tui.sidebar import Sidebar
from chatapp.tui.transcript import Transcript
from models.engine import Sampling
from models.fake import FakeDisk, FakeEngine
from sessions.manager import SessionManager
from sessions.store import Store


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
    ) -> None:
        self.engine = FakeEngine(reply, disk=disk, tokens_per_s=tokens_per_s, load_error=load_error)
        self.store = Store(folder)
        self.manager = SessionManager(self.store, self.engine)
        self.app = ChatApp(self.manager, sampling=Sampling(), session_id=session_id)

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
