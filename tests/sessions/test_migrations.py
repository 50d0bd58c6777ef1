import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_utils import Database

from sessions import migrations
from sessions.errors import StoreTooNew
from sessions.migrations import MIGRATIONS, migrate, migration, version_of
from sessions.store import Store


@migration(2)
def add_a_column(db: Database) -> None:
    """Stand for the next release's step."""
    db.execute("ALTER TABLE sessions ADD COLUMN colour TEXT")


@migration(3)
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
    migrate(store._db, store.path, (*MIGRATIONS, add_a_column))
    assert version_of(store._db) == 2
    with closing(sqlite3.connect(store.path.with_name("chat.db.v1.bak"))) as backup:
        assert backup.execute("SELECT session_id, text FROM messages").fetchall() == [(session.id, "kept")]
        assert backup.execute("PRAGMA user_version").fetchone() == (1,)


def test_a_step_that_breaks_off_leaves_the_version_before(store: Store) -> None:
    """Steps before it stay, nothing of its own does."""
    with pytest.raises(KeyboardInterrupt):
        migrate(store._db, store.path, (*MIGRATIONS, add_a_column, break_off))
    assert version_of(store._db) == 2
    assert store.tips() == ([], [])


def test_doing_it_again_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An up-to-date database is neither copied nor touched."""
    monkeypatch.setattr(migrations, "back_up", lambda *_: pytest.fail("copied"))
    migrate(store._db, store.path)
