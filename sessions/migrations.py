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


@migration(2)
def models_and_branches(db: Database) -> None:
    """Let a conversation name its model by content, hold branches, and have choices of its own.

    Token ids belong to a model: 0 stands for the one that the conversation will get. What was tokenized before models
    were told apart is taken to be of the model that answers next, if it has the name that was kept.
    """
    for statement in (
        """CREATE TABLE models (
            id INTEGER PRIMARY KEY,
            weights TEXT NOT NULL UNIQUE,
            name TEXT NOT NULL,
            path TEXT NOT NULL,
            n_bytes INTEGER NOT NULL
        )""",
        "ALTER TABLE sessions RENAME COLUMN model TO model_name",
        "ALTER TABLE sessions ADD COLUMN model_id INTEGER REFERENCES models (id)",
        "ALTER TABLE sessions ADD COLUMN head_id INTEGER",
        "ALTER TABLE sessions ADD COLUMN n_ctx INTEGER",
        "ALTER TABLE sessions ADD COLUMN reasoning TEXT NOT NULL DEFAULT 'keep' CHECK (reasoning IN ('keep', 'strip'))",
        "ALTER TABLE sessions ADD COLUMN sampling TEXT",  # a JSON object: {"preset", "given"}
        "ALTER TABLE sessions ADD COLUMN forked_from TEXT",
        "ALTER TABLE sessions ADD COLUMN pinned_at REAL",
        "ALTER TABLE sessions ADD COLUMN archived_at REAL",
        # No reference: deleting a long conversation would follow the chain, message by message.
        "ALTER TABLE messages ADD COLUMN parent_id INTEGER",
        """UPDATE messages SET parent_id = before.id FROM (
            SELECT id AS own, lag(id) OVER (PARTITION BY session_id ORDER BY id) AS id FROM messages
        ) AS before WHERE before.own = messages.id""",
        "UPDATE sessions SET head_id = (SELECT max(m.id) FROM messages m WHERE m.session_id = sessions.id)",
        "ALTER TABLE token_runs RENAME TO old_runs",
        """CREATE TABLE token_runs (
            message_id INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
            model_id INTEGER NOT NULL,
            body_start INTEGER NOT NULL,
            body_end INTEGER NOT NULL,
            ids BLOB NOT NULL
        )""",
        "CREATE UNIQUE INDEX runs_of_message ON token_runs (message_id, model_id)",
        "INSERT INTO token_runs SELECT message_id, 0, body_start, body_end, ids FROM old_runs",
        "DROP TABLE old_runs",
        """CREATE TABLE tags (
            session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
            tag TEXT NOT NULL,
            PRIMARY KEY (session_id, tag)
        ) WITHOUT ROWID""",
        "CREATE INDEX sessions_of_tag ON tags (tag)",
        # One for each message that was an end once: branches and forks keep what they begin with.
        "ALTER TABLE kv_tips RENAME TO old_tips",
        """CREATE TABLE kv_tips (
            session_id TEXT NOT NULL,
            message_id INTEGER NOT NULL,
            fingerprint TEXT NOT NULL,
            tip TEXT NOT NULL,
            PRIMARY KEY (session_id, message_id, fingerprint)
        ) WITHOUT ROWID""",
        """INSERT INTO kv_tips SELECT o.session_id, coalesce(s.head_id, 0), o.fingerprint, o.tip
            FROM old_tips o LEFT JOIN sessions s ON s.id = o.session_id""",
        "DROP TABLE old_tips",
        """CREATE TABLE drafts (
            session_id TEXT PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE,
            text TEXT NOT NULL
        ) WITHOUT ROWID""",
    ):
        db.execute(statement)


