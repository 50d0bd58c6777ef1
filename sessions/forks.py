"""What a fork is called: as its origin, with the next free number behind it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sessions.conversation import Session

if TYPE_CHECKING:
    from sessions.database import ChatDatabase  # at run time it would load the database library for everybody

_NUMBER = re.compile(r" \(\d{1,9}\)$")
_MAX_CHARS = 80
"""As of other titles that are made."""


def fork_title(db: ChatDatabase, origin: Session) -> str:
    """Return `Title (2)`, or with the first number behind 2 that is free; a conversation without a title gives none.

    A fork of `Title (2)` is `Title (3)`: only a number that a fork was given is taken off.
    """
    base = origin.title.removesuffix(numbered(origin.title)) if origin.forked_from else origin.title
    if not base:
        return ""
    # Cut in the question too, so that it can be answered once for all numbers.
    rows = db.rows("SELECT title FROM sessions WHERE substr(title, 1, ?) = ?", *_head(base))
    taken = {row["title"] for row in rows}
    number = 2
    while (title := _title(base, number)) in taken:
        number += 1
    return title


def numbered(title: str) -> str:
    """Return what a fork's title ends with, ` (2)`; "" where there is no number."""
    found = _NUMBER.search(title)
    return found[0] if found else ""


def _title(base: str, number: int) -> str:
    behind = f" ({number})"
    return base[: _MAX_CHARS - len(behind)].rstrip() + behind


def _head(base: str) -> tuple[int, str]:
    """The beginning that all numbered titles of a base have in common."""
    head = base[: _MAX_CHARS - len(" (999999999)")].rstrip()
    return len(head), head
