"""What the benchmarks of the window share: the app with its frames, and the event loop with its stalls."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import chatapp.tui
from chatapp.tui.app import ChatApp


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
