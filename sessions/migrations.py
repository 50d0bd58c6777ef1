"""The database's shape, as numbered steps from an empty file to today's."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from models.sqlite import Database, sqlite3
from sessions.errors import StoreError, StoreTooNew
from sessions.files import make_private_file, sync_folder

PAGE_BYTES = 2048
"""A turn touches about ten pages, and each goes to the log as a whole: larger ones write more for nothing."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step: brings a database from version `number - 1` to `number`, inside a transaction."""

    number: int
    apply: Callable[[Database], None]


def migration(number: int) -> Callable[[Callable[[Database], None]], Migration]:
    """Mark a function as the step to version `number`."""
    return lambda apply: Migration(number, apply)


@migration(1)
def conversations(db: Database) -> None:
    """Make the first tables. Rows with text or tokens are written once; what changes stands in small rows."""
    for statement in (
        """CREATE TABLE sessions (
            id TEXT PRIMARY KEY,
            title TEXT NOT NULL,
            task TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('open', 'done')),
            model TEXT,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            trashed_at REAL
        ) WITHOUT ROWID""",
        """CREATE TABLE messages (
            id INTEGER PRIMARY KEY,
            session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
            role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
            status TEXT NOT NULL CHECK (status IN ('complete', 'stopped', 'cut', 'interrupted', 'failed')),
            created_at REAL NOT NULL,
            text TEXT NOT NULL
        )""",
        "CREATE INDEX messages_of_session ON messages (session_id, role)",
        # ids: unsigned 32-bit little-endian numbers
        """CREATE TABLE token_runs (
            message_id INTEGER PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
            body_start INTEGER NOT NULL,
            body_end INTEGER NOT NULL,
            ids BLOB NOT NULL
        )""",
        # stats: a JSON object, the fields of models.engine.TurnStats that are known
        """CREATE TABLE answer_stats (
            message_id INTEGER PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
            stats TEXT NOT NULL
        )""",
        # No reference to sessions: the row of a deleted conversation stays until its KV files are gone too.
        """CREATE TABLE kv_tips (
            session_id TEXT NOT NULL,
            fingerprint TEXT NOT NULL,
            tip TEXT NOT NULL,
            PRIMARY KEY (session_id, fingerprint)
        ) WITHOUT ROWID""",
    ):
        db.execute(statement)


MIGRATIONS: tuple[Migration, ...] = (conversations,)
"""All steps in order; a step that was once released never changes."""


def version_of(db: Database) -> int:
    """Return the number of the last step the database has taken."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def migrate(db: Database, path: Path, steps: tuple[Migration, ...] = MIGRATIONS) -> None:
    """Bring an open database up to date; the caller holds the store's setup lock.

    A database that holds something is copied to `<name>.v<version>.bak` first. Killed at any point, each step
    is there as a whole or not at all. Raises `StoreTooNew` for a database of a later version, `StoreError`
    for one of another program.
    """
    version = version_of(db)
    if not version and db.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise StoreError(f"{path} belongs to another program: choose another folder with --data-dir.")
    if version > steps[-1].number:
        raise StoreTooNew(
            f"{path} was written by a newer chatapp (format {version}, this one knows {steps[-1].number}): "
            "upgrade chatapp, or choose another folder with --data-dir."
        )
    pending = [step for step in steps if step.number > version]
    if pending and version:
        back_up(db, path.with_name(f"{path.name}.v{version}.bak"))
    for step in pending:
        db.execute("BEGIN IMMEDIATE")
        try:
            step.apply(db)
            db.execute(f"PRAGMA user_version = {step.number:d}")
            db.execute("COMMIT")
        except BaseException:
            if db.conn.in_transaction:
                db.execute("ROLLBACK")
            raise


def back_up(db: Database, path: Path) -> None:
    """Copy a database, its log included, to a file that appears whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    make_private_file(temporary)
    with closing(sqlite3.connect(temporary)) as copy:
        db.conn.backup(copy)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)
