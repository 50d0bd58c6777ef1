"""What measurements of the window share: the app with its frames, the event loop with its stalls, long talks."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import chatapp.tui
from chatapp.tui.app import ChatApp
from sessions.store import Store

PARAGRAPH = "Some **Markdown** with `code` and a list, as answers have it, over and over again.\n\n- one\n- two\n\n"


class WatchedApp(ChatApp):
    """The window, and when it drew a frame."""

    CSS_PATH = str(Path(chatapp.tui.__file__).with_name("app.tcss"))
    drawn: asyncio.Event

    def post_display_hook(self) -> None:
        """A frame was drawn."""
        self.drawn.set()

    async def next_frame(self) -> None:
        """Wait until a frame is drawn from now on."""
        self.drawn.clear()
        await self.drawn.wait()


class Stalls:
    """While entered: `worst_s`, the longest time that the event loop did not turn, in seconds."""

    def __init__(self) -> None:
        self.worst_s = 0.0

    async def __aenter__(self) -> Stalls:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.002)
            self.worst_s = max(self.worst_s, time.perf_counter() - before - 0.002)


def talk_of(store: Store, n_turns: int) -> str:
    """Store a conversation of this many turns and return its id."""
    session = store.create_session()
    for n in range(n_turns):
        question = store.add_question(session.id, f"Question {n} of {n_turns}", title=f"{n_turns} turns")
        store.add_answer(question, f"Answer {n}.\n\n" + PARAGRAPH * 3, "complete", run=None)
    return session.id
