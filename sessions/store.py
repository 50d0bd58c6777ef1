"""Conversations in SQLite: rows to values and back. A write is one transaction, on disk when its call ends.

A conversation is a tree of messages: each knows the one before it, and `head` is the last of the branch that is
shown. Calls take milliseconds. Raises `StoreError` (one sentence and a way out) for whatever the disk or the file does.
"""

from __future__ import annotations

# ruff: noqa: S608 - SQL is put together from constants of this module only
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from models.engine import Role, TokenRun, TurnStats
from models.presets import SamplingChoice
from models.sqlite import Database
from sessions.conversation import (
    Attachment,
    Draft,
    Message,
    MessageStatus,
    ModelRef,
    ReasoningPolicy,
    Session,
    SessionState,
    SessionSummary,
    Version,
)
from sessions.database import ChatDatabase
from sessions.drafts import NOBODY, drafts_of, keep, newest_drafts
from sessions.errors import BadRequest, SessionNotFound
from sessions.files import make_private_folder
from sessions.forks import fork_title
from sessions.hygiene import tidy
from sessions.overview import Wanted, summaries
from sessions.rows import (
    INSERT_ATTACHMENT,
    MESSAGE_COLUMNS,
    SESSION_COLUMNS,
    SESSION_TABLES,
    attachment_values,
    choice_to_json,
    ids_to_blob,
    new_session_id,
    stats_to_json,
    to_message,
    to_session,
)
from sessions.search import Page, Search
from sessions.wordindex import WordIndex

_BRANCH = """WITH RECURSIVE branch (id, parent_id) AS (
    SELECT id, parent_id FROM messages WHERE id = ?
    UNION ALL SELECT m.id, m.parent_id FROM messages m JOIN branch b ON m.id = b.parent_id
)"""
"""The messages from the one whose id is the first parameter back to the first one."""


