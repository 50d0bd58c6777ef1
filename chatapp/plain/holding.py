"""Which conversation plain mode writes in: the one that is open, unless another window has that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from chatapp.takeover import LOOK_S, TAKEN, WRITTEN_HERE, ask_for, why_reading
from chatapp.texts import tr
from sessions.errors import SessionError
from sessions.lease import Leases

if TYPE_CHECKING:
    from chatapp.plain.repl import Repl

T = TypeVar("T")


class Holding:
    """Owner of the lease of the conversation that is open; one that another window has can be read.

    `is_command`: nobody stays to hold anything, each turn's own lock has to do, as for `chatapp run`.
    """

    def __init__(self, leases: Leases, *, is_command: bool) -> None:
        self._leases = leases
        self._is_command = is_command

    def why(self, session_id: str) -> str | None:
        """Why nothing is sent to a conversation from here; None if it may be, and if it is free, it is taken."""
        return None if self._take(session_id) else f"{why_reading(self._leases, session_id).replace(' · ', '. ')}."

    async def keep(self, session_id: str | None, waiting: Awaitable[T]) -> T:
        """Hold this conversation and no other while something is waited for, unless a window asks for it."""
        for other in self._leases.held - {session_id}:
            self._leases.release(other)
        watching = asyncio.create_task(self._watch(session_id))
        try:
            return await waiting
        finally:
            watching.cancel()

    async def ask_for(self, repl: Repl, session_id: str) -> str | None:
        """Ask the other window for a conversation; see `takeover.ask_for`."""
        return await ask_for(self._leases, session_id, is_answering=lambda: repl.manager.is_answering(session_id))

    def close(self) -> None:
        """Let everything go."""
        self._leases.close()

    def _take(self, session_id: str) -> bool:
        if self._is_command or session_id in self._leases.held:
            return True
        try:
            # Who asks comes before those who wait.
            return not self._leases.is_wanted(session_id) and self._leases.take(session_id)
        except SessionError:  # where the disk allows no lease, each turn's own lock has to do
            return True

    async def _watch(self, session_id: str | None) -> None:
        if session_id is None or not self._take(session_id):
            return
        while session_id in self._leases.held:
            await asyncio.sleep(LOOK_S)
            if self._is_asked_for(session_id):
                self._leases.release(session_id)

    def _is_asked_for(self, session_id: str) -> bool:
        try:
            return self._leases.is_wanted(session_id)
        except SessionError:
            return False


async def take_over(repl: Repl, _: str) -> None:
    """Have the other window let the conversation go, which reads along from then on."""
    from chatapp.plain.turns import resume

    session_id = repl.session().id
    if repl.holding.why(session_id) is None:
        repl.voice.say(tr(WRITTEN_HERE))
        return
    refusal = await repl.following.wait(repl.holding.ask_for(repl, session_id))
    if repl.holding.why(session_id) is not None:
        repl.fail(refusal or tr("Stopped."))
        return
    repl.voice.say(tr(TAKEN))
    if repl.asking.can_ask:
        await resume(repl)
