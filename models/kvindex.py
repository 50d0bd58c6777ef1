"""The index of KV segments: its own SQLite file, which holds nothing of value that the segment files do not."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from models.kvformat import PARTS, Part, SegmentId, pack_tokens, unpack_tokens
from models.sqlite import Database, sqlite3

# How long to wait for another process of the program that is writing.
_BUSY_S = 5.0
_SCHEMA_VERSION = 2
# SQLite's names of what only a damaged file can lead to. Every statement here is right, so one that SQLite cannot make
# sense of (SQLITE_ERROR) met tables that are no longer ours.
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR", "SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_SCHEMA")

Loss = Literal["evicted", "damaged", "vanished"]

_SCHEMA = """
CREATE TABLE segments(
    key BLOB PRIMARY KEY, parent BLOB NOT NULL, fingerprint BLOB NOT NULL, owner BLOB NOT NULL,
    start INTEGER NOT NULL, n_tokens INTEGER NOT NULL,
    rows_bytes INTEGER NOT NULL, state_bytes INTEGER NOT NULL,
    last_used REAL NOT NULL, state_used REAL NOT NULL, loss TEXT, tokens BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX segments_parent ON segments(parent);
CREATE INDEX segments_outline ON segments(
    fingerprint, rows_bytes, state_bytes, last_used, state_used, parent, owner, n_tokens, loss
);
CREATE TABLE written(day TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE marks(name TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
"""


class IndexDamaged(OSError):
    """The database file itself is damaged: the index has to be made anew from the segment files."""

    def __init__(self, detail: object) -> None:
        super().__init__(errno.EIO, f"the KV index is damaged ({detail})")


@dataclass(frozen=True, slots=True)
class IndexRow:
    """One segment: its place, the sizes of its files (bytes, 0: not there), why it has none, its last use (epoch s).

    A lost segment keeps its row: it says why a later lookup ends there, and holds its chain together.
    """

    segment: SegmentId
    rows_bytes: int
    state_bytes: int
    last_used: float
    loss: Loss | None = None

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return self.rows_bytes + self.state_bytes


@dataclass(frozen=True, slots=True)
class Outline:
    """A row without its tokens: what eviction and statistics need of every segment."""

    key: bytes
    parent: bytes
    fingerprint: bytes
    owner: bytes
    n_tokens: int
    rows_bytes: int
    state_bytes: int
    last_used: float
    state_used: float
    loss: Loss | None

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return self.rows_bytes + self.state_bytes


def _row(row: tuple[Any, ...]) -> IndexRow:
    parent, fingerprint, start, tokens, rows_bytes, state_bytes, last_used, loss = row
    try:
        if loss is not None and loss not in get_args(Loss):
            raise ValueError(loss)
        segment = SegmentId(fingerprint, parent, start, unpack_tokens(tokens))
        return IndexRow(segment, int(rows_bytes), int(state_bytes), float(last_used), loss)
    except (TypeError, ValueError) as exc:
        raise OSError(errno.EIO, "a row of the KV index is damaged") from exc


_COLUMNS = "parent, fingerprint, start, tokens, rows_bytes, state_bytes, last_used, loss"
_OUTLINE = "key, parent, fingerprint, owner, n_tokens, rows_bytes, state_bytes, last_used, state_used, loss"
# SQLite stores any kind of value in any column; these are the kinds that are written here.
_IS_SOUND = " AND ".join(
    [
        *(f"typeof({name}) = 'blob'" for name in ("key", "parent", "fingerprint", "owner")),
        *(f"typeof({name}) = 'integer' AND {name} >= 0" for name in ("n_tokens", "rows_bytes", "state_bytes")),
        *(f"typeof({name}) = 'real'" for name in ("last_used", "state_used")),
        "length(key) = 32",
        f"(loss IS NULL OR loss IN {get_args(Loss)})",
    ]
)
# A number whatever is stored there.
_TOTAL = "CAST(SUM(rows_bytes + state_bytes) AS INTEGER)"
_IS_WHOLE = f"{_IS_SOUND} AND typeof(start) = 'integer' AND typeof(tokens) = 'blob' AND length(tokens) = 4 * n_tokens"


class KvIndex:
    """Rows of segments. Safe to use from two threads of one process and from several processes.

    Every method raises OSError when the database cannot be used: locked, full or damaged.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Open or create. One that is damaged or of an older version is replaced by an empty one.

        `is_new` then tells that it has to be filled from the files. Raises OSError also for one of a newer version.
        With `read_only` nothing on disk changes: in place of a missing or older one, an empty one in memory is opened,
        and a damaged one is an OSError.
        """
        self._lock = threading.Lock()
        self.is_new = False
        if read_only:
            self._open_to_read(path)
            return
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.is_dir():
            discard_index(path)
        try:
            self._open(path)
        except (sqlite3.Error, UnicodeDecodeError, _Outdated) as exc:
            if isinstance(exc, sqlite3.OperationalError) and not _is_damage(exc):
                # Locked or unopenable is not damaged: another process may be using it.
                raise OSError(errno.EIO, f"the KV index cannot be opened ({exc})") from exc
            discard_index(path)
            self._open(path)

    def _open(self, path: Path) -> None:
        path.touch(mode=0o600, exist_ok=True)
        connection = sqlite3.connect(str(path), check_same_thread=False, isolation_level=None, timeout=_BUSY_S)
        try:
            self._db = Database(connection)
            execute = self._db.conn.execute
            execute("PRAGMA journal_mode=WAL")
            # Losing a row costs a prefill, so it need not wait for the disk.
            execute("PRAGMA synchronous=NORMAL")
            # What a deleted conversation's tokens were must not stay in free pages.
            execute("PRAGMA secure_delete=ON")
            execute("BEGIN IMMEDIATE")
            (version,) = execute("PRAGMA user_version").fetchone()
            if version > _SCHEMA_VERSION:
                raise OSError(errno.EIO, "the KV index was made by a newer version of this program")
            if version < _SCHEMA_VERSION:
                if execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
                    raise _Outdated
                for statement in _SCHEMA.split(";"):
                    execute(statement)
                execute(f"PRAGMA user_version={_SCHEMA_VERSION}")
                self.is_new = True
            execute("COMMIT")
        except (sqlite3.Error, OSError, UnicodeDecodeError, _Outdated):
            connection.close()
            raise

    def _open_to_read(self, path: Path) -> None:
        try:
            if path.exists():
                # An absolute path: a URI has no other.
                uri = f"{path.absolute().as_uri()}?mode=ro"
                self._db = Database(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_S))
                try:
                    (version,) = self._db.conn.execute("PRAGMA user_version").fetchone()
                    if version > _SCHEMA_VERSION:
                        raise OSError(errno.EIO, "the KV index was made by a newer version of this program")
                    self._db.conn.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
                except (sqlite3.Error, OSError):
                    self._db.conn.close()
                    raise
                if version == _SCHEMA_VERSION:
                    return
                self._db.conn.close()
            self._db = Database(sqlite3.connect(":memory:", isolation_level=None))
            self.is_new = True
            for statement in _SCHEMA.split(";"):
                self._db.conn.execute(statement)
        except (sqlite3.Error, UnicodeDecodeError) as exc:
            raise OSError(errno.EIO, f"the KV index cannot be read ({exc})") from exc

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One statement at a time; SQLite's errors become OSError here."""
        with self._lock:
            try:
                yield
            except (sqlite3.Error, UnicodeDecodeError) as exc:
                if _is_damage(exc):
                    raise IndexDamaged(exc) from exc
                raise OSError(errno.EIO, f"the KV index failed ({exc})") from exc

    def check(self) -> None:
        """Read the whole database file. Raises `IndexDamaged`."""
        found = self._query("PRAGMA integrity_check(1)")
        if found != [("ok",)]:
            raise IndexDamaged(found[0][0] if found else "no answer")

    def _query(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._locked():
            return list(self._db.conn.execute(sql, parameters).fetchall())

    def _many(self, sql: str, parameters: Iterable[tuple[Any, ...]]) -> None:
        with self._locked():
            self._db.conn.execute("BEGIN IMMEDIATE")
            try:
                self._db.conn.executemany(sql, parameters)
            except BaseException:
                self._db.conn.execute("ROLLBACK")
                raise
            self._db.conn.execute("COMMIT")

    # --- segments ---

    def children(self, parent: bytes) -> list[IndexRow]:
        """Segments that continue the chain ending in `parent`, lost ones included."""
        return [_row(r) for r in self._query(f"SELECT {_COLUMNS} FROM segments WHERE parent = ?", (parent,))]  # noqa: S608 - constant columns

    def get(self, key: bytes) -> IndexRow | None:
        """The segment of this key."""
        rows = self._query(f"SELECT {_COLUMNS} FROM segments WHERE key = ?", (key,))  # noqa: S608 - constant columns
        return _row(rows[0]) if rows else None

    def add(self, segment: SegmentId, owner: bytes, part: Part, n_bytes: int, now: float) -> None:
        """Record a published file; adding it twice is harmless."""
        column = _size_column(part)
        values = (
            segment.key,
            segment.parent,
            segment.fingerprint,
            owner,
            segment.start,
            len(segment.tokens),
            n_bytes,
            now,
            now,
            pack_tokens(segment.tokens),
        )
        other = "state_bytes" if part == "rows" else "rows_bytes"
        self._query(
            f"INSERT INTO segments(key, parent, fingerprint, owner, start, n_tokens, {column}, {other}, last_used, "
            "state_used, loss, tokens) VALUES(?,?,?,?,?,?,?,0,?,?,NULL,?) "
            f"ON CONFLICT(key) DO UPDATE SET {column} = excluded.{column}, loss = NULL, last_used = excluded.last_used",
            values,
        )

    def lose(self, parts: Sequence[tuple[bytes, Part]], loss: Loss) -> None:
        """Record that files are gone, and why; unknown keys are ignored."""
        for part in PARTS:
            column = _size_column(part)
            keys = [(loss, key) for key, lost in parts if lost == part]
            if keys:
                self._many(f"UPDATE segments SET {column} = 0, loss = ? WHERE key = ?", keys)  # noqa: S608 - constant columns

    def remove(self, keys: Iterable[bytes]) -> None:
        """Forget rows and why they were lost; unknown keys are ignored."""
        self._many("DELETE FROM segments WHERE key = ?", [(key,) for key in keys])

    def remove_generation(self, fingerprint: bytes) -> None:
        """Forget all rows of a generation."""
        self._query("DELETE FROM segments WHERE fingerprint = ?", (fingerprint,))

    def touch(self, keys: Iterable[bytes], now: float, *, state: bytes | None = None) -> None:
        """Record a use, and that `state` was the one restored from."""
        self._many("UPDATE segments SET last_used = ? WHERE key = ?", [(now, key) for key in keys])
        if state is not None:
            self._query("UPDATE segments SET state_used = ? WHERE key = ?", (now, state))

    def outlines(self) -> list[Outline]:
        """Every row without its tokens; rows that are no rows of ours are left out."""
        return [Outline(*row) for row in self._query(f"SELECT {_OUTLINE} FROM segments WHERE {_IS_SOUND}")]  # noqa: S608 - constants

    def n_damaged_rows(self) -> int:
        """How many rows have values of a kind that nobody writes."""
        return int(self._query(f"SELECT COUNT(*) FROM segments WHERE NOT ({_IS_WHOLE})")[0][0])  # noqa: S608 - constants

    def drop_damaged_rows(self) -> None:
        """Forget them: their files, if there are any, can be taken in again."""
        self._query(f"DELETE FROM segments WHERE NOT ({_IS_WHOLE})")  # noqa: S608 - constants

    def total_bytes(self) -> int:
        """Bytes of all recorded files."""
        return int(self._query(f"SELECT COALESCE({_TOTAL}, 0) FROM segments")[0][0])  # noqa: S608 - constants

    def generations(self) -> dict[bytes, int]:
        """Bytes by fingerprint, of generations that have rows."""
        sql = f"SELECT fingerprint, {_TOTAL} FROM segments WHERE typeof(fingerprint) = 'blob' GROUP BY fingerprint"  # noqa: S608 - constants
        return {bytes(fingerprint): int(n) for fingerprint, n in self._query(sql)}

    def drop_lost_leaves(self, n_kept: int) -> None:
        """Forget all but the newest `n_kept` lost segments that nothing hangs on: their reasons have been told."""
        self._query(
            "DELETE FROM segments WHERE key IN (SELECT key FROM segments s WHERE rows_bytes = 0 AND state_bytes = 0 "
            "AND NOT EXISTS(SELECT 1 FROM segments c WHERE c.parent = s.key) "
            "ORDER BY last_used DESC LIMIT -1 OFFSET ?)",
            (n_kept,),
        )

    # --- counters ---

    def count_written(self, day: str, n_bytes: int) -> None:
        """Add to the bytes written on a day (ISO date)."""
        self._query(
            "INSERT INTO written VALUES(?,?) ON CONFLICT(day) DO UPDATE SET bytes = bytes + excluded.bytes",
            (day, n_bytes),
        )

    def written(self, day: str | None = None) -> int:
        """Bytes written on a day, or ever."""
        if day is None:
            return int(self._query("SELECT COALESCE(CAST(SUM(bytes) AS INTEGER), 0) FROM written")[0][0])
        rows = self._query("SELECT CAST(bytes AS INTEGER) FROM written WHERE day = ?", (day,))
        return int(rows[0][0]) if rows else 0

    def mark(self, name: str, at: float) -> None:
        """Remember when something was done."""
        self._query("INSERT OR REPLACE INTO marks VALUES(?,?)", (name, at))

    def marked(self, name: str) -> float:
        """When something was done last (epoch s), 0 if never."""
        rows = self._query("SELECT CAST(at AS REAL) FROM marks WHERE name = ?", (name,))
        return float(rows[0][0]) if rows else 0.0

    def checkpoint(self) -> None:
        """Empty the write-ahead log, which may still hold what was deleted."""
        self._query("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the database; whoever uses it at this moment finishes first."""
        with self._lock:
            self._db.conn.close()


def _is_damage(exc: Exception) -> bool:
    """True for what only a damaged file can lead to; bytes that are no text come from SQLite's own tables."""
    name = str(getattr(exc, "sqlite_errorname", ""))
    return isinstance(exc, UnicodeDecodeError) or name.startswith(_DAMAGE)


def discard_index(path: Path) -> None:
    """Delete the database, or whatever lies in its place. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


class _Outdated(Exception):
    """The index has the tables of an older version."""


def _size_column(part: Part) -> str:
    return "rows_bytes" if part == "rows" else "state_bytes"
