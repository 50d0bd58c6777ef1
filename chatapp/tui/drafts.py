"""What is written and not sent, kept in the store, so that neither a switch nor a crash nor another window takes it."""

from __future__ import annotations

from collections.abc import Callable

from chatapp.slash import MARK
from chatapp.texts import tr
from sessions.conversation import Draft
from sessions.conversations import Conversations
from sessions.drafts import KeptDraft
from sessions.errors import SessionError
from sessions.lease import Leases

SAVE_AFTER_S = 1.0
"""A draft is saved this long after a key, in seconds."""


class Drafts:
    """Drafts of this window by conversation; the empty id is the conversation that is not stored yet.

    No other window changes them, and none of theirs is changed here: one that a window left behind, with its
    conversation or by ending, belongs to who opens that conversation with no draft of his own.
    `warn` is told once that drafts cannot be saved; the message itself will tell again.
    """

    def __init__(self, manager: Conversations, leases: Leases, warn: Callable[[str], object]) -> None:
        self._manager = manager
        self._leases = leases
        self._warn = warn
        self._saved: dict[str, Draft] = {}
        self._unsaved: dict[str, Draft] = {}  # what the disk did not take
        self._has_warned = False

    def of(self, session_id: str) -> Draft:
        """Return what is written here in a conversation."""
        if session_id in self._unsaved:
            return self._unsaved[session_id]
        try:
            own = (kept.draft for kept in self._kept(session_id) if kept.window == self._leases.window)
            self._saved[session_id] = next(own, Draft(""))
        except SessionError as error:
            self._tell(error)
        return self._saved.get(session_id, Draft(""))

    def opened(self, session_id: str) -> Draft:
        """Return what is to be in the box of a conversation: this window's draft, else one that was left behind.

        A conversation that another window has keeps what was left behind for that one.
        """
        own = self.of(session_id)
        if own.text:
            return own
        try:
            for kept in self._left_behind(session_id):
                if self._manager.claim_draft(kept, self._leases.window):
                    self._saved[session_id] = kept.draft
                    return kept.draft
        except SessionError as error:
            self._tell(error)
        return own

    def waits(self, session_id: str) -> bool:
        """True if a draft was left behind in a conversation."""
        try:
            return bool(self._left_behind(session_id))
        except SessionError as error:
            self._tell(error)
            return False

    def keep(self, session_id: str, draft: Draft) -> bool:
        """Save what is written in a conversation, in place of what was here; False if that cannot be.

        Nothing is written if that is the same.
        """
        if not draft.text.strip():
            draft = Draft("")
        if self._saved.get(session_id) == draft:
            return True
        try:
            self._manager.keep_draft(session_id or None, draft, self._leases.window)
        except SessionError as error:
            self._unsaved[session_id] = draft
            self._saved.pop(session_id, None)
            self._tell(error)
            return False
        self._saved[session_id] = draft
        self._unsaved.pop(session_id, None)
        return True

    def offer(self, session_id: str, draft: Draft) -> None:
        """Save a draft where there is none."""
        if not self.of(session_id).text:
            self.keep(session_id, draft)

    def sent(self, session_id: str, question: str) -> None:
        """A question is stored: if it is the draft still, there is none any more."""
        if self.of(session_id).text in (question, MARK + question):
            self.keep(session_id, Draft(""))

    def let_go(self, session_id: str) -> bool:
        """Leave a conversation's draft to whoever has that next; False if that cannot be."""
        if session_id in self._unsaved:
            return False
        try:
            self._manager.let_go_of_draft(session_id, self._leases.window)
        except SessionError as error:
            self._tell(error)
            return False
        self._saved.pop(session_id, None)
        return True

    def forget(self, session_id: str) -> None:
        """A conversation was deleted, its draft with it."""
        self._saved.pop(session_id, None)
        self._unsaved.pop(session_id, None)

    def take(self, session_id: str) -> str:
        """Return a draft's text and forget it."""
        text = self.of(session_id).text
        self.keep(session_id, Draft(""))
        return text

    def _kept(self, session_id: str) -> list[KeptDraft]:
        return self._manager.kept_drafts(session_id or None)

    def _left_behind(self, session_id: str) -> list[KeptDraft]:
        if session_id and session_id not in self._leases.held:
            return []
        return [kept for kept in self._kept(session_id) if not self._leases.is_alive(kept.window)]

    def _tell(self, error: SessionError) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(tr("Drafts are not saved: {reason}").format(reason=error))