class Store:
    """The conversations of a data folder."""

    def __init__(
        self,
        data_dir: Path,
        *,
        clock: Callable[[], float] = time.time,
        make_room: Callable[[int], None] | None = None,
        may_only_read: bool = False,
    ) -> None:
        """`make_room` frees so many bytes on a disk that runs full, of what is worth less than a message.

        With `may_only_read`, a folder that cannot be written is opened for reading: each write raises `StoreError`.
        """
        self._make_room = make_room
        self.db = ChatDatabase(data_dir, make_room=make_room, may_only_read=may_only_read)
        self.words = WordIndex(self.db)
        self._search = Search(self.db, self.words, clock=clock)
        self._clock = clock
        if not self.db.is_read_only:
            with self.db.reporting():
                make_private_folder(self.journal_dir)

    @property
    def path(self) -> Path:
        """The database file."""
        return self.db.path

    @property
    def journal_dir(self) -> Path:
        """Where answers are journalled while they stream."""
        return self.path.parent / "journal"

    def beside(self) -> Store:
        """Open the same conversations over a connection of their own, for another thread."""
        return Store(self.path.parent, clock=self._clock, make_room=self._make_room)

    def close(self) -> None:
        """Close the connection; the log is folded into the database file."""
        self.db.close()

    # --- conversations ---

    def create_session(self, *, system: str | None = None, reasoning: ReasoningPolicy = "keep") -> Session:
        """Add an empty conversation, with its system prompt as first message if there is one."""
        now = self._clock()
        session_id = new_session_id(now)
        with self.db.transaction() as db:
            db.execute(
                """INSERT INTO sessions (id, title, task, state, created_at, updated_at, reasoning)
                    VALUES (?, '', '', 'open', ?, ?, ?)""",
                [session_id, now, now, reasoning],
            )
            if system is not None:
                self._insert_message(db, session_id, None, "system", system, "complete")
        return self.session(session_id)

    def session(self, session_id: str) -> Session:
        """Return a conversation, in the trash or not. Raises `SessionNotFound`."""
        rows = self.db.rows(f"SELECT {SESSION_COLUMNS} FROM {SESSION_TABLES} WHERE s.id = ?", session_id)
        if not rows:
            raise SessionNotFound(f"There is no conversation {session_id}.")
        return to_session(rows[0])

    def has_session(self, session_id: str) -> bool:
        """True unless the conversation was deleted for good."""
        return bool(self.db.rows("SELECT 1 AS one FROM sessions WHERE id = ?", session_id))

    def find(self, prefix: str) -> Session:
        """Return the one conversation whose id begins so; `last` is the last used one.

        Raises `SessionNotFound`, `BadRequest`.
        """
        prefix = tidy(prefix)[0].strip().lower()
        if prefix == "last":
            newest = "SELECT id FROM sessions WHERE trashed_at IS NULL ORDER BY updated_at DESC, id DESC LIMIT 1"
            rows = self.db.rows(newest)
            if not rows:
                raise SessionNotFound("There is no conversation yet.")
            return self.session(rows[0]["id"])
        if not prefix:
            raise SessionNotFound("An empty id names no conversation.")
        rows = self.db.rows(
            f"SELECT {SESSION_COLUMNS} FROM {SESSION_TABLES} WHERE substr(s.id, 1, ?) = ? LIMIT 2",
            len(prefix),
            prefix,
        )
        if len(rows) > 1:
            raise BadRequest(f"More than one conversation begins with {prefix!r}: give more of its id.")
        if not rows:
            raise SessionNotFound(f"There is no conversation {prefix!r}: `chatapp sessions list` shows all.")
        return to_session(rows[0])

    def summaries(
        self,
        wanted: Wanted = Wanted(),  # noqa: B008 - frozen
        *,
        limit: int = 200,
        trash: bool = False,
        after: SessionSummary | None = None,
    ) -> list[SessionSummary]:
        """Return conversations, pinned ones first, then by last use: at most `limit`, those behind `after`.

        `trash` is short for those in the trash.
        """
        return summaries(self.db, replace(wanted, is_trashed=wanted.is_trashed or trash), limit=limit, after=after)

    def search(self, query: str, *, limit: int = 20, offset: int = 0) -> Page:
        """Return the messages and titles that match, best first; what is new is indexed first, within limits."""
        return self._search.search(query, limit=limit, offset=offset)

    def rename(self, session_id: str, title: str) -> Session:
        """Give a conversation another title."""
        return self._change(session_id, "title", title)

    def set_task(self, session_id: str, task: str) -> Session:
        """Give a conversation another task line; the one before is kept in the record."""
        with self.db.transaction() as db:
            db.execute(
                "INSERT INTO task_changes (session_id, changed_at, before) SELECT id, ?, task FROM sessions "
                "WHERE id = ? AND task NOT IN ('', ?)",
                [self._clock(), session_id, task],
            )
            db.execute("UPDATE sessions SET task = ? WHERE id = ?", [task, session_id])
        return self.session(session_id)

    def task_changes(self, session_id: str) -> list[tuple[float, str]]:
        """Return when the task line was changed (epoch s), and what it was before, oldest first."""
        rows = self.db.rows("SELECT changed_at, before FROM task_changes WHERE session_id = ? ORDER BY id", session_id)
        return [(row["changed_at"], row["before"]) for row in rows]

    def verdicts(self, session_id: str) -> dict[int, tuple[str, float | None]]:
        """Return kind and score of the verdicts on a conversation's messages, by message id."""
        sql = """SELECT v.message_id, v.kind, v.score FROM messages m JOIN verdicts v ON v.message_id = m.id
            WHERE m.session_id = ?"""
        return {row["message_id"]: (row["kind"], row["score"]) for row in self.db.rows(sql, session_id)}

    def set_state(self, session_id: str, state: SessionState) -> Session:
        """Mark a conversation open or done."""
        return self._change(session_id, "state", state)

    def set_trashed(self, session_id: str, *, trashed: bool) -> Session:
        """Move a conversation to the trash, or back."""
        return self._change(session_id, "trashed_at", self._clock() if trashed else None)

    def set_pinned(self, session_id: str, *, pinned: bool) -> Session:
        """Keep a conversation at the top of the list, or not."""
        return self._change(session_id, "pinned_at", self._clock() if pinned else None)

    def set_archived(self, session_id: str, *, archived: bool) -> Session:
        """Take a conversation out of the list without deleting it, or back."""
        return self._change(session_id, "archived_at", self._clock() if archived else None)

    def set_tags(self, session_id: str, tags: Collection[str]) -> Session:
        """Give a conversation these tags and no others."""
        with self.db.transaction() as db:
            db.execute("DELETE FROM tags WHERE session_id = ?", [session_id])
            for tag in tags:
                db.execute("INSERT OR IGNORE INTO tags VALUES (?, ?)", [session_id, tag])
        return self.session(session_id)

    def set_context(self, session_id: str, n_ctx: int) -> Session:
        """Keep which context a conversation needs."""
        return self._change(session_id, "n_ctx", n_ctx)

    def set_reasoning(self, session_id: str, policy: ReasoningPolicy) -> Session:
        """Choose what later prompts contain of the reasoning in answers to come."""
        return self._change(session_id, "reasoning", policy)

    def set_sampling(self, session_id: str, choice: SamplingChoice | None) -> Session:
        """Give a conversation a sampling of its own, or none."""
        return self._change(session_id, "sampling", choice and choice_to_json(choice))

    def set_system(self, session_id: str, text: str) -> Session:
        """Give an empty conversation its system prompt."""
        with self.db.transaction() as db:
            self._insert_message(db, session_id, None, "system", text, "complete")
        return self.session(session_id)

    def set_model(self, session_id: str, model: ModelRef) -> Session:
        """Let a conversation go on with another model: its text stays, token ids are kept for each model apart."""
        with self.db.transaction() as db:
            db.execute(
                """UPDATE sessions SET model_id = NULL, n_ctx = NULL WHERE id = ?
                    AND model_id IS NOT (SELECT id FROM models WHERE weights = ?)""",
                [session_id, model.weights],
            )
            self._bind(db, session_id, model)
        return self.session(session_id)

    # --- drafts ---

    def drafts(self) -> dict[str, str]:
        """Return what was written and not sent, by conversation; that of a new one is not among them."""
        return newest_drafts(self.db)

    def draft(self, session_id: str | None) -> Draft:
        """Return the newest draft of a conversation; None is the one that is not stored yet."""
        return next((kept.draft for kept in drafts_of(self.db, session_id)), Draft(""))

    def keep_draft(self, session_id: str | None, draft: Draft, window: str = NOBODY) -> None:
        """Keep what is written in a window and not sent; an empty text is none.

        Of a conversation that is gone, nothing is kept.
        """
        keep(self.db, session_id, window, draft)

    # --- messages ---

    def messages(self, session_id: str) -> list[Message]:
        """Return the messages of the branch that is shown, oldest first, the system prompt included.

        Their token runs are those of the conversation's model.
        """
        # Token ids from before models were told apart, of a model that is known by name only, are used once it is back.
        heads = self.db.rows(
            "SELECT head_id, CASE WHEN model_id IS NULL AND model_name IS NOT NULL THEN -1 "
            "ELSE coalesce(model_id, 0) END AS model_id FROM sessions WHERE id = ?",
            session_id,
        )
        if not heads:
            return []
        return [
            to_message(row)
            for row in self.db.rows(
                f"""{_BRANCH} SELECT {MESSAGE_COLUMNS} FROM branch b JOIN messages m ON m.id = b.id
                    LEFT JOIN token_runs r ON r.message_id = m.id AND r.model_id = ?
                    LEFT JOIN answer_stats a ON a.message_id = m.id
                    ORDER BY m.id""",
                heads[0]["head_id"],
                heads[0]["model_id"],
            )
        ]

    def versions(self, session_id: str) -> dict[int, Version]:
        """Return the versions of each message that has several, by message id."""
        found: dict[int | None, list[int]] = {}
        for row in self.db.rows("SELECT id, parent_id FROM messages WHERE session_id = ? ORDER BY id", session_id):
            found.setdefault(row["parent_id"], []).append(row["id"])
        return {
            message_id: Version(number, tuple(ids))
            for ids in found.values()
            if len(ids) > 1
            for number, message_id in enumerate(ids, 1)
        }

    def tree(self, session_id: str) -> list[Message]:
        """Return all messages of all branches, oldest first, without token runs and stats."""
        return [
            to_message(row)
            for row in self.db.rows(
                """SELECT m.id, m.session_id, m.role, m.status, m.created_at, m.text, m.parent_id,
                    NULL AS body_start, NULL AS body_end, NULL AS ids, NULL AS stats, NULL AS attachments
                    FROM messages m WHERE m.session_id = ? ORDER BY m.id""",
                session_id,
            )
        ]

    def show_branch(self, session_id: str, message_id: int) -> None:
        """Show the branch through this message, up to the newest message behind it. Raises `BadRequest`."""
        if not self.db.rows("SELECT 1 AS one FROM messages WHERE id = ? AND session_id = ?", message_id, session_id):
            raise BadRequest("This conversation has no such message.")
        children: dict[int | None, int] = {}
        for row in self.db.rows("SELECT id, parent_id FROM messages WHERE session_id = ? ORDER BY id", session_id):
            children[row["parent_id"]] = row["id"]
        while message_id in children:
            message_id = children[message_id]
        self.set_head(session_id, message_id)

    def set_head(self, session_id: str, message_id: int | None) -> None:
        """Let the branch that is shown end with this message; what comes behind it is kept."""
        with self.db.transaction() as db:
            db.execute("UPDATE sessions SET head_id = ? WHERE id = ?", [message_id, session_id])

    def add_question(
        self,
        session_id: str,
        text: str,
        *,
        title: str,
        version_of: Message | None = None,
        verdict: tuple[str, float, int] | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> Message:
        """Add a user message at the end of the branch that is shown, or as another version of one.

        `title` becomes title and task line of a conversation that has none yet. `verdict` is what the judge of the
        task policy said of it: kind, score, and the version of the judge.
        """
        with self.db.transaction() as db:
            head = db.execute("SELECT head_id FROM sessions WHERE id = ?", [session_id]).fetchone()
            parent_id = version_of.parent_id if version_of else head and head[0]
            message = self._insert_message(db, session_id, parent_id, "user", text, "complete")
            if verdict:
                db.execute("INSERT INTO verdicts VALUES (?, ?, ?, ?)", [message.id, *verdict])
            db.execute(
                """UPDATE sessions SET updated_at = ?, title = CASE title WHEN '' THEN ? ELSE title END,
                    task = CASE task WHEN '' THEN ? ELSE task END WHERE id = ?""",
                [message.created_at, title, title, session_id],
            )
            for values in attachment_values(message.id, attachments):
                db.execute(INSERT_ATTACHMENT, values)
        return replace(message, attachments=tuple(attachments))

    def add_answer(
        self,
        question: Message,
        text: str,
        status: MessageStatus,
        *,
        run: TokenRun | None,
        stats: TurnStats | None = None,
        runs: Mapping[int, TokenRun] | None = None,
        model: ModelRef | None = None,
    ) -> Message:
        """Add an answer and, in the same transaction, the token runs of the messages it answers.

        `model` is whose tokens these are; the conversation becomes its, if it has none.
        """
        session_id = question.session_id
        with self.db.transaction() as db:
            message = self._insert_message(db, session_id, question.id, "assistant", text, status)
            model_id = self._bind(db, session_id, model) if model else 0
            _insert_runs(db, model_id, {**(runs or {}), **({message.id: run} if run else {})})
            if stats:
                db.execute("INSERT INTO answer_stats VALUES (?, ?)", [message.id, stats_to_json(stats)])
            db.execute("UPDATE sessions SET updated_at = ? WHERE id = ?", [message.created_at, session_id])
        return Message(message.id, session_id, "assistant", text, status, run, stats, message.created_at, question.id)

    def extend_answer(
        self,
        answer: Message,
        text: str,
        status: MessageStatus,
        *,
        run: TokenRun | None,
        stats: TurnStats | None = None,
        runs: Mapping[int, TokenRun] | None = None,
        model: ModelRef | None = None,
    ) -> Message:
        """Let an answer that went on have its longer text, its tokens and the stats of its last turn.

        If something follows it on another branch it stays what it was, and the longer one is another version.
        """
        if self.is_answered(answer.id) and answer.parent_id is not None and (asked := self.message(answer.parent_id)):
            return self.add_answer(asked, text, status, run=run, stats=stats, runs=runs, model=model)
        with self.db.transaction() as db:
            db.execute("UPDATE messages SET text = ?, status = ? WHERE id = ?", [text, status, answer.id])
            db.execute("DELETE FROM token_runs WHERE message_id = ?", [answer.id])
            model_id = self._bind(db, answer.session_id, model) if model else 0
            _insert_runs(db, model_id, {**(runs or {}), **({answer.id: run} if run else {})})
            if stats:
                db.execute("INSERT OR REPLACE INTO answer_stats VALUES (?, ?)", [answer.id, stats_to_json(stats)])
            db.execute("UPDATE sessions SET updated_at = ? WHERE id = ?", [self._clock(), answer.session_id])
        return replace(answer, text=text, status=status, run=run, stats=stats or answer.stats)

    def add_runs(self, session_id: str, runs: Mapping[int, TokenRun], model: ModelRef | None) -> None:
        """Keep the token runs of messages that had none; the conversation becomes the model's, if it has none."""
        with self.db.transaction() as db:
            _insert_runs(db, self._bind(db, session_id, model) if model else 0, runs)

    def is_answered(self, message_id: int) -> bool:
        """True when something follows a message, or it is gone."""
        sql = """SELECT 1 AS one FROM messages m WHERE m.id = ?
            AND NOT EXISTS (SELECT 1 FROM messages n WHERE n.session_id = m.session_id AND n.parent_id = m.id)"""
        return not self.db.rows(sql, message_id)

    def waits(self, question: Message) -> bool:
        """True when a question has no answer, or is being answered once more: an answer moves the shown branch on."""
        sql = "SELECT 1 AS one FROM sessions WHERE id = ? AND head_id = ?"
        return not self.is_answered(question.id) or bool(self.db.rows(sql, question.session_id, question.id))

    def message(self, message_id: int) -> Message | None:
        """Return one message, without its token run."""
        sql = f"""SELECT {MESSAGE_COLUMNS} FROM messages m LEFT JOIN token_runs r ON false
            LEFT JOIN answer_stats a ON a.message_id = m.id WHERE m.id = ?"""
        rows = self.db.rows(sql, message_id)
        return to_message(rows[0]) if rows else None

    def mark_failed(self, message_id: int) -> None:
        """Mark a question the engine could not take."""
        with self.db.transaction() as db:
            db.execute("UPDATE messages SET status = 'failed' WHERE id = ?", [message_id])

    def fork(self, session_id: str, messages: Sequence[Message], without_runs: Collection[int] = ()) -> Session:
        """Copy a conversation with these of its messages, oldest first, to a new one.

        Token runs and stats are copied too, but for the runs of the messages named in `without_runs`. Without a
        question it gets title and task line from its first one.
        """
        now = self._clock()
        fork_id = new_session_id(now)
        has_question = any(message.role == "user" for message in messages)
        with self.db.transaction() as db:
            origin = self.session(session_id)
            title, task = (fork_title(self.db, origin), origin.task) if has_question else ("", "")
            db.execute(
                """INSERT INTO sessions (id, title, task, state, created_at, updated_at, model_id, model_name, n_ctx,
                    reasoning, sampling, forked_from)
                    SELECT ?, ?, ?, 'open', ?, ?, model_id, model_name, n_ctx, reasoning, sampling, id
                    FROM sessions WHERE id = ?""",
                [fork_id, title, task, now, now, session_id],
            )
            parent: int | None = None
            shown = [message.id for message in self.messages(session_id)]
            n_shared = next(
                (n for n, message in enumerate(messages) if [message.id] != shown[n : n + 1]), len(messages)
            )
            for n, message in enumerate(messages):
                copy = self._insert_message(
                    db, fork_id, parent, message.role, message.text, message.status, at=message.created_at
                )
                if n < n_shared:  # behind it the fork's KV is another
                    db.execute(
                        """INSERT INTO kv_tips SELECT ?, ?, fingerprint, tip FROM kv_tips
                            WHERE session_id = ? AND message_id = ?""",
                        [fork_id, copy.id, session_id, message.id],
                    )
                if message.id not in without_runs:
                    db.execute(
                        """INSERT INTO token_runs SELECT ?, model_id, body_start, body_end, ids FROM token_runs
                            WHERE message_id = ?""",
                        [copy.id, message.id],
                    )
                db.execute(
                    "INSERT INTO answer_stats SELECT ?, stats FROM answer_stats WHERE message_id = ?",
                    [copy.id, message.id],
                )
                for values in attachment_values(copy.id, message.attachments):
                    db.execute(INSERT_ATTACHMENT, values)
                parent = copy.id
            db.execute("INSERT INTO tags SELECT ?, tag FROM tags WHERE session_id = ?", [fork_id, session_id])
        return self.session(fork_id)

    # --- models ---

    def models(self) -> list[ModelRef]:
        """Return every model that a conversation has had."""
        rows = self.db.rows("SELECT weights, name, path, n_bytes FROM models ORDER BY id")
        return [ModelRef(row["weights"], row["name"], row["path"], row["n_bytes"]) for row in rows]

    # --- KV ---

    def record_kv(self, session_id: str, message_id: int, *, fingerprint: str, tip: str | None) -> None:
        """Keep the key (hex) of the newest KV segment of what ends with a message, so that deleting finds it."""
        known = "SELECT 1 FROM kv_tips WHERE session_id = ? AND message_id = ? AND fingerprint = ? AND tip = ?"
        if tip is None or self.db.rows(known, session_id, message_id, fingerprint, tip):
            return
        with self.db.transaction() as db:
            db.execute(
                """INSERT INTO kv_tips VALUES (?, ?, ?, ?)
                    ON CONFLICT (session_id, message_id, fingerprint) DO UPDATE SET tip = excluded.tip""",
                [session_id, message_id, fingerprint, tip],
            )

    def record_kv_bytes(self, answer_id: int, n_bytes: int) -> None:
        """Keep what an answer's turn wrote to the KV store."""
        with self.db.transaction() as db:
            db.execute(
                "UPDATE answer_stats SET stats = json_set(stats, '$.kv_bytes_written', ?) WHERE message_id = ?",
                [n_bytes, answer_id],
            )

    def kv_tips(self) -> dict[str, list[tuple[str, str]]]:
        """Return (fingerprint, KV tip), both hex, of each conversation that has any, in the trash or not, by its id."""
        found: dict[str, list[tuple[str, str]]] = {}
        rows = """SELECT session_id, fingerprint, tip FROM kv_tips WHERE session_id IN (SELECT id FROM sessions)
            ORDER BY session_id, message_id"""
        for row in self.db.rows(rows):
            found.setdefault(row["session_id"], []).append((row["fingerprint"], row["tip"]))
        return found

    def newest_kv_tips(self, session_ids: Collection[str]) -> dict[str, list[tuple[str, str]]]:
        """Return (fingerprint, KV tip) of the newest message that has one, by conversation."""
        found: dict[str, list[tuple[str, str]]] = {}
        sql = """SELECT session_id, fingerprint, tip, max(message_id) FROM kv_tips
            WHERE session_id IN (SELECT value FROM json_each(?)) GROUP BY session_id, fingerprint"""
        for row in self.db.rows(sql, json.dumps(list(session_ids))):
            found.setdefault(row["session_id"], []).append((row["fingerprint"], row["tip"]))
        return found

    def tips(self) -> tuple[list[str], list[str]]:
        """Return the KV tips (hex) of deleted conversations, and those of all others."""
        rows = self.db.rows("SELECT tip, session_id IN (SELECT id FROM sessions) AS is_alive FROM kv_tips ORDER BY tip")
        dead = [row["tip"] for row in rows if not row["is_alive"]]
        return dead, [row["tip"] for row in rows if row["is_alive"]]

    # --- deleting for good ---

    def trashed(self, *, before: float = float("inf")) -> list[str]:
        """Return the ids of conversations that were moved to the trash before a moment (epoch s), oldest first."""
        sql = "SELECT id FROM sessions WHERE trashed_at < ? ORDER BY trashed_at, id"
        return [row["id"] for row in self.db.rows(sql, before)]

    def purge(self, *session_ids: str) -> None:
        """Delete conversations and every trace of their text; their KV tips stay until `forget_dead_tips`.

        Several at once cost little more than one. Raises `SessionNotFound` if there is none of them.
        """

        def delete() -> int:
            with self.db.transaction() as db:
                for session_id in session_ids:
                    self.words.forget(db, session_id)
                return sum(db.execute("DELETE FROM sessions WHERE id = ?", [key]).rowcount for key in session_ids)

        if not self.words.mending(delete):
            raise SessionNotFound(f"There is no conversation {', '.join(session_ids)}.")
        self.words.wipe()
        with self.db.reporting():
            for backup in self.path.parent.glob(f"{self.path.name}.v*.bak"):
                backup.unlink(missing_ok=True)

    def forget_dead_tips(self) -> None:
        """Drop the tips of deleted conversations, once their KV is gone."""
        with self.db.transaction() as db:
            db.execute("DELETE FROM kv_tips WHERE session_id NOT IN (SELECT id FROM sessions)")

    # --- inside ---

    def _change(self, session_id: str, column: str, value: object) -> Session:
        with self.db.transaction() as db:
            db.execute(f"UPDATE sessions SET {column} = ? WHERE id = ?", [value, session_id])
        return self.session(session_id)

    def _insert_message(
        self,
        db: Database,
        session_id: str,
        parent_id: int | None,
        role: Role,
        text: str,
        status: MessageStatus,
        *,
        at: float | None = None,
    ) -> Message:
        """Add a message behind `parent_id`; the branch that is shown ends with it."""
        now = self._clock() if at is None else at
        cursor = db.execute(
            "INSERT INTO messages (session_id, parent_id, role, status, created_at, text) VALUES (?, ?, ?, ?, ?, ?)",
            [session_id, parent_id, role, status, now, text],
        )
        assert cursor.lastrowid is not None, "an insert has a row id"
        db.execute("UPDATE sessions SET head_id = ? WHERE id = ?", [cursor.lastrowid, session_id])
        return Message(cursor.lastrowid, session_id, role, text, status, None, None, now, parent_id)

    def _bind(self, db: Database, session_id: str, model: ModelRef) -> int:
        """Return a model's row id; a conversation without a model becomes this one's, with what was tokenized."""
        db.execute(
            """INSERT INTO models (weights, name, path, n_bytes) VALUES (?, ?, ?, ?)
                ON CONFLICT (weights) DO UPDATE SET name = excluded.name, path = excluded.path,
                    n_bytes = excluded.n_bytes
                WHERE (name, path, n_bytes) != (excluded.name, excluded.path, excluded.n_bytes)""",
            [model.weights, model.name, model.path, model.n_bytes],
        )
        model_id = int(db.execute("SELECT id FROM models WHERE weights = ?", [model.weights]).fetchone()[0])
        session = db.execute("SELECT model_id, model_name FROM sessions WHERE id = ?", [session_id]).fetchone()
        if session is None:
            raise SessionNotFound(f"There is no conversation {session_id}.")
        if session[0] is None:
            unbound = "message_id IN (SELECT id FROM messages WHERE session_id = ?) AND model_id = 0"
            if session[1] in (None, model.name):
                db.execute(f"UPDATE OR IGNORE token_runs SET model_id = ? WHERE {unbound}", [model_id, session_id])
            db.execute(f"DELETE FROM token_runs WHERE {unbound}", [session_id])
            db.execute("UPDATE sessions SET model_id = ?, model_name = NULL WHERE id = ?", [model_id, session_id])
        return model_id


def _insert_runs(db: Database, model_id: int, runs: Mapping[int, TokenRun]) -> None:
    for message_id, run in runs.items():
        db.execute(
            "INSERT OR IGNORE INTO token_runs VALUES (?, ?, ?, ?, ?)",
            [message_id, model_id, run.body_start, run.body_end, ids_to_blob(run.ids)],
        )
