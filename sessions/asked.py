"""What was asked before, newest first, page by page: the history of the box is made of the stored messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessions.conversation import Draft
from sessions.rows import spans_from_json

if TYPE_CHECKING:
    from sessions.database import ChatDatabase  # at run time it would load the database library for everybody


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a page ended: the part (0: the conversation itself, 1: all others) and the last message in it."""

    part: int
    message_id: int


_PAGE = """SELECT m.id, m.text, p.part,
        (SELECT json_group_array(json_array(x.name, x.start, x."end", x.sha256))
            FROM attachments x WHERE x.message_id = m.id) AS attachments
    FROM (
        SELECT id, 0 AS part FROM messages
            WHERE session_id = :session AND role = 'user' AND :part = 0 AND id < :before
        UNION ALL SELECT * FROM (
            SELECT o.id, 1 AS part FROM messages o JOIN sessions s ON s.id = o.session_id
                WHERE o.session_id IS NOT :session AND o.role = 'user' AND s.trashed_at IS NULL
                    AND (:part = 0 OR o.id < :before)
                ORDER BY o.id DESC LIMIT :limit
        )
        ORDER BY part, id DESC LIMIT :limit
    ) p JOIN messages m ON m.id = p.id ORDER BY p.part, p.id DESC"""


def asked(
    db: ChatDatabase, session_id: str | None, after: Mark | None = None, *, limit: int = 50
) -> tuple[list[Draft], Mark | None]:
    """Return questions of a conversation, then of all others that are not in the trash, and where the page ended.

    None instead of that when there are no more.
    """
    after = after or Mark(0, 1 << 62)
    rows = db.named_rows(_PAGE, session=session_id, part=after.part, before=after.message_id, limit=limit)
    drafts = [Draft(row["text"], spans_from_json(row["attachments"])) for row in rows]
    return drafts, Mark(rows[-1]["part"], rows[-1]["id"]) if len(rows) == limit else None
