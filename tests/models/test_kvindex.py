import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from models.kvformat import SegmentId
from models.kvindex import KvIndex
from models.sqlite import sqlite3

ROOT = b"r" * 32
FIRST = SegmentId(b"f" * 32, ROOT, 0, (1, 2))
SECOND = SegmentId(b"f" * 32, FIRST.key, 2, (3,))


@pytest.fixture
def index(tmp_path: Path) -> Iterator[KvIndex]:
    """An empty index."""
    with closing(KvIndex(tmp_path / "index.db")) as opened:
        yield opened


def test_rows_come_back_as_they_were_added(index: KvIndex) -> None:
    """A segment is found by its key and as its parent's child."""
    index.add(FIRST, 100, 1.5)
    index.add(SECOND, 50, 2.5)
    row = index.get(SECOND.key)
    assert row is not None
    assert (row.segment, row.bytes, row.last_used) == (SECOND, 50, 2.5)
    assert [row.segment for row in index.children(ROOT)] == [FIRST]
    assert index.total_bytes() == 150


def test_adding_twice_and_removing_the_unknown_are_harmless(index: KvIndex) -> None:
    """One row a key; a key that is not there can be removed."""
    index.add(FIRST, 100, 1.0)
    index.add(FIRST, 100, 2.0)
    index.remove([SECOND.key])
    assert index.total_bytes() == 100
    index.remove([FIRST.key])
    assert (index.get(FIRST.key), index.total_bytes()) == (None, 0)


def test_a_use_is_recorded(index: KvIndex) -> None:
    """Touching sets the time of the last use."""
    index.add(FIRST, 100, 1.0)
    index.touch([FIRST.key], 9.0)
    row = index.get(FIRST.key)
    assert row is not None
    assert row.last_used == 9.0


def test_only_generations_with_segments_are_named(index: KvIndex) -> None:
    """A generation of which nothing is stored explains no miss."""
    index.remember_generation(b"f" * 32, "{}")
    assert index.other_generations(b"x" * 32) == []
    index.add(FIRST, 100, 1.0)
    assert index.other_generations(b"x" * 32) == ["{}"]
    assert index.other_generations(b"f" * 32) == []


def test_the_database_is_private(tmp_path: Path, index: KvIndex) -> None:
    """Its file has mode 0600."""
    index.add(FIRST, 100, 1.0)
    assert (tmp_path / "index.db").stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_no_database_is_replaced(tmp_path: Path) -> None:
    """Junk in the index's place costs the rows, nothing else."""
    (tmp_path / "index.db").write_bytes(b"junk" * 1000)
    with closing(KvIndex(tmp_path / "index.db")) as index:
        index.add(FIRST, 100, 1.0)
        assert index.total_bytes() == 100


def test_a_busy_database_is_not_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that another process has locked is an OSError, and its rows are still there afterwards."""
    path = tmp_path / "index.db"
    with closing(KvIndex(path)) as index:
        index.add(FIRST, 100, 1.0)
    monkeypatch.setattr("models.kvindex._BUSY_S", 0.0)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OSError, match="locked"):
            KvIndex(path)
        other.execute("ROLLBACK")
    with closing(KvIndex(path)) as index:
        assert index.total_bytes() == 100


def test_errors_of_the_database_become_os_errors(tmp_path: Path) -> None:
    """A table that went away under an open index is an OSError."""
    with closing(KvIndex(tmp_path / "index.db")) as index:
        with closing(sqlite3.connect(tmp_path / "index.db")) as other:
            other.execute("DROP TABLE segments")
        with pytest.raises(OSError, match="KV index"):
            index.children(ROOT)
        with pytest.raises(OSError, match="KV index"):
            index.add(FIRST, 1, 1.0)
        with pytest.raises(OSError, match="KV index"):
            index.touch([FIRST.key], 1.0)


def test_a_damaged_row_is_an_os_error(tmp_path: Path, index: KvIndex) -> None:
    """Tokens that are not whole numbers of four bytes are not guessed at."""
    index.add(FIRST, 100, 1.0)
    with closing(sqlite3.connect(tmp_path / "index.db")) as other, other:
        other.execute("UPDATE segments SET tokens = x'010203'")
    with pytest.raises(OSError, match="damaged"):
        index.children(ROOT)


def test_two_threads_may_use_it(index: KvIndex) -> None:
    """Writes from a second thread while the first one reads arrive all."""

    def write() -> None:
        for n in range(200):
            index.add(SegmentId(b"f" * 32, ROOT, 0, (n,)), 1, 0.0)

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        index.children(ROOT)
    writer.join()
    assert index.total_bytes() == 200
