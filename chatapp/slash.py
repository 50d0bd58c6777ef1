"""The slash that a command in the box begins with, and how a message begins with one."""

from __future__ import annotations

from sessions.attachments import moved
from sessions.conversation import Draft

MARK = "/"
"""What a command in the box begins with; twice, it begins a message with one slash."""


def is_command(typed: str) -> bool:
    """True for what is typed not to be sent but to be done."""
    return typed.startswith(MARK) and not typed.startswith(MARK * 2)


def as_message(draft: Draft, typed: str) -> Draft:
    """Return a draft as it is sent: two slashes that are typed at its start are one."""
    if not typed.startswith(MARK * 2):
        return draft
    return Draft(draft.text[len(MARK) :], moved(draft.attachments, -len(MARK)))
