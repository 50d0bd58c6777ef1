"""The index of KV segments: its own SQLite file, rebuildable from the segment files, never the only copy."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlite_utils
from sqlite_utils.utils import sqlite3 as _sqlite  # type: ignore[attr-defined]  # its choice: pysqlite3 or stdlib

from models.kvformat import SegmentId, pack_tokens, unpack_tokens

_SCHEMA = """
CREATE TABLE IF NOT EXISTS segments(
    key BLOB PRIMARY KEY, parent BLOB NOT NULL, fingerprint BLOB NOT NULL,
    start INTEGER NOT NULL, tokens BLOB NOT NULL, bytes INTEGER NOT NULL, last_used REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS segments_parent ON segments(parent);
CREATE TABLE IF NOT EXISTS generations(fingerprint BLOB PRIMARY KEY, fields TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class IndexRow:
    """One stored segment: its place, its file size (bytes), its last use (seconds since the epoch)."""

    segment: SegmentId
    bytes: int
    last_used: float


def _row(row: tuple[Any, ...]) -> IndexRow:
    parent, fingerprint, start, tokens, n_bytes, last_used = row
    return IndexRow(SegmentId(fingerprint, parent, start, unpack_tokens(tokens)), n_bytes, last_used)


_COLUMNS = "parent, fingerprint, start, tokens, bytes, last_used"


class KvIndex:
    """Rows of stored segments. Safe to use from two threads of one process and from several processes."""

    def __init__(self, path: Path) -> None:
        """Open or create; a damaged file is set aside and an empty index made (the files are still there)."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = threading.Lock()
        try:
            self._open(path)
        except _sqlite.DatabaseError:
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self._open(path)

    def _open(self, path: Path) -> None:
        path.touch(mode=0o600, exist_ok=True)
        connection = _sqlite.connect(str(path), check_same_thread=False, isolation_level=None, timeout=5)
        self._db = sqlite_utils.Database(connection)
        self._db.conn.execute("PRAGMA journal_mode=WAL")
        # The index can be rebuilt from the files, so it need not wait for the disk.
        self._db.conn.execute("PRAGMA synchronous=NORMAL")
        self._db.conn.executescript(_SCHEMA)

    def _query(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return list(self._db.conn.execute(sql, parameters).fetchall())

    def children(self, parent: bytes) -> list[IndexRow]:
        """Segments that continue the chain ending in `parent`."""
        return [_row(r) for r in self._query(f"SELECT {_COLUMNS} FROM segments WHERE parent = ?", (parent,))]  # noqa: S608 - constant columns

    def get(self, key: bytes) -> IndexRow | None:
        """The segment of this key."""
        rows = self._query(f"SELECT {_COLUMNS} FROM segments WHERE key = ?", (key,))  # noqa: S608 - constant columns
        return _row(rows[0]) if rows else None

    def add(self, segment: SegmentId, n_bytes: int, now: float) -> None:
        """Record a published file; adding it twice is harmless."""
        self._query(
            "INSERT OR REPLACE INTO segments VALUES(?,?,?,?,?,?,?)",
            (
                segment.key,
                segment.parent,
                segment.fingerprint,
                segment.start,
                pack_tokens(segment.tokens),
                n_bytes,
                now,
            ),
        )

    def remove(self, keys: Iterable[bytes]) -> None:
        """Forget rows; unknown keys are ignored."""
        with self._lock:
            self._db.conn.executemany("DELETE FROM segments WHERE key = ?", [(key,) for key in keys])

    def touch(self, keys: Iterable[bytes], now: float) -> None:
        """Record a use."""
        with self._lock:
            self._db.conn.executemany("UPDATE segments SET last_used = ? WHERE key = ?", [(now, key) for key in keys])

    def remember_generation(self, fingerprint: bytes, fields_json: str) -> None:
        """Keep the readable fields behind a fingerprint, so that a miss can name the one that differs."""
        self._query("INSERT OR IGNORE INTO generations VALUES(?,?)", (fingerprint, fields_json))

    def other_generations(self, fingerprint: bytes) -> list[str]:
        """Fields (JSON) of generations that hold segments under another fingerprint."""
        rows = self._query(
            "SELECT fields FROM generations WHERE fingerprint != ? "
            "AND EXISTS(SELECT 1 FROM segments s WHERE s.fingerprint = generations.fingerprint)",
            (fingerprint,),
        )
        return [fields for (fields,) in rows]

    def total_bytes(self) -> int:
        """Bytes of all recorded segment files."""
        return int(self._query("SELECT COALESCE(SUM(bytes), 0) FROM segments")[0][0])

    def close(self) -> None:
        """Close the database."""
        self._db.conn.close()
