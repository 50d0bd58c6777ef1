"""A whole conversation, with all its branches, as one value: read from the store's rows, and added to them.

Messages name each other by position, so that the value means the same in every store.
"""

from __future__ import annotations

# ruff: noqa: S608 - SQL is put together from constants
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from models.engine import Role, TokenRun, TurnStats
from sessions.conversation import Attachment, MessageStatus, Session
from sessions.errors import SessionNotFound
from sessions.rows import (
    INSERT_ATTACHMENT,
    MESSAGE_COLUMNS,
    SESSION_COLUMNS,
    SESSION_TABLES,
    attachment_values,
    choice_to_json,
    ids_to_blob,
    stats_to_json,
    to_message,
    to_session,
)

if TYPE_CHECKING:
    from models.sqlite import Database
    from sessions.store import Store  # at run time it would load the database library for everybody


@dataclass(frozen=True, slots=True)
class Line:
    """One message; `parent` is the position of the one before it, always smaller than its own.

    `run` is of the conversation's model.
    """

    parent: int | None
    role: Role
    text: str
    status: MessageStatus
    created_at: float
    run: TokenRun | None = None
    stats: TurnStats | None = None
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation and its messages, oldest first; the branch that is shown ends at position `head`."""

    session: Session
    lines: tuple[Line, ...]
    head: int | None

    def shown(self) -> list[Line]:
        """Return the messages of the branch that is shown, oldest first."""
        branch = []
        position = self.head
        while position is not None:
            branch.append(self.lines[position])
            position = self.lines[position].parent
        return branch[::-1]


def load(store: Store, session_id: str) -> Transcript:
    """Read a conversation. Raises `SessionNotFound`."""
    rows = store.db.rows(
        f"""SELECT {SESSION_COLUMNS}, s.head_id, coalesce(s.model_id, 0) AS model_id
            FROM {SESSION_TABLES} WHERE s.id = ?""",
        session_id,
    )
    if not rows:
        raise SessionNotFound(f"There is no conversation {session_id}.")
    messages = [
        to_message(row)
        for row in store.db.rows(
            f"""SELECT {MESSAGE_COLUMNS} FROM messages m
                LEFT JOIN token_runs r ON r.message_id = m.id AND r.model_id = ?
                LEFT JOIN answer_stats a ON a.message_id = m.id
                WHERE m.session_id = ? ORDER BY m.id""",
            rows[0]["model_id"],
            session_id,
        )
    ]
    place = {message.id: position for position, message in enumerate(messages)}
    lines = tuple(
        Line(
            None if m.parent_id is None else place.get(m.parent_id),
            m.role,
            m.text,
            m.status,
            m.created_at,
            m.run,
            m.stats,
            m.attachments,
        )
        for m in messages
    )
    return Transcript(to_session(rows[0]), lines, place.get(rows[0]["head_id"]))


def all_ids(store: Store) -> list[str]:
    """Return the ids of the conversations that are not in the trash, in the order they were made."""
    return [row["id"] for row in store.db.rows("SELECT id FROM sessions WHERE trashed_at IS NULL ORDER BY id")]


def begins_with(store: Store, session_id: str, lines: Sequence[Line]) -> bool | None:
    """True when a stored conversation begins with these messages, whatever came later; None when there is none."""
    if not store.has_session(session_id):
        return None
    rows = store.db.rows(
        "SELECT id, parent_id, role, text FROM messages WHERE session_id = ? ORDER BY id LIMIT ?",
        session_id,
        len(lines),
    )
    place = {row["id"]: position for position, row in enumerate(rows)}
    stored = [(place.get(row["parent_id"]), row["role"], row["text"]) for row in rows]
    return stored == [(line.parent, line.role, line.text) for line in lines]


def insert(db: Database, transcript: Transcript) -> None:
    """Add a conversation under its id, which must be free, inside a transaction of the caller's.

    Its model becomes known without a place; what is known of it already stays.
    """
    session = transcript.session
    model_id: int | None = None
    if model := session.model:
        db.execute(
            "INSERT INTO models (weights, name, path, n_bytes) VALUES (?, ?, ?, ?) ON CONFLICT (weights) DO NOTHING",
            [model.weights, model.name, model.path, model.n_bytes],
        )
        model_id = int(db.execute("SELECT id FROM models WHERE weights = ?", [model.weights]).fetchone()[0])
    values = {
        "id": session.id,
        "title": session.title,
        "task": session.task,
        "state": session.state,
        "model_id": model_id,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "trashed_at": session.trashed_at,
        "n_ctx": session.n_ctx,
        "reasoning": session.reasoning,
        "sampling": session.sampling and choice_to_json(session.sampling),
        "forked_from": session.forked_from,
        "pinned_at": session.pinned_at,
        "archived_at": session.archived_at,
    }
    db.execute(
        f"INSERT INTO sessions ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})", list(values.values())
    )
    ids: list[int] = []
    for line in transcript.lines:
        cursor = db.execute(
            "INSERT INTO messages (session_id, parent_id, role, status, created_at, text) VALUES (?, ?, ?, ?, ?, ?)",
            [
                session.id,
                None if line.parent is None else ids[line.parent],
                line.role,
                line.status,
                line.created_at,
                line.text,
            ],
        )
        assert cursor.lastrowid is not None, "an insert has a row id"
        ids.append(cursor.lastrowid)
        if line.run:
            db.execute(
                "INSERT INTO token_runs (message_id, model_id, body_start, body_end, ids) VALUES (?, ?, ?, ?, ?)",
                [ids[-1], model_id or 0, line.run.body_start, line.run.body_end, ids_to_blob(line.run.ids)],
            )
        if line.stats:
            db.execute(
                "INSERT INTO answer_stats (message_id, stats) VALUES (?, ?)", [ids[-1], stats_to_json(line.stats)]
            )
        for row in attachment_values(ids[-1], line.attachments):
            db.execute(INSERT_ATTACHMENT, row)
    if transcript.head is not None:
        db.execute("UPDATE sessions SET head_id = ? WHERE id = ?", [ids[transcript.head], session.id])
    for tag in session.tags:
        db.execute("INSERT INTO tags (session_id, tag) VALUES (?, ?)", [session.id, tag])


def under(transcript: Transcript, session_id: str) -> Transcript:
    """Return a conversation under another id."""
    return replace(transcript, session=replace(transcript.session, id=session_id))
