"""Other windows on the same conversations: what they write is shown, and one that they answer takes no message here."""

from __future__ import annotations

from chatapp.texts import tr, tr_later
from chatapp.tui.live import LiveAnswer
from chatapp.tui.stage import UNSAVED, Stage
from chatapp.tui.transcript import spoken
from models.engine import Piece
from sessions.conversation import Message
from sessions.errors import SessionError, SessionNotFound
from sessions.journal import Partial

WATCH_S = 1.0
"""How often it is looked at, in seconds."""
HELD = tr_later("Being written in another window · wait until it is done there")


class Watching:
    """Compares the store's version and looks for an answer that another process writes in the conversation shown."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._version: int | None = None
        self._live: LiveAnswer | None = None
        self._partial: Partial | None = None

    async def look(self) -> None:
        """Bring the window up to what others have written; costs little where nobody has."""
        stage = self._stage
        if not stage.is_standing:
            return
        try:
            version = stage.manager.version
            is_changed = version != self._version
            self._version = version
            partial = self._elsewhere()
            if partial is not None and stage.manager.settle_dead(stage.current):
                partial, is_changed = None, True  # its process has died
            if partial is not None:
                await self._follow(partial)
            elif self._live is not None:
                await self._end()
            elif is_changed:
                await self._refresh()
        except SessionError as error:
            stage.warn_once(str(error))

    def why(self, session_id: str) -> str | None:
        """Why nothing is sent to a conversation now; None unless it is being answered elsewhere."""
        return tr(HELD) if self._live is not None and self._live.session_id == session_id else None

    def _elsewhere(self) -> Partial | None:
        stage = self._stage
        session_id = stage.current
        if not session_id or session_id in stage.talk.live or stage.manager.running == session_id:
            return None
        return stage.manager.answer_elsewhere(session_id)

    async def _follow(self, partial: Partial) -> None:
        """Show an answer that grows elsewhere."""
        stage = self._stage
        if self._live is not None and not self._is_same(partial):
            self._live = None
        if self._live is None:
            all_messages = stage.messages()
            messages = spoken(all_messages)
            at = next((at for at, message in enumerate(messages) if message.id == partial.question_id), None)
            if at is None:
                return  # another branch than the one that is shown
            question = messages[at]
            self._live = LiveAnswer(partial.session_id, question.text, at)
            self._live.attachments = question.attachments
            self._live.note = tr("being written in another window")
            stage.refresh()
            await stage.transcript.show(all_messages, self._live, None)
        n_before = len(self._partial.text) if self._partial is not None else 0
        n_ids = len(self._partial.ids) if self._partial is not None else 0
        if len(partial.text) > n_before:
            self._live.take(Piece(partial.text[n_before:], partial.ids[n_ids:]), stage.monotonic())
        self._partial = partial

    def _is_same(self, partial: Partial) -> bool:
        before = self._partial
        if before is None:
            return False
        is_longer = partial.text.startswith(before.text)
        return (before.session_id, before.question_id) == (partial.session_id, partial.question_id) and is_longer

    async def _end(self) -> None:
        """It is over there: the box is free again, and what is stored is shown."""
        stage, live = self._stage, self._live
        self._live = self._partial = None
        if live is None:
            return
        if stage.current == live.session_id:
            await stage.show_messages()
        else:
            stage.refresh()

    async def _refresh(self) -> None:
        """Show what is stored now, if that is something else."""
        stage = self._stage
        session_id = stage.current
        if session_id and session_id not in stage.talk.live:
            try:
                session = stage.manager.session(session_id)
            except SessionNotFound:
                stage.warn(tr("This conversation was deleted in another window. What is in the box stays."))
                draft = stage.composer.content
                await stage.show(UNSAVED)
                stage.composer.put_back(draft)
                return
            stage.refresh_title(session)
            shown = [_state(message) for message in stage.transcript.messages]
            if shown != [_state(message) for message in spoken(stage.messages())]:
                await stage.show_messages()
                return
        stage.refresh_sidebar()


def _state(message: Message) -> tuple[int, str, int]:
    return message.id, message.status, len(message.text)
