"""The measured turns of all conversations, read from the store page by page: memory stays flat however many there are.

A turn counts once. What a fork has from its origin was not answered in it: those answers are older than the fork.
"""

from __future__ import annotations

# ruff: noqa: S608 - SQL is put together from constants
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from models.engine import TurnStats
from sessions.rows import stats_from_json
from sessions.statistics import FIELDS

if TYPE_CHECKING:
    from sessions.database import ChatDatabase  # at run time it would load the database library for everybody

PAGE_ROWS = 5000

# An answer is first tokenized by the model that gives it, and anew when another one goes on with the conversation.
_MODEL = """coalesce(
    (SELECT nullif(r.model_id, 0) FROM token_runs r WHERE r.message_id = m.id ORDER BY r.rowid LIMIT 1), s.model_id)"""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which turns: answered at or after `since` (epoch s), by models whose name begins with `model`; None: all.

    Those of conversations in the trash only if `with_trash`.
    """

    since: float | None = None
    model: str | None = None
    with_trash: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredTurn:
    """One answer's stats, whose it is, when it was given (epoch s) and by which model (None: not known)."""

    session_id: str
    message_id: int
    at: float
    model: str | None
    stats: TurnStats


def turn_rows(db: ChatDatabase, scope: Scope = Scope()) -> Iterator[dict[str, Any]]:
    """Yield a row for each turn, oldest first, as `statistics.summarize` counts them."""
    fields = ", ".join(f"a.stats ->> '$.{name}' AS {name}" for name in FIELDS)
    return _pages(db, scope, fields)


def turns(db: ChatDatabase, scope: Scope = Scope()) -> Iterator[MeasuredTurn]:
    """Yield each turn with all its stats, oldest first."""
    for row in _pages(db, scope, "a.stats"):
        yield MeasuredTurn(row["session_id"], row["id"], row["at"], row["model"], stats_from_json(row["stats"]))


def newest_stats(db: ChatDatabase, weights: str, *, limit: int = 500) -> list[TurnStats]:
    """Return the stats of the newest turns of one model, newest first; what the model of today does on this machine."""
    rows = db.rows(
        f"""SELECT a.stats FROM answer_stats a JOIN messages m ON m.id = a.message_id
            JOIN sessions s ON s.id = m.session_id JOIN models w ON w.id = {_MODEL}
            WHERE w.weights = ? AND (s.forked_from IS NULL OR m.created_at > s.created_at)
            ORDER BY a.message_id DESC LIMIT ?""",
        weights,
        limit,
    )
    return [stats_from_json(row["stats"]) for row in rows]


def _pages(db: ChatDatabase, scope: Scope, fields: str) -> Iterator[dict[str, Any]]:
    wanted = scope.model.casefold() if scope.model else ""
    last_id = 0
    while page := _page(db, scope, fields, last_id):
        last_id = page[-1]["id"]
        for row in page:
            if (row["model"] or "").casefold().startswith(wanted):
                yield row


def _page(db: ChatDatabase, scope: Scope, fields: str, last_id: int) -> Sequence[dict[str, Any]]:
    return db.rows(
        f"""SELECT a.message_id AS id, m.session_id, m.created_at AS at,
                coalesce(w.name, s.model_name) AS model, w.weights, {fields}
            FROM answer_stats a JOIN messages m ON m.id = a.message_id JOIN sessions s ON s.id = m.session_id
            LEFT JOIN models w ON w.id = {_MODEL}
            WHERE a.message_id > ? AND m.created_at >= ? AND (? OR s.trashed_at IS NULL)
                AND (s.forked_from IS NULL OR m.created_at > s.created_at)
            ORDER BY a.message_id LIMIT ?""",
        last_id,
        scope.since if scope.since is not None else float("-inf"),
        scope.with_trash,
        PAGE_ROWS,
    )
