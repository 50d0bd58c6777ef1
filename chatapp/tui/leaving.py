"""Ctrl+C and Ctrl+Q: copying what is selected, and leaving without losing an answer."""

from __future__ import annotations

import asyncio

from textual.widgets import Input, TextArea

from chatapp.texts import tr
from chatapp.tui.stage import Stage

QUIT_AGAIN_S = 2.0
"""A second Ctrl+C within this time quits."""
STOP_WAIT_S = 2.0
"""Longest wait on quitting for the running answer to be stopped and stored."""


class Leaving:
    """Remembers when quitting was first asked for."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._asked_at = -QUIT_AGAIN_S
        self._is_leaving = False

    def copy_or_leave(self) -> None:
        """Copy what is selected; with nothing selected, the second press quits."""
        app = self._stage.app
        focused = app.focused
        own = focused.selected_text if isinstance(focused, TextArea | Input) else ""
        if selected := own or app.screen.get_selected_text():
            app.copy_to_clipboard(selected)
            app.screen.clear_selection()
            return
        now = self._stage.monotonic()
        if now - self._asked_at < QUIT_AGAIN_S:
            self.leave()
            return
        self._asked_at = now
        app.notify(tr("Ctrl+C again quits."), timeout=QUIT_AGAIN_S, markup=False)

    def leave(self) -> None:
        """Quit; a running answer is stopped first and kept, and so is the draft."""
        self._stage.save_draft()
        if self._stage.talk.live and not self._is_leaving:
            self._is_leaving = True
            self._stage.work(self._leave_later(), "leave")
        else:
            self._stage.app.exit()

    async def _leave_later(self) -> None:
        talk = self._stage.talk
        try:
            async with asyncio.timeout(STOP_WAIT_S):
                await talk.stop()
                await talk.all_over.wait()
        except TimeoutError:
            pass  # the text so far is journalled; waiting longer would hold the user
        self._stage.app.exit()
