"""Why fewer tokens were reused than a conversation had: the words a user sees and a script may compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

NOTHING = "nothing stored"
TOO_SMALL = "too small to pay"
EVICTED = "evicted to stay within the budget"
VANISHED = "a stored file is missing"
OFF = "KV on disk is off"

Cause = Literal["edited text", "template", "context limit"]


def cut(at: int, by: Cause) -> str:
    """What is stored agrees up to a token, and what follows differs or does not fit."""
    return f"cut at token {at:,} by {by}"


def ends(at: int) -> str:
    """What is stored agrees as far as it goes: what follows was never kept."""
    return f"stored up to token {at:,}"


def no_restore_point(at: int) -> str:
    """The memory of this model can only be restored at stored points, the last of which lies at a token."""
    return f"cut at token {at:,}: this model cannot go back further on" if at else "no state stored to go back to"


def other_settings(names: Sequence[str]) -> str:
    """Stored under a fingerprint that differs in these fields."""
    return "stored under other settings: " + ", ".join(names)


def damaged(detail: str) -> str:
    """A file failed its check."""
    return f"damaged file set aside: {detail}"


def unreadable(detail: str) -> str:
    """A file or the index could not be read."""
    return f"stored KV cannot be read: {detail}"


def self_test_failed(detail: str) -> str:
    """Saved state of this model does not come back as it was."""
    return f"self-test failed: {detail}"
