"""The list of conversations: pinned ones first, then by last use, page by page."""

from __future__ import annotations

# ruff: noqa: S608 - SQL is put together from constants of this module only
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sessions.conversation import SessionState, SessionSummary
from sessions.rows import SESSION_COLUMNS, SESSION_TABLES, to_session

if TYPE_CHECKING:
    from sessions.database import ChatDatabase  # at run time it would load the database library for everybody


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which conversations are listed: those in the trash, or else those that are archived, or else all others.

    `is_pinned` leaves out all that are not pinned; `tag` and `state` leave out what has another, None nothing.
    """

    is_trashed: bool = False
    is_archived: bool = False
    is_pinned: bool = False
    tag: str | None = None
    state: SessionState | None = None


def summaries(
    db: ChatDatabase, wanted: Wanted, *, limit: int, after: SessionSummary | None = None
) -> list[SessionSummary]:
    """Return at most `limit` conversations, those behind `after`, which ended the page before.

    In the trash and the archive, and for `is_pinned`, by last use alone.
    """
    found: list[str] = []
    has_sections = not (wanted.is_trashed or wanted.is_archived)
    if has_sections and not (after and after.session.pinned_at is None):
        found = _ids(db, wanted, "s.pinned_at IS NOT NULL", limit, after)
        after = None
    if not wanted.is_pinned and len(found) < limit:
        found += _ids(db, wanted, "s.pinned_at IS NULL" if has_sections else "", limit - len(found), after)
    rows: dict[str, dict[str, Any]] = {}
    for start in range(0, len(found), _AT_ONCE):
        part = found[start : start + _AT_ONCE]
        rows |= {row["id"]: row for row in db.rows(_SUMMARIES.format(", ".join("?" * len(part))), *part)}
    return [
        SessionSummary(to_session(rows[key]), rows[key]["n_messages"], rows[key]["n_tokens"])
        for key in found
        if key in rows  # else another process has deleted it meanwhile
    ]


_AT_ONCE = 500
"""SQLite takes some tens of thousands of parameters, earlier ones less than a thousand."""
_SUMMARIES = f"""SELECT {SESSION_COLUMNS},
    (SELECT count(*) FROM messages m WHERE m.session_id = s.id AND m.role != 'system') AS n_messages,
    (SELECT coalesce(sum(length(r.ids)) / 4, 0)
        FROM messages m JOIN token_runs r ON r.message_id = m.id AND r.model_id = coalesce(s.model_id, 0)
        WHERE m.session_id = s.id) AS n_tokens
    FROM {SESSION_TABLES} WHERE s.id IN ({{}})"""


def _ids(db: ChatDatabase, wanted: Wanted, section: str, limit: int, after: SessionSummary | None) -> list[str]:
    """Return ids by last use. All conversations are looked at: an index by last use would be written with each turn."""
    if wanted.is_trashed:
        conditions = ["s.trashed_at IS NOT NULL"]
    else:
        conditions = ["s.trashed_at IS NULL", f"s.archived_at IS {'NOT ' if wanted.is_archived else ''}NULL"]
    parameters: list[object] = []
    if section:
        conditions.append(section)
    if wanted.is_pinned and not section:
        conditions.append("s.pinned_at IS NOT NULL")
    if wanted.state:
        conditions.append("s.state = ?")
        parameters.append(wanted.state)
    if wanted.tag is not None:
        conditions.append("s.id IN (SELECT session_id FROM tags WHERE tag = ?)")
        parameters.append(wanted.tag)
    if after:
        conditions.append("(s.updated_at, s.id) < (?, ?)")
        parameters += [after.session.updated_at, after.session.id]
    rows = db.rows(
        f"SELECT s.id FROM sessions s WHERE {' AND '.join(conditions)} ORDER BY s.updated_at DESC, s.id DESC LIMIT ?",
        *parameters,
        limit,
    )
    return [row["id"] for row in rows]
