"""What is done while the window has nothing else to do: trash ages, search learns, what the killed left is removed."""

from __future__ import annotations

import asyncio

from chatapp.texts import tr, tr_n
from chatapp.tui.beside import Beside
from chatapp.tui.stage import Stage
from models.errors import EngineError
from sessions.errors import SessionError

BUSY_S = 1.0
"""How long it waits where something else goes on, in seconds."""


class Housekeeping:
    """Works beside the window; a failure is told once and tried again after the next start."""

    def __init__(self, stage: Stage, beside: Beside) -> None:
        self._stage = stage
        self._beside = beside

    def begin(self) -> None:
        """Delete for good what has been in the trash for 30 days, then read what search does not know."""
        self._stage.work(self._run(), "housekeeping")

    async def _run(self) -> None:
        now = self._stage.now()
        try:
            await self._beside.ask(lambda them: them.sweep_locks())
            gone = await self._beside.ask(lambda them: them.expire(now))
        except (SessionError, EngineError, OSError) as error:
            self._stage.warn(tr("The trash could not be emptied of what is old: {error}").format(error=error))
            return
        if gone and self._stage.is_standing:
            told = tr_n(
                "{n} conversation left the trash for good after 30 days.",
                "{n} conversations left the trash for good after 30 days.",
                len(gone),
            )
            self._stage.tell(told.format(n=f"{len(gone):,}"))
            self._stage.refresh_sidebar()
        await self._catch_up()

    async def _catch_up(self) -> None:
        try:
            while self._stage.is_standing:
                if self._stage.talk.live:
                    await asyncio.sleep(BUSY_S)
                elif not await self._beside.ask(lambda them: them.catch_up()):
                    return
        except (SessionError, OSError):
            return  # the next search reads it, and tells
