"""Conversations in SQLite: rows to values and back. A write is one transaction, on disk when its call ends.

One connection, used by one thread at a time; calls take milliseconds. Raises `StoreError` (one sentence and a
way out) for whatever the disk or the database file does.
"""

from __future__ import annotations

# ruff: noqa: S608 - SQL is put together from constants of this module only
import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from models.engine import Role, TokenRun, TurnStats
from models.sqlite import Database, sqlite3
from sessions.conversation import Message, MessageStatus, Session, SessionState, SessionSummary
from sessions.errors import BadRequest, SessionNotFound, StoreError
from sessions.files import make_private_file, make_private_folder
from sessions.migrations import PAGE_BYTES, migrate
from sessions.rows import (
    MESSAGE_COLUMNS,
    SESSION_COLUMNS,
    ids_to_blob,
    new_session_id,
    stats_to_json,
    to_message,
    to_session,
)

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


class Store:
    """The database `chat.db` in a data folder, created when missing, readable by its owner only."""

    def __init__(
        self, data_dir: Path, *, clock: Callable[[], float] = time.time, make_room: Callable[[int], None] | None = None
    ) -> None:
        """`make_room` frees so many bytes on a disk that runs full, of what is worth less than a message."""
        self.path = data_dir / "chat.db"
        self._clock = clock
        self._make_room = make_room
        with self._reporting():
            self._keep_reserve()
            make_private_folder(data_dir)
            make_private_folder(self.journal_dir)
            with _setup_lock(data_dir):
                make_private_file(self.path)
                self._db = _connect(self.path)
                try:
                    _configure(self._db)
                    migrate(self._db, self.path)
                except BaseException:
                    self._db.close()
                    raise

    @property
    def journal_dir(self) -> Path:
        """Where answers are journalled while they stream."""
        return self.path.parent / "journal"

    def close(self) -> None:
        """Close the connection; the log is folded into the database file."""
        self._db.close()

    # --- conversations ---

    def create_session(self, *, system: str | None = None) -> Session:
        """Add an empty conversation, with its system prompt as first message if there is one."""
        now = self._clock()
        session_id = new_session_id(now)
        with self._transaction() as db:
            db.execute(
                """INSERT INTO sessions (id, title, task, state, created_at, updated_at)
                    VALUES (?, '', '', 'open', ?, ?)""",
                [session_id, now, now],
            )
            if system is not None:
                self._insert_message(session_id, "system", system, "complete")
        return self.session(session_id)

    def session(self, session_id: str) -> Session:
        """Return a conversation, in the trash or not. Raises `SessionNotFound`."""
        rows = self._rows(f"SELECT {SESSION_COLUMNS} FROM sessions s WHERE s.id = ?", session_id)
        if not rows:
            raise SessionNotFound(f"There is no conversation {session_id}.")
        return to_session(rows[0])

    def has_session(self, session_id: str) -> bool:
        """True unless the conversation was deleted for good."""
        return bool(self._rows("SELECT 1 AS one FROM sessions WHERE id = ?", session_id))

    def find(self, prefix: str) -> Session:
        """Return the one conversation whose id begins so. Raises `SessionNotFound`, `BadRequest`."""
        prefix = prefix.strip().lower()
        if not prefix:
            raise SessionNotFound("An empty id names no conversation.")
        rows = self._rows(
            f"SELECT {SESSION_COLUMNS} FROM sessions s WHERE substr(s.id, 1, ?) = ? LIMIT 2",
            len(prefix),
            prefix,
        )
        if len(rows) > 1:
            raise BadRequest(f"More than one conversation begins with {prefix!r}: give more of its id.")
        if not rows:
            raise SessionNotFound(f"There is no conversation {prefix!r}: `chatapp sessions list` shows all.")
        return to_session(rows[0])

    def summaries(self, *, limit: int = 200, trash: bool = False) -> list[SessionSummary]:
        """Return conversations, last used first: those in the trash, or those that are not."""
        rows = self._rows(
            f"""SELECT {SESSION_COLUMNS},
                (SELECT count(*) FROM messages m WHERE m.session_id = s.id AND m.role != 'system')
                    AS n_messages,
                (SELECT coalesce(sum(length(r.ids)) / 4, 0)
                    FROM messages m JOIN token_runs r ON r.message_id = m.id WHERE m.session_id = s.id)
                    AS n_tokens
                FROM sessions s WHERE (s.trashed_at IS NOT NULL) = ?
                ORDER BY s.updated_at DESC, s.id DESC LIMIT ?""",
            trash,
            limit,
        )
        return [SessionSummary(to_session(row), row["n_messages"], row["n_tokens"]) for row in rows]

    def rename(self, session_id: str, title: str) -> Session:
        """Give a conversation another title."""
        return self._change(session_id, "title", title)

    def set_state(self, session_id: str, state: SessionState) -> Session:
        """Mark a conversation open or done."""
        return self._change(session_id, "state", state)

    def set_trashed(self, session_id: str, *, trashed: bool) -> Session:
        """Move a conversation to the trash, or back."""
        return self._change(session_id, "trashed_at", self._clock() if trashed else None)

    def set_system(self, session_id: str, text: str) -> Session:
        """Give an empty conversation its system prompt."""
        with self._transaction():
            self._insert_message(session_id, "system", text, "complete")
        return self.session(session_id)

    # --- messages ---

    def messages(self, session_id: str) -> list[Message]:
        """Return all messages, oldest first, the system prompt included."""
        return [
            to_message(row)
            for row in self._rows(
                f"""SELECT {MESSAGE_COLUMNS} FROM messages m LEFT JOIN token_runs r ON r.message_id = m.id
                    LEFT JOIN answer_stats a ON a.message_id = m.id
                    WHERE m.session_id = ? ORDER BY m.id""",
                session_id,
            )
        ]

    def add_question(self, session_id: str, text: str, *, title: str) -> Message:
        """Add a user message; `title` becomes title and task line of a conversation that has none yet."""
        with self._transaction() as db:
            message = self._insert_message(session_id, "user", text, "complete")
            db.execute(
                """UPDATE sessions SET updated_at = ?, title = CASE title WHEN '' THEN ? ELSE title END,
                    task = CASE task WHEN '' THEN ? ELSE task END WHERE id = ?""",
                [message.created_at, title, title, session_id],
            )
        return message

    def add_answer(
        self,
        session_id: str,
        text: str,
        status: MessageStatus,
        *,
        run: TokenRun | None,
        stats: TurnStats | None = None,
        runs: Mapping[int, TokenRun] | None = None,
        model: str | None = None,
    ) -> Message:
        """Add an answer and, in the same transaction, the token runs of the messages it answers."""
        with self._transaction() as db:
            message = self._insert_message(session_id, "assistant", text, status)
            self._insert_runs({**(runs or {}), **({message.id: run} if run else {})})
            if stats:
                db.execute("INSERT INTO answer_stats VALUES (?, ?)", [message.id, stats_to_json(stats)])
            db.execute(
                "UPDATE sessions SET updated_at = ?, model = coalesce(?, model) WHERE id = ?",
                [message.created_at, model, session_id],
            )
        return Message(message.id, session_id, "assistant", text, status, run, stats, message.created_at)

    def add_runs(self, runs: Mapping[int, TokenRun]) -> None:
        """Keep the token runs of messages that had none."""
        with self._transaction():
            self._insert_runs(runs)

    def mark_failed(self, message_id: int) -> None:
        """Mark a question the engine could not take."""
        with self._transaction() as db:
            db.execute("UPDATE messages SET status = 'failed' WHERE id = ?", [message_id])

    # --- KV ---

    def record_kv(self, session_id: str, *, fingerprint: str, tip: str | None) -> None:
        """Keep the key (hex) of a conversation's newest KV segment, so that deleting finds it."""
        known = "SELECT 1 FROM kv_tips WHERE session_id = ? AND fingerprint = ? AND tip = ?"
        if tip is None or self._rows(known, session_id, fingerprint, tip):
            return
        with self._transaction() as db:
            db.execute(
                """INSERT INTO kv_tips VALUES (?, ?, ?)
                    ON CONFLICT (session_id, fingerprint) DO UPDATE SET tip = excluded.tip""",
                [session_id, fingerprint, tip],
            )

    def record_kv_bytes(self, answer_id: int, n_bytes: int) -> None:
        """Keep what an answer's turn wrote to the KV store."""
        with self._transaction() as db:
            db.execute(
                "UPDATE answer_stats SET stats = json_set(stats, '$.kv_bytes_written', ?) WHERE message_id = ?",
                [n_bytes, answer_id],
            )

    def kv_tips(self) -> dict[str, list[tuple[str, str]]]:
        """Return (fingerprint, KV tip), both hex, of each conversation that has any, in the trash or not, by its id."""
        found: dict[str, list[tuple[str, str]]] = {}
        rows = "SELECT session_id, fingerprint, tip FROM kv_tips WHERE session_id IN (SELECT id FROM sessions)"
        for row in self._rows(rows):
            found.setdefault(row["session_id"], []).append((row["fingerprint"], row["tip"]))
        return found

    def tips(self) -> tuple[list[str], list[str]]:
        """Return the KV tips (hex) of deleted conversations, and those of all others."""
        rows = self._rows("SELECT tip, session_id IN (SELECT id FROM sessions) AS is_alive FROM kv_tips ORDER BY tip")
        dead = [row["tip"] for row in rows if not row["is_alive"]]
        return dead, [row["tip"] for row in rows if row["is_alive"]]

    # --- deleting for good ---

    def purge(self, session_id: str) -> None:
        """Delete a conversation and every trace of its text; its KV tips stay until `forget_dead_tips`."""
        with self._transaction() as db:
            deleted = db.execute("DELETE FROM sessions WHERE id = ?", [session_id]).rowcount
        if not deleted:
            raise SessionNotFound(f"There is no conversation {session_id}.")
        with self._reporting():
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            for backup in self.path.parent.glob(f"{self.path.name}.v*.bak"):
                backup.unlink(missing_ok=True)

    def forget_dead_tips(self) -> None:
        """Drop the tips of deleted conversations, once their KV is gone."""
        with self._transaction() as db:
            db.execute("DELETE FROM kv_tips WHERE session_id NOT IN (SELECT id FROM sessions)")

    # --- inside ---

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(_sentence(self.path, error)) from error
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

    @contextmanager
    def _transaction(self) -> Iterator[Database]:
        with self._reporting():
            self._keep_reserve()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.conn.in_transaction:  # some errors have already rolled back
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, sql: str, *parameters: object) -> list[dict[str, Any]]:
        with self._reporting():
            return list(self._db.query(sql, parameters))

    def _change(self, session_id: str, column: str, value: object) -> Session:
        with self._transaction() as db:
            db.execute(f"UPDATE sessions SET {column} = ? WHERE id = ?", [value, session_id])
        return self.session(session_id)

    def _insert_message(self, session_id: str, role: Role, text: str, status: MessageStatus) -> Message:
        now = self._clock()
        cursor = self._db.execute(
            "INSERT INTO messages (session_id, role, status, created_at, text) VALUES (?, ?, ?, ?, ?)",
            [session_id, role, status, now, text],
        )
        assert cursor.lastrowid is not None, "an insert has a row id"
        return Message(cursor.lastrowid, session_id, role, text, status, None, None, now)

    def _insert_runs(self, runs: Mapping[int, TokenRun]) -> None:
        for message_id, run in runs.items():
            self._db.execute(
                "INSERT OR IGNORE INTO token_runs VALUES (?, ?, ?, ?)",
                [message_id, run.body_start, run.body_end, ids_to_blob(run.ids)],
            )


def _setup_lock(data_dir: Path) -> FileLock:
    return FileLock(data_dir / "chat.db.lock", timeout=60, mode=0o600, thread_local=False, fallback_to_soft=False)


def _connect(path: Path) -> Database:
    # No plug-ins: what else is installed must not change how conversations are stored.
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    return Database(connection, execute_plugins=False)


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
