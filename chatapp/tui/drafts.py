"""What is written and not sent, kept in the store, so that neither a switch nor a crash takes it."""

from __future__ import annotations

from collections.abc import Callable

from chatapp.tui.slash import MARK
from sessions.conversation import Draft
from sessions.conversations import Conversations
from sessions.errors import SessionError

SAVE_AFTER_S = 1.0
"""A draft is saved this long after a key, in seconds."""


class Drafts:
    """Drafts by conversation; the empty id is the conversation that is not stored yet.

    `warn` is told once that drafts cannot be saved; the message itself will tell again.
    """

    def __init__(self, manager: Conversations, warn: Callable[[str], object]) -> None:
        self._manager = manager
        self._warn = warn
        self._saved: dict[str, Draft] = {}
        self._has_warned = False

    def of(self, session_id: str) -> Draft:
        """Return what is written in a conversation."""
        try:
            self._saved[session_id] = self._manager.draft(session_id or None)
        except SessionError as error:
            self._tell(error)
        return self._saved.get(session_id, Draft(""))

    def keep(self, session_id: str, draft: Draft) -> None:
        """Save what is written in a conversation, in place of what was; nothing is written if that is the same."""
        if not draft.text.strip():
            draft = Draft("")
        if self._saved.get(session_id) == draft:
            return
        self._saved[session_id] = draft
        try:
            self._manager.keep_draft(session_id or None, draft)
        except SessionError as error:
            self._tell(error)

    def offer(self, session_id: str, draft: Draft) -> None:
        """Save a draft where there is none."""
        if not self.of(session_id).text:
            self.keep(session_id, draft)

    def sent(self, session_id: str, question: str) -> None:
        """A question is stored: if it is the draft still, there is none any more."""
        if self.of(session_id).text in (question, MARK + question):
            self.keep(session_id, Draft(""))

    def forget(self, session_id: str) -> None:
        """A conversation was deleted, its draft with it."""
        self._saved.pop(session_id, None)

    def take(self, session_id: str) -> str:
        """Return a draft's text and forget it."""
        text = self.of(session_id).text
        self.keep(session_id, Draft(""))
        return text

    def _tell(self, error: SessionError) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(f"Drafts are not saved: {error}")
