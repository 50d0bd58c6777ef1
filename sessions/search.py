"""Full-text search over titles and the messages of all branches. Raises `StoreError`."""

from __future__ import annotations

# ruff: noqa: S608 - SQL is put together from constants of this module only
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from models.engine import Role
from sessions.conversation import Session
from sessions.database import ChatDatabase
from sessions.query import Quality, Query, Span, parse, snippet
from sessions.rows import SESSION_COLUMNS, SESSION_TABLES, to_session
from sessions.wordindex import AT_ONCE, WordIndex, text_of

MAX_RANKED = 1_000
"""Of more matches than these, the newest are ranked."""
SYSTEM_WEIGHT = 0.5
"""System prompts are alike in many conversations."""
HALF_LIFE_S = 30 * 86_400.0
"""Half of a match's rank fades with its age."""

_WHERE: Mapping[Quality, str] = {
    "open": "s.state = 'open'",
    "done": "s.state = 'done'",
    "pinned": "s.pinned_at IS NOT NULL",
    "archived": "s.archived_at IS NOT NULL",
}
_RARE: frozenset[Quality] = frozenset({"pinned", "archived"})


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that matches, or a title (`message_id` and `role` are None, `created_at` is the last use).

    `spans` are the places in `snippet` where terms of the query stand, in characters.
    """

    session: Session
    message_id: int | None
    role: Role | None
    created_at: float
    snippet: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Hits, best first. `n_unindexed` messages could not be looked into yet: `catch_up`, and search again."""

    hits: tuple[Hit, ...]
    has_more: bool
    n_unindexed: int


@dataclass(frozen=True, slots=True)
class _Match:
    rank: float
    session_id: str
    message_id: int | None
    role: Role | None
    created_at: float


class Search:
    """Search in a database; what is new is indexed first."""

    def __init__(self, db: ChatDatabase, words: WordIndex, *, clock: Callable[[], float] = time.time) -> None:
        self._db = db
        self._words = words
        self._clock = clock

    def search(self, text: str, *, limit: int = 20, offset: int = 0) -> Page:
        """Return what matches a query (see `sessions.query`), archived conversations included, the trash not.

        What is new is indexed first, up to `AT_ONCE` messages.
        """
        query = parse(text)
        if query.match is None:
            hits, has_more = self._by_quality(query, limit, offset)
        else:
            matches = self._words.mending(lambda: self._matches(query))
            hits = self._hits(matches[offset : offset + limit], query)
            has_more = len(matches) > offset + limit
        return Page(hits, has_more, self._words.n_unindexed())

    def _matches(self, query: Query) -> list[_Match]:
        """What matches a query with words, best first."""
        self._words.catch_up(AT_ONCE)
        now = self._clock()
        messages = [] if query.is_in_title else self._messages(query, now)
        # A title counts as much as the best message: asking FTS5 for its rank would count every match once more.
        matches = messages + self._titles(query, now, max((match.rank for match in messages), default=1.0))
        return sorted(matches, key=lambda match: (-match.rank, -match.created_at, -(match.message_id or 0)))

    def _by_quality(self, query: Query, limit: int, offset: int) -> tuple[tuple[Hit, ...], bool]:
        """Conversations that a query without words narrows to, last used first, and whether there are more."""
        if not (query.tags or query.qualities):
            return (), False
        where, parameters = _narrowing(query)
        rows = self._db.rows(
            f"SELECT s.id, s.updated_at FROM sessions s WHERE {where} ORDER BY s.updated_at DESC LIMIT ? OFFSET ?",
            *parameters,
            limit + 1,
            offset,
        )
        matches = [_Match(0.0, row["id"], None, None, row["updated_at"]) for row in rows]
        return self._hits(matches[:limit], query), len(matches) > limit

    def _titles(self, query: Query, now: float, rank: float) -> list[_Match]:
        where, parameters = _narrowing(query)
        rows = self._db.rows(
            f"""SELECT s.id, s.updated_at FROM search
                CROSS JOIN search_titles t ON t.number = -search.rowid CROSS JOIN sessions s ON s.id = t.session_id
                WHERE search MATCH ? AND search.rowid < 0 AND {where} ORDER BY search.rowid LIMIT ?""",
            query.match,
            *parameters,
            MAX_RANKED,
        )
        return [
            _Match(rank * _freshness(row["updated_at"], now), row["id"], None, None, row["updated_at"]) for row in rows
        ]

    def _messages(self, query: Query, now: float) -> list[_Match]:
        where, parameters = _message_narrowing(query)
        rows = self._db.rows(
            f"""SELECT -bm25(search) AS rank, m.id, m.session_id, m.role, m.created_at FROM search
                CROSS JOIN messages m ON m.id = search.rowid CROSS JOIN sessions s ON s.id = m.session_id
                WHERE search MATCH ? AND search.rowid > 0 AND {where} ORDER BY search.rowid DESC LIMIT ?""",
            query.match,
            *parameters,
            MAX_RANKED,
        )
        return [
            _Match(
                row["rank"] * _freshness(row["created_at"], now) * (SYSTEM_WEIGHT if row["role"] == "system" else 1.0),
                row["session_id"],
                row["id"],
                row["role"],
                row["created_at"],
            )
            for row in rows
        ]

    def _hits(self, matches: Collection[_Match], query: Query) -> tuple[Hit, ...]:
        sessions = {
            row["id"]: to_session(row)
            for row in self._among(
                f"SELECT {SESSION_COLUMNS} FROM {SESSION_TABLES}", "s.id", {m.session_id for m in matches}
            )
        }
        ids = {match.message_id for match in matches if match.message_id is not None}
        texts = {
            row["id"]: text_of(row["role"], row["text"])
            for row in self._among("SELECT m.id, m.role, m.text FROM messages m", "m.id", ids)
        }
        hits = []
        for match in matches:
            session = sessions.get(match.session_id)
            if session is None:
                continue  # another process has deleted it meanwhile
            text = session.title if match.message_id is None else texts.get(match.message_id)
            if text is not None:
                hits.append(Hit(session, match.message_id, match.role, match.created_at, *snippet(text, query)))
        return tuple(hits)

    def _among(self, select: str, column: str, values: Collection[object]) -> list[dict[str, Any]]:
        return self._db.rows(f"{select} WHERE {column} IN ({', '.join('?' * len(values))})", *values)


def _freshness(at: float, now: float) -> float:
    return 0.5 + 0.5 * math.pow(0.5, max(0.0, now - at) / HALF_LIFE_S)


def _narrowing(query: Query) -> tuple[str, list[object]]:
    """Return conditions on conversations `s`, and their parameters."""
    conditions = ["s.trashed_at IS NULL", *(_WHERE[quality] for quality in sorted(query.qualities))]
    conditions += ["s.id IN (SELECT session_id FROM tags WHERE tag = ?)"] * len(query.tags)
    return " AND ".join(conditions), list(query.tags)


def _message_narrowing(query: Query) -> tuple[str, list[object]]:
    """The same for messages that match.

    What few conversations have is made a set of message ids first: otherwise each match of a common word would be
    looked up with its conversation, to find a few. The plus keeps SQLite from asking the index for each id.
    """
    where, parameters = _narrowing(query)
    if query.tags or query.qualities & _RARE:
        messages = "SELECT m.id FROM sessions s CROSS JOIN messages m ON m.session_id = s.id"
        return f"s.trashed_at IS NULL AND +search.rowid IN ({messages} WHERE {where})", parameters
    return where, parameters
