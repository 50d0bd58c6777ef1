"""Rows of the database to values and back, field by field."""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from models.engine import TokenRun, TurnStats
from sessions.conversation import Message, Session

CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"

SESSION_COLUMNS = """s.id, s.title, s.task, s.state, s.model, s.created_at, s.updated_at, s.trashed_at,
    (SELECT m.text FROM messages m WHERE m.session_id = s.id AND m.role = 'system') AS system"""

MESSAGE_COLUMNS = """m.id, m.session_id, m.role, m.status, m.created_at, m.text,
    r.body_start, r.body_end, r.ids, a.stats"""


def new_session_id(now: float) -> str:
    """Return 16 characters that sort by time: 10 of milliseconds, 6 of chance, in Crockford's base 32."""
    number = (int(now * 1000) << 30) | secrets.randbits(30)
    return "".join(CROCKFORD[number >> shift & 31] for shift in range(75, -1, -5))


def ids_to_blob(ids: Sequence[int]) -> bytes:
    """Return token ids as unsigned 32-bit little-endian numbers."""
    return struct.pack(f"<{len(ids)}I", *ids)


def to_session(row: Mapping[str, Any]) -> Session:
    """Return the conversation of a row with `SESSION_COLUMNS`."""
    return Session(
        id=row["id"],
        title=row["title"],
        task=row["task"],
        state=row["state"],
        system=row["system"],
        model=row["model"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        trashed_at=row["trashed_at"],
    )


def to_message(row: Mapping[str, Any]) -> Message:
    """Return the message of a row with `MESSAGE_COLUMNS`."""
    ids: bytes | None = row["ids"]
    return Message(
        id=row["id"],
        session_id=row["session_id"],
        role=row["role"],
        text=row["text"],
        status=row["status"],
        run=None
        if ids is None
        else TokenRun(struct.unpack(f"<{len(ids) // 4}I", ids), row["body_start"], row["body_end"]),
        stats=None if row["stats"] is None else _to_stats(row["stats"]),
        created_at=row["created_at"],
    )


def stats_to_json(stats: TurnStats) -> str:
    """Return the stats that are known."""
    known = {name: value for name, value in asdict(stats).items() if value is not None}
    return json.dumps(known, separators=(",", ":"))


def _to_stats(text: str) -> TurnStats:
    known = json.loads(text)
    return TurnStats(**{field.name: known.get(field.name) for field in fields(TurnStats)})
