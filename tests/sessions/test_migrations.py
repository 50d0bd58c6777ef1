import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_utils import Database

from models.engine import TokenRun
from sessions import migrations
from sessions.conversation import Draft, ModelRef
from sessions.errors import StoreTooNew
from sessions.migrations import MIGRATIONS, migrate, migration, version_of
from sessions.store import Store

NEXT = len(MIGRATIONS) + 1


@migration(NEXT)
def add_a_column(db: Database) -> None:
    """Stand for the next release's step."""
    db.execute("ALTER TABLE sessions ADD COLUMN colour TEXT")


@migration(NEXT + 1)
def break_off(db: Database) -> None:
    """Stand for a step that is killed after its first statement."""
    db.execute("DROP TABLE kv_tips")
    raise KeyboardInterrupt


def test_steps_are_numbered_without_gaps() -> None:
    """The steps count from 1."""
    assert [step.number for step in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A database of a later version is named as such, with the way out."""
    Store(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "chat.db")) as db:
        db.execute("PRAGMA user_version = 99")
    before = (tmp_path / "chat.db").read_bytes()
    with pytest.raises(StoreTooNew, match=r"newer chatapp.*upgrade"):
        Store(tmp_path)
    assert (tmp_path / "chat.db").read_bytes() == before


def test_a_database_with_content_is_copied_first(store: Store) -> None:
    """The backup has the old shape and every message; a new database needs none."""
    session = store.create_session(system="kept")
    assert list(store.path.parent.glob("*.bak")) == []
    migrate(store.db._db, store.path, (*MIGRATIONS, add_a_column))
    assert version_of(store.db._db) == NEXT
    with closing(sqlite3.connect(store.path.with_name(f"chat.db.v{NEXT - 1}.bak"))) as backup:
        assert backup.execute("SELECT session_id, text FROM messages").fetchall() == [(session.id, "kept")]
        assert backup.execute("PRAGMA user_version").fetchone() == (NEXT - 1,)


def test_a_step_that_breaks_off_leaves_the_version_before(store: Store) -> None:
    """Steps before it stay, nothing of its own does."""
    with pytest.raises(KeyboardInterrupt):
        migrate(store.db._db, store.path, (*MIGRATIONS, add_a_column, break_off))
    assert version_of(store.db._db) == NEXT
    assert store.tips() == ([], [])


def test_doing_it_again_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An up-to-date database is neither copied nor touched."""
    monkeypatch.setattr(migrations, "back_up", lambda *_: pytest.fail("copied"))
    migrate(store.db._db, store.path)


def test_conversations_of_the_first_format_get_branches(tmp_path: Path) -> None:
    """Their messages follow each other, and what was tokenized is used with the model of the name that was kept."""
    path = tmp_path / "chat.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(Database(connection), path, MIGRATIONS[:1])
        for key, model in (("one", "tiny"), ("two", "tiny"), ("none", None)):
            connection.execute("INSERT INTO sessions VALUES (?, 't', 't', 'open', ?, 1, 1, NULL)", [key, model])
        rows = [(1, "one", "user"), (2, "two", "user"), (3, "one", "assistant"), (4, "two", "assistant")]
        for message_id, key, role in rows:
            connection.execute(
                "INSERT INTO messages VALUES (?, ?, ?, 'complete', 1, ?)", [message_id, key, role, f"text {message_id}"]
            )
            connection.execute("INSERT INTO token_runs VALUES (?, 0, 1, ?)", [message_id, b"\7\0\0\0"])
    run = TokenRun((7,), 0, 1)
    with closing(Store(tmp_path)) as store:
        assert [(m.id, m.parent_id, m.run) for m in store.messages("one")] == [(1, None, None), (3, 1, None)]
        assert store.messages("none") == []
        store.add_runs("one", {}, ModelRef("aa", "tiny", "", 1))
        store.add_runs("two", {}, ModelRef("bb", "another", "", 1))
        assert [m.run for m in store.messages("one")] == [run, run]
        assert [(m.text, m.run) for m in store.messages("two")] == [("text 2", None), ("text 4", None)]


def test_drafts_of_earlier_formats_are_kept(tmp_path: Path) -> None:
    """They have nothing attached; a conversation that is not stored yet may have one from now on."""
    path = tmp_path / "chat.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(Database(connection), path, MIGRATIONS[:5])
        connection.execute(
            """INSERT INTO sessions (id, title, task, state, created_at, updated_at)
                VALUES ('one', 't', 't', 'open', 1, 1)"""
        )
        connection.execute("INSERT INTO drafts VALUES ('one', 'half a thought')")
    with closing(Store(tmp_path)) as store:
        assert store.draft("one") == Draft("half a thought")
        store.keep_draft(None, Draft("new"))
        store.purge("one")
        assert (store.draft("one"), store.draft(None)) == (Draft(""), Draft("new"))
