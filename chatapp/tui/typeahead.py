"""Type-ahead in the window: what is being written is read by the engine while that has nothing else to do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

from textual.timer import Timer

from chatapp.slash import as_message, is_command
from chatapp.tui.stage import UNSAVED, Stage
from sessions.errors import SessionError

AFTER_S = 0.5
"""A draft is read ahead so long after the last key, in seconds."""


class TypeAhead:
    """Owner of the draft that is being read. `may` says whether that is allowed now; None: it never is.

    A draft that goes on where the one being read ends waits for its turn; any other takes its place, and so does none.
    """

    def __init__(self, stage: Stage, may: Callable[[], bool] | None) -> None:
        self._stage = stage
        self._may = may
        self._later: Timer | None = None
        self._reading: tuple[str, str] | None = None
        self._is_outgrown = False
        self._told = UNSAVED
        self._retried: tuple[str, str] | None = None

    def changed(self) -> None:
        """The draft, or what the engine does, is another now: look again soon."""
        if self._may is None or not self._stage.is_standing:
            return
        if not self._stage.composer.text:
            self._end()
        if self._later is not None:
            self._later.stop()
        self._later = self._stage.composer.set_timer(AFTER_S, self._look)

    def _look(self) -> None:
        draft = self._draft()
        if draft is None or (self._reading and draft[0] != self._reading[0]):
            self._end()
        if draft is None or not self._is_idle():
            return
        if self._reading and self._reading[0] == draft[0] and draft[1].startswith(self._reading[1]):
            self._is_outgrown = draft != self._reading
            return
        self._stage.work(self._read(draft), "typeahead")

    def _draft(self) -> tuple[str, str] | None:
        """The conversation on the screen and what would be sent in it; None where nothing would be."""
        stage = self._stage
        if not stage.is_standing:
            return None
        typed = stage.composer.text
        if not typed.strip() or is_command(typed):
            return None
        return stage.current, as_message(stage.composer.content, typed).text

    def _is_idle(self) -> bool:
        """True if the engine has nothing to do, and this draft can be sent as it is."""
        stage = self._stage
        info = stage.talk.model.info
        return (
            self._may is not None
            and info is not None
            and info.server is None
            and not stage.talk.live
            and stage.readings.activity in ("idle", "failed")
            and stage.editing.question_id is None
            and stage.why_held(stage.session()) is None
            and self._may()
        )

    async def _read(self, draft: tuple[str, str]) -> None:
        stage = self._stage
        session_id, text = self._reading = draft
        self._is_outgrown, is_whole, is_told = False, True, False
        if self._told != session_id:
            self._forget()
            self._told = session_id
        try:
            async with aclosing(stage.manager.anticipate(session_id or None, text)) as events:
                async for ahead in events:
                    if self._reading is draft and stage.is_standing:
                        is_whole, is_told = ahead.is_whole, True
                        stage.talk.readings(session_id).ahead = ahead
                        stage.needs_paint = True
        except SessionError:
            pass  # sending finds out the same, and tells
        finally:
            if self._reading is draft:
                self._reading = None
        if not is_told:  # the engine has gone, or has another model
            self._forget()
        # Another request may have ended it: once more for each draft, and not for ever.
        if self._is_outgrown or (not is_whole and self._retried != draft):
            self._retried = draft
            self.changed()

    def _end(self) -> None:
        """Read on no more: there is nothing that would be sent."""
        if self._reading is not None:
            self._reading = None
            self._stage.app.workers.cancel_group(self._stage.app, "typeahead")
        self._forget()

    def _forget(self) -> None:
        """Say nothing more of what was read."""
        readings = self._stage.talk.readings(self._told)
        if readings.ahead is not None:
            readings.ahead = None
            self._stage.needs_paint = True
