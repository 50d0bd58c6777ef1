"""Rows of the database to values and back, field by field."""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from models.engine import TokenRun, TurnStats
from models.presets import SamplingChoice
from sessions.conversation import Attachment, Message, ModelRef, Session

CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"

SESSION_COLUMNS = """s.id, s.title, s.task, s.state, s.created_at, s.updated_at, s.trashed_at, s.n_ctx, s.reasoning,
    s.sampling, s.forked_from, s.pinned_at, s.archived_at,
    w.weights, w.name AS model_name, w.path AS model_path, w.n_bytes AS model_bytes,
    (SELECT json_group_array(t.tag) FROM tags t WHERE t.session_id = s.id) AS tags,
    (SELECT m.text FROM messages m WHERE m.session_id = s.id AND m.role = 'system') AS system"""

SESSION_TABLES = "sessions s LEFT JOIN models w ON w.id = s.model_id"

MESSAGE_COLUMNS = """m.id, m.session_id, m.role, m.status, m.created_at, m.text, m.parent_id,
    r.body_start, r.body_end, r.ids, a.stats,
    (SELECT json_group_array(json_array(x.name, x.start, x."end", x.sha256))
        FROM attachments x WHERE x.message_id = m.id) AS attachments"""

INSERT_ATTACHMENT = """INSERT INTO attachments (message_id, name, start, "end", sha256) VALUES (?, ?, ?, ?, ?)"""


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
        model=None
        if row["weights"] is None
        else ModelRef(row["weights"], row["model_name"], row["model_path"], row["model_bytes"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        trashed_at=row["trashed_at"],
        n_ctx=row["n_ctx"],
        reasoning=row["reasoning"],
        sampling=None if row["sampling"] is None else choice_from_json(row["sampling"]),
        forked_from=row["forked_from"],
        pinned_at=row["pinned_at"],
        archived_at=row["archived_at"],
        tags=tuple(sorted(json.loads(row["tags"]))),
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
        stats=None if row["stats"] is None else stats_from_json(row["stats"]),
        created_at=row["created_at"],
        parent_id=row["parent_id"],
        attachments=spans_from_json(row["attachments"]) if row["attachments"] else (),
    )


def spans_to_json(attachments: Sequence[Attachment]) -> str:
    """Return spans as a draft's row holds them, and as a query gathers those of a message."""
    return json.dumps([[one.name, one.start, one.end, one.sha256] for one in attachments], separators=(",", ":"))


def spans_from_json(text: str) -> tuple[Attachment, ...]:
    """The inverse of `spans_to_json`."""
    return tuple(sorted((Attachment(*values) for values in json.loads(text)), key=lambda one: one.start))


def attachment_values(message_id: int, attachments: Sequence[Attachment]) -> list[list[object]]:
    """Return the values of `INSERT_ATTACHMENT` for each span of a message."""
    return [[message_id, one.name, one.start, one.end, one.sha256] for one in attachments]


def choice_to_json(choice: SamplingChoice) -> str:
    """Return a choice of sampling as its row holds it."""
    return json.dumps({"preset": choice.preset, "given": dict(choice.given)}, separators=(",", ":"))


def choice_from_json(text: str) -> SamplingChoice:
    """The inverse of `choice_to_json`."""
    fields_ = json.loads(text)
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in fields_["given"].items()}
    return SamplingChoice(fields_["preset"], given)


def stats_to_json(stats: TurnStats) -> str:
    """Return the stats that are known."""
    known = {name: value for name, value in asdict(stats).items() if value is not None}
    return json.dumps(known, separators=(",", ":"))


def stats_from_json(text: str) -> TurnStats:
    """The inverse of `stats_to_json`."""
    known = json.loads(text)
    return TurnStats(**{field.name: known.get(field.name) for field in fields(TurnStats)})
