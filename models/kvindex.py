"""The index of KV segments: its own SQLite file, which holds nothing that the segment files do not."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.kvformat import SegmentId, pack_tokens, unpack_tokens
from models.sqlite import Database, sqlite3

# How long to wait for another process of the program that is writing.
_BUSY_S = 5.0

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
    try:
        return IndexRow(SegmentId(fingerprint, parent, start, unpack_tokens(tokens)), n_bytes, last_used)
    except (TypeError, ValueError) as exc:
        raise OSError(errno.EIO, "a row of the KV index is damaged") from exc


_COLUMNS = "parent, fingerprint, start, tokens, bytes, last_used"


class KvIndex:
    """Rows of stored segments. Safe to use from two threads of one process and from several processes.

    Every method raises OSError when the database cannot be used: locked, full or damaged.
    """

    def __init__(self, path: Path) -> None:
        """Open or create; a damaged file is replaced by an empty index (the segment files are still there)."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = threading.Lock()
        try:
            self._open(path)
        except sqlite3.OperationalError as exc:
            # Locked or unopenable is not damaged: another process may be using it.
            raise OSError(errno.EIO, f"the KV index cannot be opened ({exc})") from exc
        except sqlite3.DatabaseError:
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self._open(path)

    def _open(self, path: Path) -> None:
        path.touch(mode=0o600, exist_ok=True)
        connection = sqlite3.connect(str(path), check_same_thread=False, isolation_level=None, timeout=_BUSY_S)
        try:
            self._db = Database(connection)
            self._db.conn.execute("PRAGMA journal_mode=WAL")
            # Losing a row costs a prefill, so it need not wait for the disk.
            self._db.conn.execute("PRAGMA synchronous=NORMAL")
            self._db.conn.executescript(_SCHEMA)
        except sqlite3.Error:
            connection.close()
            raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One statement at a time; SQLite's errors become OSError here."""
        with self._lock:
            try:
                yield
            except sqlite3.Error as exc:
                raise OSError(errno.EIO, f"the KV index failed ({exc})") from exc

    def _query(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._locked():
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
        with self._locked():
            self._db.conn.executemany("DELETE FROM segments WHERE key = ?", [(key,) for key in keys])

    def touch(self, keys: Iterable[bytes], now: float) -> None:
        """Record a use."""
        with self._locked():
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
