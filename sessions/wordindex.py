"""The search index: the words of all titles and messages, caught up when somebody searches or nothing else goes on.

A turn writes nothing here: a mark says which message was indexed last. The index (FTS5, contentless) holds words only,
so it can be made anew at any time, and is where it is damaged or of another format. Deleting takes two steps: entries
in the conversation's own transaction, then merging, because FTS5 keeps deleted words until then. SQLite's own option
for it (`secure-delete`) leaves beginnings of words, and makes the file unreadable for earlier SQLites.
"""

from __future__ import annotations

# ruff: noqa: S608 - SQL is put together from constants of this module only
from collections.abc import Callable
from typing import TypeVar

from models.engine import Role
from models.reasoning import answer_of
from models.sqlite import Database
from sessions.database import ChatDatabase
from sessions.errors import StoreError
from sessions.terms import FORMAT, indexed

T = TypeVar("T")

AT_ONCE = 5_000
"""Titles and messages that are indexed at most before somebody gets an answer."""
BATCH = 500
_BATCH_CHARS = 500_000
"""At most so much is indexed in a transaction: others wait for it."""
_MERGE_PAGES = 1_000
"""The same for merging, in pages of 4 KB."""

_CREATE = """CREATE VIRTUAL TABLE search USING fts5 (
    text, content = '', prefix = '1', tokenize = "unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc'"
)"""
"""Messages have their ids, titles the negatives of their numbers. Marks (Mn, Mc) spell words of Indic scripts."""
_INSERT = "INSERT INTO search (rowid, text) VALUES (?, ?)"
_DELETE = "INSERT INTO search (search, rowid, text) VALUES ('delete', ?, ?)"
_CHANGED = "SELECT m.id, m.role, m.text, c.n_chars, c.text AS before FROM"
_HAS_INDEX = "EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'search')"


class WordIndex:
    """The search index of a database. Raises `StoreError`."""

    def __init__(self, db: ChatDatabase) -> None:
        self._db = db
        self._seen: object = None

    def n_unindexed(self) -> int:
        """Return how many messages the index does not know yet, or not as they are now."""
        (row,) = self._db.rows(
            """SELECT (SELECT count(*) FROM messages WHERE id > st.mark) + (SELECT count(*) FROM search_changed) AS n
                FROM search_state st"""
        )
        return int(row["n"])

    def catch_up(self, limit: int = BATCH) -> int:
        """Index at most `limit` titles and messages that are new; return how many. Its transactions take some 50 ms."""
        if self._seen is not None and self._seen == self._state_of_file():
            return 0
        n_done = self.mending(lambda: self._index(limit))
        if n_done < limit:
            self._seen = self._state_of_file()
        return n_done

    def _index(self, limit: int) -> int:
        (row,) = self._db.rows(f"SELECT format, is_wiping, {_HAS_INDEX} AS has_index FROM search_state")
        if row["format"] != FORMAT or not row["has_index"]:
            self._make_anew()
        elif row["is_wiping"]:
            self.wipe()
        n_done = 0
        for index in (self._index_titles, self._index_changed, self._index_messages):
            while n_done < limit and (n := index(min(BATCH, limit - n_done))):
                n_done += n
        return n_done

    def _state_of_file(self) -> object:
        """Something that changes whenever anybody writes."""
        (row,) = self._db.rows("SELECT data_version, total_changes() AS n_own FROM pragma_data_version")
        return row["data_version"], row["n_own"]

    def mending(self, action: Callable[[], T]) -> T:
        """Do something with the index; where that is damaged, once more with a new one, which is empty."""
        try:
            return action()
        except StoreError as error:
            if not _is_broken(error):
                raise
        self._make_anew()
        return action()

    def _make_anew(self) -> None:
        with self._db.transaction() as db:
            _recreate(db)

    def _index_messages(self, limit: int) -> int:
        """Index the next messages in one transaction; return how many."""
        new = "SELECT id, role, text FROM messages WHERE id > (SELECT mark FROM search_state) ORDER BY id LIMIT ?"
        if not self._db.rows(new, 1):
            return 0
        with self._db.transaction() as db:
            done: list[int] = []
            n_chars = 0
            for message_id, role, text in db.execute(new, [limit]):
                words = indexed(text_of(role, text))
                db.execute(_INSERT, [message_id, words])
                done.append(message_id)
                n_chars += len(words)
                if n_chars > _BATCH_CHARS:
                    break
            db.execute("UPDATE search_state SET mark = max(mark, ?)", [max(done, default=0)])
        return len(done)

    def _index_changed(self, limit: int) -> int:
        """Index answers that went on after they were indexed, in one transaction; return how many."""
        changed = f"{_CHANGED} search_changed c CROSS JOIN messages m ON m.id = c.message_id LIMIT ?"
        if not self._db.rows(changed, 1):
            return 0
        with self._db.transaction() as db:
            rows = db.execute(changed, [limit]).fetchall()
            for message_id, role, text, n_chars, before in rows:
                db.execute(_DELETE, [message_id, _words_before(role, text, n_chars, before)])
                db.execute(_INSERT, [message_id, indexed(text_of(role, text))])
                db.execute("DELETE FROM search_changed WHERE message_id = ?", [message_id])
        return len(rows)

    def _index_titles(self, limit: int) -> int:
        """Index titles that are new or changed in one transaction; return how many."""
        new = """SELECT s.id, s.title, t.number, t.title AS old FROM sessions s
            LEFT JOIN search_titles t ON t.session_id = s.id WHERE s.title != coalesce(t.title, '') LIMIT ?"""
        if not self._db.rows(new, 1):
            return 0
        with self._db.transaction() as db:
            rows = db.execute(new, [limit]).fetchall()
            for session_id, title, number, old in rows:
                if number is not None:
                    db.execute(_DELETE, [-number, indexed(old)])
                # A conversation keeps its number; NULL stands for the next one.
                cursor = db.execute(
                    "INSERT OR REPLACE INTO search_titles VALUES (?, ?, ?)", [number, session_id, title]
                )
                assert cursor.lastrowid is not None, "an insert has a row id"
                db.execute(_INSERT, [-cursor.lastrowid, indexed(title)])
        return len(rows)

    # --- deleting ---

    def forget(self, db: Database, session_id: str) -> None:
        """Take a conversation out of the index, inside the transaction that is going to delete it; then `wipe`."""
        format_, mark, has_index = db.execute(f"SELECT format, mark, {_HAS_INDEX} FROM search_state").fetchone()
        try:
            with self._db.reporting():
                if has_index and format_ == FORMAT:
                    _delete(db, session_id, mark)
                elif has_index:
                    _recreate(db)
        except StoreError as error:
            if not _is_broken(error):
                raise
            _recreate(db)
        db.execute("DELETE FROM search_titles WHERE session_id = ?", [session_id])
        messages = "SELECT id FROM messages WHERE session_id = ?"
        db.execute(f"DELETE FROM search_changed WHERE message_id IN ({messages})", [session_id])
        # The ids of the newest messages are given out again.
        last = "SELECT id FROM messages WHERE session_id != ? ORDER BY id DESC LIMIT 1"
        db.execute(f"UPDATE search_state SET is_wiping = 1, mark = min(mark, coalesce(({last}), 0))", [session_id])

    def wipe(self) -> None:
        """Merge until no deleted word is left in the index, in short transactions, and empty the log."""
        self.mending(self._merge)
        self._db.fold_log()

    def _merge(self) -> None:
        pages = -_MERGE_PAGES  # negative: of all that there is, not only of what is due
        while self._db.rows(f"SELECT 1 AS one FROM search_state WHERE is_wiping AND {_HAS_INDEX}"):
            with self._db.transaction() as db:
                before = db.conn.total_changes
                db.execute("INSERT INTO search (search, rank) VALUES ('merge', ?)", [pages])
                if db.conn.total_changes - before < 2:  # SQLite's sign that nothing is left to be merged
                    db.execute("UPDATE search_state SET is_wiping = 0")
            pages = _MERGE_PAGES


