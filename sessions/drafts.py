"""What was written and not sent, as rows: each belongs to one window, so that no window writes over another's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessions.conversation import Draft
from sessions.rows import spans_from_json, spans_to_json

if TYPE_CHECKING:
    from sessions.database import ChatDatabase  # at run time it would load the database library for everybody

NOBODY = ""
"""The window of a draft that any window may have."""


@dataclass(frozen=True, slots=True)
class KeptDraft:
    """A draft and the window it belongs to. `id` is its row."""

    id: int
    window: str
    draft: Draft


def drafts_of(db: ChatDatabase, session_id: str | None) -> list[KeptDraft]:
    """Return the drafts of a conversation, newest first; None is the one that is not stored yet."""
    rows = db.rows(
        "SELECT id, window, text, attachments FROM drafts WHERE session_id IS ? ORDER BY id DESC", session_id
    )
    return [
        KeptDraft(row["id"], row["window"], Draft(row["text"], spans_from_json(row["attachments"]))) for row in rows
    ]


def newest_drafts(db: ChatDatabase) -> dict[str, str]:
    """Return the newest draft of each stored conversation that has one."""
    rows = db.rows("SELECT session_id, text FROM drafts WHERE session_id IS NOT NULL ORDER BY id")
    return {row["session_id"]: row["text"] for row in rows}


def keep(db: ChatDatabase, session_id: str | None, window: str, draft: Draft) -> None:
    """Keep a window's draft in place of the one before; an empty text is none.

    Of a conversation that is gone, nothing is kept.
    """
    with db.transaction() as writing:
        writing.execute("DELETE FROM drafts WHERE session_id IS ? AND window = ?", [session_id, window])
        if draft.text:
            writing.execute(
                """INSERT INTO drafts (session_id, window, text, attachments) SELECT ?, ?, ?, ?
                    WHERE ? IS NULL OR EXISTS (SELECT 1 FROM sessions WHERE id = ?)""",
                [session_id, window, draft.text, spans_to_json(draft.attachments), session_id, session_id],
            )


def claim(db: ChatDatabase, kept: KeptDraft, window: str) -> bool:
    """Let a draft belong to another window; False if somebody else was faster."""
    with db.transaction() as writing:
        changed = writing.execute(
            "UPDATE drafts SET window = ? WHERE id = ? AND window = ?", [window, kept.id, kept.window]
        )
        return bool(changed.rowcount)


def let_go(db: ChatDatabase, session_id: str | None, window: str) -> None:
    """Let any window have what this one wrote in a conversation."""
    if db.rows("SELECT 1 AS one FROM drafts WHERE session_id IS ? AND window = ?", session_id, window):
        with db.transaction() as writing:
            writing.execute(
                "UPDATE drafts SET window = ? WHERE session_id IS ? AND window = ?", [NOBODY, session_id, window]
            )
