"""Copying from the window, so that the user is told which way the text went."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from chatapp.clipboard import THROUGH_TERMINAL, Clipboard
from chatapp.texts import tr
from chatapp.tui.surroundings import Surroundings

if TYPE_CHECKING:
    from chatapp.tui.stage import Stage


class Copying:
    """Hands texts to the clipboard; `send_osc52` writes to the terminal, on the window's own thread."""

    def __init__(self, stage: Stage, surroundings: Surroundings, send_osc52: Callable[[str], None]) -> None:
        self._stage = stage
        self._clipboard = Clipboard(surroundings.terminal, surroundings.folder or Path())
        self._send_osc52 = send_osc52

    def copy(self, text: str) -> None:
        """Copy a text that is clean already: a terminal might obey what it is not where it is pasted."""
        self._stage.work(self._copy(text), "copy")

    async def _copy(self, text: str) -> None:
        # tmux and the tools of the system may take their time; no key waits for them.
        if await asyncio.to_thread(self._clipboard.takes_osc52):
            self._send_osc52(text)
            copied = THROUGH_TERMINAL
        else:
            copied = await asyncio.to_thread(self._clipboard.copy, text)
        self._stage.tell(tr(copied.sentence))