def _delete(db: Database, session_id: str, mark: int) -> None:
    """Delete the entries of a conversation's messages up to `mark`, and of its title."""
    join = "messages m LEFT JOIN search_changed c ON c.message_id = m.id"
    rows = db.execute(f"{_CHANGED} {join} WHERE m.session_id = ? AND m.id <= ?", [session_id, mark]).fetchall()
    for message_id, role, text, n_chars, before in rows:
        db.execute(_DELETE, [message_id, _words_before(role, text, n_chars, before)])
    for number, title in db.execute(
        "SELECT number, title FROM search_titles WHERE session_id = ?", [session_id]
    ).fetchall():
        db.execute(_DELETE, [-number, indexed(title)])


def _recreate(db: Database) -> None:
    if not db.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone():
        raise StoreError(
            "This Python's SQLite has no full-text search (FTS5): use another Python, or install pysqlite3."
        )
    db.execute("DROP TABLE IF EXISTS search")
    db.execute(_CREATE)
    db.execute("DELETE FROM search_titles")
    db.execute("DELETE FROM search_changed")
    db.execute("UPDATE search_state SET format = ?, mark = 0, is_wiping = 0", [FORMAT])


def _is_broken(error: StoreError) -> bool:
    """True for an index that is damaged, or that this SQLite does not know how to read."""
    cause = error.__cause__
    is_damaged = str(getattr(cause, "sqlite_errorname", "")).startswith("SQLITE_CORRUPT")
    return is_damaged or "fts5 file format" in str(cause)


def _words_before(role: Role, text: str, n_chars: int | None, before: str | None) -> str:
    """What the index holds of a message; `n_chars` and `before` are those of `search_changed`, if it changed."""
    return indexed(text_of(role, text[:n_chars] if before is None else before))


def text_of(role: Role, text: str) -> str:
    """What of a message is found."""
    return answer_of(text) if role == "assistant" else text
