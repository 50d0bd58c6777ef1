"""Which window writes in the conversation shown: this one, or another that it reads along with until that is free."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from textual.widgets import Static

from chatapp.safe import clean
from chatapp.takeover import TAKEN, WRITTEN_HERE, ask_for, why_reading
from chatapp.texts import tr
from sessions.errors import SessionError
from sessions.lease import Leases

if TYPE_CHECKING:
    from chatapp.tui.stage import Stage


class Leasing:
    """Owner of the line above the box that says why nothing is sent.

    The conversation on the screen is held, and those that are being answered from here. Where another window holds
    it, nothing is sent from here, but the box takes a draft: that belongs to this window.
    """

    def __init__(self, stage: Stage, leases: Leases) -> None:
        self._stage = stage
        self._leases = leases
        self._reading = ""
        self.hint = Static("", id="reading", markup=False)
        self.hint.display = False

    @property
    def is_reading(self) -> bool:
        """True if another window has the conversation on the screen."""
        return bool(self._reading) and self._reading == self._stage.current

    def why(self, session_id: str) -> str | None:
        """Why nothing is sent to a conversation from here; None if it may be."""
        if not session_id or session_id != self._reading:
            return None
        return why_reading(self._leases, session_id)

    def enter(self, session_id: str) -> None:
        """A conversation comes to the screen: take it if it is free, and let the one before go."""
        self._reading = "" if not session_id or self._take(session_id) else session_id
        self._let_go()

    def say(self, reason: str | None) -> None:
        """Show why nothing is sent, or nothing."""
        self.hint.update(clean(reason or ""))
        self.hint.display = reason is not None

    async def look(self) -> None:
        """Give way to a window that asks, let go of what is no longer needed, take what is free."""
        stage = self._stage
        if not stage.is_standing:
            return
        with self._reporting():
            self._let_go()
            if self.is_reading:
                # Who asks comes before those who wait.
                if not self._leases.is_wanted(stage.current) and self._take(stage.current):
                    await self._begin_to_write(tr("The other window let this conversation go: it is written here now."))
            elif stage.current in self._leases.held and self._leases.is_wanted(stage.current):
                self._give_way()

    def ask_for_it(self) -> None:
        """Ask the other window for the conversation on the screen."""
        if not self.is_reading:
            self._stage.warn(tr(WRITTEN_HERE))
        else:
            self._stage.converse(self._ask_for_it(self._stage.current))

    async def _ask_for_it(self, session_id: str) -> None:
        stage = self._stage
        with self._reporting():
            refusal = await ask_for(
                self._leases,
                session_id,
                is_answering=lambda: stage.manager.is_answering(session_id),
                is_wanted=lambda: stage.current == session_id and stage.is_standing,
            )
            if refusal is not None:
                stage.warn(refusal)
            elif session_id in self._leases.held:
                await self._begin_to_write(tr(TAKEN))

    async def _begin_to_write(self, sentence: str) -> None:
        """The lease was taken: the box is free, and what was written there before is in it if it is empty."""
        stage = self._stage
        self._reading = ""
        stage.tell(sentence)
        if not stage.composer.text.strip():
            stage.composer.clear_draft()
            stage.composer.put_back(stage.drafts.opened(stage.current))
        elif stage.drafts.waits(stage.current):
            stage.tell(
                tr("Another draft is kept with it: you find it here when you come back with nothing in the box.")
            )
        await stage.show_messages()

    def _give_way(self) -> None:
        """Let another window have the conversation on the screen, the draft with it, unless something is under way."""
        stage = self._stage
        session_id = stage.current
        if session_id in stage.talk.live or stage.manager.running == session_id or stage.is_conversing:
            return
        stage.save_draft()
        if stage.editing.question_id is None and stage.drafts.let_go(session_id):
            stage.composer.clear_draft()
        self._reading = session_id
        self._leases.release(session_id)
        stage.refresh()
        stage.tell(tr("Another window has taken this conversation over, and its draft: this one reads along now."))

    def _let_go(self) -> None:
        """Free the conversations that are neither shown nor answered here."""
        stage = self._stage
        for session_id in self._leases.held - {stage.current} - frozenset(stage.talk.live):
            stage.drafts.let_go(session_id)
            self._leases.release(session_id)

    def _take(self, session_id: str) -> bool:
        """Take a lease. Where the disk allows none, each turn's own lock has to do."""
        try:
            return self._leases.take(session_id)
        except SessionError as error:
            self._stage.warn_once(str(error))
            return True

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except SessionError as error:
            self._stage.warn_once(str(error))

    def close(self) -> None:
        """Let everything go."""
        self._leases.close()