@migration(3)
def search(db: Database) -> None:
    """Note what the search index holds. The index is made when it is first used, and can always be made anew."""
    for statement in (
        # format: 0 until there is an index; mark: the last message in it; is_wiping: deleted words may still be in it
        """CREATE TABLE search_state (
            format INTEGER NOT NULL,
            mark INTEGER NOT NULL,
            is_wiping INTEGER NOT NULL
        )""",
        "INSERT INTO search_state VALUES (0, 0, 0)",
        # The titles as they are in the index, where each has the negative of its number.
        """CREATE TABLE search_titles (
            number INTEGER PRIMARY KEY,
            session_id TEXT NOT NULL UNIQUE,
            title TEXT NOT NULL
        )""",
        # Messages that are not in the index as they are now. An answer that went on is there as its first n_chars
        # characters; text is NULL then, and else what is there.
        """CREATE TABLE search_changed (
            message_id INTEGER PRIMARY KEY,
            n_chars INTEGER NOT NULL,
            text TEXT
        )""",
        """CREATE TRIGGER search_notes_change AFTER UPDATE OF text ON messages
            WHEN old.text != new.text AND old.id <= (SELECT mark FROM search_state)
            BEGIN
                INSERT OR IGNORE INTO search_changed VALUES (old.id, length(old.text),
                    CASE substr(new.text, 1, length(old.text)) WHEN old.text THEN NULL ELSE old.text END);
            END""",
    ):
        db.execute(statement)


@migration(4)
def prompt_library(db: Database) -> None:
    """Keep system prompts under names. Conversations have copies of their own."""
    db.execute(
        """CREATE TABLE system_prompts (
            name TEXT PRIMARY KEY,
            text TEXT NOT NULL,
            updated_at REAL NOT NULL
        ) WITHOUT ROWID"""
    )


@migration(5)
def task_policy(db: Database) -> None:
    """Keep what the judge of the task policy said of a message that was sent, and how task lines changed."""
    for statement in (
        # kind: same, other, unsure; version: of the judge's weights
        """CREATE TABLE verdicts (
            message_id INTEGER PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
            kind TEXT NOT NULL,
            score REAL,
            version INTEGER NOT NULL
        )""",
        """CREATE TABLE task_changes (
            id INTEGER PRIMARY KEY,
            session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
            changed_at REAL NOT NULL,
            before TEXT NOT NULL
        )""",
        "CREATE INDEX task_changes_of_session ON task_changes (session_id)",
    ):
        db.execute(statement)


@migration(6)
def attachments(db: Database) -> None:
    """Know which parts of a message came from files and pastes. The new conversation's draft has no conversation."""
    for statement in (
        # start and end count characters of the message's text, which holds the whole of what is attached
        """CREATE TABLE attachments (
            message_id INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
            name TEXT NOT NULL,
            start INTEGER NOT NULL,
            "end" INTEGER NOT NULL,
            sha256 TEXT NOT NULL,
            PRIMARY KEY (message_id, start)
        ) WITHOUT ROWID""",
        "ALTER TABLE drafts RENAME TO old_drafts",
        # attachments: a JSON array of [name, start, end, sha256]
        """CREATE TABLE drafts (
            session_id TEXT UNIQUE REFERENCES sessions (id) ON DELETE CASCADE,
            text TEXT NOT NULL,
            attachments TEXT NOT NULL
        )""",
        "INSERT INTO drafts SELECT session_id, text, '[]' FROM old_drafts",
        "DROP TABLE old_drafts",
    ):
        db.execute(statement)


@migration(7)
def drafts_of_windows(db: Database) -> None:
    """Let each window have drafts of its own, so that none writes over another's; the empty id is anybody's."""
    for statement in (
        "ALTER TABLE drafts RENAME TO old_drafts",
        """CREATE TABLE drafts (
            id INTEGER PRIMARY KEY,
            session_id TEXT REFERENCES sessions (id) ON DELETE CASCADE,
            window TEXT NOT NULL,
            text TEXT NOT NULL,
            attachments TEXT NOT NULL
        )""",
        "CREATE INDEX drafts_of_session ON drafts (session_id)",
        """INSERT INTO drafts (session_id, window, text, attachments)
            SELECT session_id, '', text, attachments FROM old_drafts""",
        "DROP TABLE old_drafts",
    ):
        db.execute(statement)


MIGRATIONS: tuple[Migration, ...] = (
    conversations,
    models_and_branches,
    search,
    prompt_library,
    task_policy,
    attachments,
    drafts_of_windows,
)
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
