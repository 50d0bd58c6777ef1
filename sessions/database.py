"""The database file `chat.db`: opening it, transactions, and what is said when the disk or the file fails.

One connection, used by one thread at a time. Raises `StoreError` (one sentence and a way out) for whatever happens.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from models.sqlite import Database, sqlite3
from sessions.errors import BadRequest, StoreError
from sessions.files import make_private_file, make_private_folder
from sessions.migrations import PAGE_BYTES, migrate

BUSY_S = 5.0
RESERVE_BYTES = 16 << 20
"""Disk space that conversations can count on while there is anything to delete for it."""

ELSEWHERE = "or choose another folder with --data-dir."

WAYS_OUT: Mapping[str, str] = {
    "SQLITE_FULL": "cannot be written because the disk is full: free some space and try again.",
    "SQLITE_READONLY": f"is read-only: make it writable, {ELSEWHERE}",
    "SQLITE_PERM": f"may not be used: change its permissions, {ELSEWHERE}",
    "SQLITE_CANTOPEN": f"cannot be opened: check its permissions, {ELSEWHERE}",
    "SQLITE_NOTADB": f"is not a database: move it away, {ELSEWHERE}",
    "SQLITE_CORRUPT": f"is damaged: move it away or restore a backup, {ELSEWHERE}",
    "SQLITE_BUSY": "is kept busy by another program: close that one and try again.",
    "SQLITE_IOERR": f"could not be read or written, so this was not saved: check the disk, {ELSEWHERE}",
}
"""What happened and what to do, by how SQLite's name for the error begins."""


class ChatDatabase:
    """The open database of a data folder, created when missing, readable by its owner only."""

    def __init__(
        self, data_dir: Path, *, make_room: Callable[[int], None] | None = None, may_only_read: bool = False
    ) -> None:
        """`make_room` frees so many bytes on a disk that runs full, of what is worth less than a message.

        With `may_only_read`, a database in a folder that cannot be written is opened all the same, for reading.
        """
        self.path = data_dir / "chat.db"
        self._make_room = make_room
        self.is_read_only = may_only_read and self.path.exists() and not is_writable(data_dir)
        """True if each write will be refused."""
        if self.is_read_only:
            with self.reporting():
                self._db = _connect_to_read(self.path)
                try:
                    migrate(self._db, self.path)
                except BaseException:
                    self._db.close()
                    raise
            return
        with self.reporting():
            self._keep_reserve()
            make_private_folder(data_dir)
            with _setup_lock(data_dir):
                make_private_file(self.path)
                self._db = _connect(self.path)
                try:
                    _configure(self._db)
                    migrate(self._db, self.path)
                except BaseException:
                    self._db.close()
                    raise

    def close(self) -> None:
        """Close the connection; the log is folded into the database file."""
        self._db.close()

    def copy_to_memory(self) -> None:
        """Go on with a copy that can be written and is forgotten in the end, for what computes by writing."""
        with self.reporting():
            copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._db.conn.backup(copy)
            self._db.close()
            self._db = Database(copy, execute_plugins=False)

    def rows(self, sql: str, *parameters: object) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        with self.reporting():
            return list(self._db.query(sql, parameters))

    def named_rows(self, sql: str, **parameters: object) -> list[dict[str, Any]]:
        """Return the rows of a query with named parameters."""
        with self.reporting():
            return list(self._db.query(sql, parameters))

    @contextmanager
    def transaction(self) -> Iterator[Database]:
        """Write: all of it, on disk, or nothing."""
        with self.reporting():
            self._keep_reserve()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.conn.in_transaction:  # some errors have already rolled back
                    self._db.execute("ROLLBACK")
                raise

    @property
    def version(self) -> int:
        """A number that changes when another connection, of this process or another, has written."""
        return int(next(iter(self.rows("PRAGMA data_version")[0].values())))

    def fold_log(self) -> None:
        """Fold the log into the database file and empty it, so that nothing deleted is left in either."""
        with self.reporting():
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Turn whatever the disk or the file does into a `StoreError`."""
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(_sentence(self.path, error)) from error
        except UnicodeError as error:
            raise BadRequest("The text has characters that cannot be stored: leave them out.") from error
        except Timeout as error:
            raise StoreError(f"{self.path} {WAYS_OUT['SQLITE_BUSY']}") from error
        except OSError as error:
            raise StoreError(
                f"{error.filename or self.path} cannot be used ({(error.strerror or str(error)).lower()}): "
                f"make room or change its permissions, {ELSEWHERE}"
            ) from error

    def _keep_reserve(self) -> None:
        """See that there is room for what is about to be said; failing that, the write itself will tell."""
        if self._make_room:
            with contextlib.suppress(OSError):
                if shutil.disk_usage(self.path.parent).free < RESERVE_BYTES:
                    self._make_room(RESERVE_BYTES)


def is_writable(folder: Path) -> bool:
    """False for a folder that takes no file of this user, such as one on a read-only file system."""
    return os.access(folder, os.W_OK)


def _setup_lock(data_dir: Path) -> FileLock:
    return FileLock(data_dir / "chat.db.lock", timeout=60, mode=0o600, thread_local=False, fallback_to_soft=False)


def _connect(path: Path) -> Database:
    # No plug-ins: what else is installed must not change how conversations are stored.
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    return Database(connection, execute_plugins=False)


def _connect_to_read(path: Path) -> Database:
    # SQLite reads a log only beside files that it may make. Without a log nothing is missing from the file itself, and
    # nobody here can write one: it may be taken as it is.
    log = path.with_name(path.name + "-wal")
    has_log = log.exists() and log.stat().st_size > 0
    address = f"{path.absolute().as_uri()}?mode=ro" + ("" if has_log else "&immutable=1")
    connection = sqlite3.connect(address, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    db = Database(connection, execute_plugins=False)
    for pragma in ("trusted_schema = OFF", "query_only = ON"):
        db.execute(f"PRAGMA {pragma}").fetchall()
    return db


def _configure(db: Database) -> None:
    for pragma in (
        "trusted_schema = OFF",
        f"page_size = {PAGE_BYTES}",  # counts for an empty file only
        "journal_mode = WAL",
        "synchronous = FULL",  # with NORMAL, a power cut loses messages already shown as saved
        "fullfsync = ON",  # macOS: fsync alone does not reach the disk
        "foreign_keys = ON",
        "secure_delete = ON",
    ):
        db.execute(f"PRAGMA {pragma}").fetchall()


def _sentence(path: Path, error: sqlite3.Error) -> str:
    name = str(getattr(error, "sqlite_errorname", ""))
    for prefix, way_out in WAYS_OUT.items():
        if name.startswith(prefix):
            return f"{path} {way_out}"
    return f"{path} cannot be used ({error}): choose another folder with --data-dir."
