import contextlib
import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.kvformat import PARTS, Part, SegmentId, pack_tokens
from models.kvindex import IndexRow, KvIndex, Loss, Outline
from models.sqlite import sqlite3

OWNER = b"o" * 8
ROOT = b"r" * 32
FIRST = SegmentId(b"f" * 32, ROOT, 0, (1, 2))
SECOND = SegmentId(b"f" * 32, FIRST.key, 2, (3,))
OTHER = SegmentId(b"g" * 32, b"s" * 32, 0, (1, 2))
LOSSES = get_args(Loss)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[KvIndex]:
    """An empty index."""
    with closing(KvIndex(tmp_path / "index.db")) as opened:
        yield opened


def add(index: KvIndex, segment: SegmentId, n_bytes: int = 100, part: Part = "rows", now: float = 1.0) -> None:
    """Record a published file of this data directory."""
    index.add(segment, OWNER, part, n_bytes, now)


def row_of(index: KvIndex, segment: SegmentId) -> IndexRow:
    """The segment's row, which is there."""
    row = index.get(segment.key)
    assert row is not None
    return row


def outline_of(index: KvIndex, segment: SegmentId) -> Outline:
    """The segment's outline, which is there."""
    (found,) = [outline for outline in index.outlines() if outline.key == segment.key]
    return found


# --- rows ---


def test_rows_come_back_as_they_were_added(index: KvIndex) -> None:
    """A segment is found by its key and as its parent's child."""
    add(index, FIRST, 100, now=1.5)
    add(index, SECOND, 50, now=2.5)
    assert index.get(SECOND.key) == IndexRow(SECOND, 50, 0, 2.5)
    assert [row.segment for row in index.children(ROOT)] == [FIRST]
    assert index.children(SECOND.key) == []
    assert index.total_bytes() == 150


def test_both_parts_share_a_row(index: KvIndex) -> None:
    """A segment's two files are sizes of one row, in whatever order they are published."""
    add(index, FIRST, 100, "rows", now=1.0)
    add(index, FIRST, 7, "state", now=2.0)
    add(index, SECOND, 8, "state", now=3.0)
    add(index, SECOND, 50, "rows", now=4.0)
    assert (row_of(index, FIRST), row_of(index, SECOND)) == (
        IndexRow(FIRST, 100, 7, 2.0),
        IndexRow(SECOND, 50, 8, 4.0),
    )
    assert (row_of(index, FIRST).bytes, index.total_bytes()) == (107, 165)


def test_adding_twice_and_removing_the_unknown_are_harmless(index: KvIndex) -> None:
    """One row a key, the newer size counts; a key that is not there can be removed."""
    add(index, FIRST, 100, now=1.0)
    add(index, FIRST, 110, now=2.0)
    index.remove([SECOND.key])
    assert index.total_bytes() == 110
    index.remove([FIRST.key])
    assert (index.get(FIRST.key), index.total_bytes()) == (None, 0)


@settings(max_examples=30)
@given(
    tokens=st.lists(st.integers(0, 2**32 - 1), max_size=50).map(tuple),
    start=st.integers(0, 2**32 - 1),
    part=st.sampled_from(PARTS),
)
def test_any_segment_comes_back(
    tmp_path_factory: pytest.TempPathFactory, tokens: tuple[int, ...], start: int, part: Part
) -> None:
    """Tokens and start are stored exactly."""
    segment = SegmentId(b"f" * 32, ROOT, start, tokens)
    with closing(KvIndex(tmp_path_factory.getbasetemp() / "any.db")) as index:
        add(index, segment, 9, part)
        assert row_of(index, segment).segment == segment


# --- lost files ---


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_segment_keeps_its_row(index: KvIndex, loss: Loss) -> None:
    """It says why it has no file, and still holds its chain together."""
    add(index, FIRST)
    add(index, SECOND)
    index.lose([(FIRST.key, "rows")], loss)
    assert index.children(ROOT) == [IndexRow(FIRST, 0, 0, 1.0, loss)]
    assert index.children(FIRST.key) == [IndexRow(SECOND, 100, 0, 1.0)]


@pytest.mark.parametrize(("lost", "left"), [("rows", (0, 7)), ("state", (100, 0))])
def test_one_part_is_lost_without_the_other(index: KvIndex, lost: Part, left: tuple[int, int]) -> None:
    """A state may go and leave the rows, and the other way round."""
    add(index, FIRST, 100, "rows")
    add(index, FIRST, 7, "state")
    index.lose([(FIRST.key, lost)], "evicted")
    row = row_of(index, FIRST)
    assert ((row.rows_bytes, row.state_bytes), row.loss) == (left, "evicted")


def test_several_parts_are_lost_at_once(index: KvIndex) -> None:
    """Of several segments, both parts; keys that are not there make no row."""
    for segment in (FIRST, SECOND):
        for part in PARTS:
            add(index, segment, 10, part)
    index.lose([(FIRST.key, "rows"), (FIRST.key, "state"), (SECOND.key, "state"), (b"x" * 32, "rows")], "vanished")
    assert [(row_of(index, one).rows_bytes, row_of(index, one).state_bytes) for one in (FIRST, SECOND)] == [
        (0, 0),
        (10, 0),
    ]
    assert len(index.outlines()) == 2


def test_a_segment_that_is_written_again_is_not_lost_any_more(index: KvIndex) -> None:
    """The reason goes with the loss."""
    add(index, FIRST)
    index.lose([(FIRST.key, "rows")], "damaged")
    add(index, FIRST, 90, now=5.0)
    assert row_of(index, FIRST) == IndexRow(FIRST, 90, 0, 5.0)


def test_only_lost_ends_of_chains_are_dropped(index: KvIndex) -> None:
    """What is stored stays, and so does what something hangs on."""
    leaf = SegmentId(b"f" * 32, SECOND.key, 3, (4,))
    for segment in (FIRST, SECOND, leaf, OTHER):
        add(index, segment)
    index.lose([(FIRST.key, "rows"), (leaf.key, "rows")], "evicted")
    index.drop_lost_leaves(0)
    assert {outline.key for outline in index.outlines()} == {FIRST.key, SECOND.key, OTHER.key}


def test_the_newest_reasons_are_kept(index: KvIndex) -> None:
    """Of lost ends, those used last stay."""
    segments = [SegmentId(b"f" * 32, ROOT, 0, (n,)) for n in range(5)]
    for n, segment in enumerate(segments):
        add(index, segment, now=float((3 * n) % 5))
    index.lose([(segment.key, "rows") for segment in segments], "evicted")
    index.drop_lost_leaves(2)
    assert {row.last_used for row in index.children(ROOT)} == {3.0, 4.0}


# --- uses ---


def test_a_use_is_recorded(index: KvIndex) -> None:
    """Touching sets the time of the last use of every segment, and of the one state that was restored from."""
    for segment in (FIRST, SECOND):
        add(index, segment, 10, "rows", now=1.0)
        add(index, segment, 10, "state", now=1.0)
    index.touch([FIRST.key, SECOND.key], 9.0, state=SECOND.key)
    uses = [(outline_of(index, one).last_used, outline_of(index, one).state_used) for one in (FIRST, SECOND)]
    assert uses == [(9.0, 1.0), (9.0, 9.0)]


def test_a_use_of_nothing_is_harmless(index: KvIndex) -> None:
    """No keys, unknown keys and a use without a state change nothing else."""
    add(index, FIRST, now=1.0)
    index.touch([], 9.0)
    index.touch([SECOND.key], 9.0, state=SECOND.key)
    assert [(outline.key, outline.last_used) for outline in index.outlines()] == [(FIRST.key, 1.0)]


# --- outlines and sums ---


def test_an_outline_is_a_row_without_its_tokens(index: KvIndex) -> None:
    """Everything eviction needs to know, the owner too."""
    add(index, FIRST, 100, "rows", now=1.0)
    add(index, FIRST, 7, "state", now=2.0)
    index.lose([(FIRST.key, "rows")], "damaged")
    outline = Outline(FIRST.key, ROOT, b"f" * 32, OWNER, 2, 0, 7, 2.0, 1.0, "damaged")
    assert index.outlines() == [outline]
    assert outline.bytes == 7


def test_generations_have_sizes(index: KvIndex) -> None:
    """Bytes by fingerprint; one whose files are all lost has none."""
    assert index.generations() == {}
    add(index, FIRST, 100)
    add(index, SECOND, 5, "state")
    add(index, OTHER, 1)
    index.lose([(OTHER.key, "rows")], "evicted")
    assert index.generations() == {b"f" * 32: 105, b"g" * 32: 0}


def test_a_generation_is_forgotten_at_once(index: KvIndex) -> None:
    """All its rows go, and no others."""
    for segment in (FIRST, SECOND, OTHER):
        add(index, segment)
    index.remove_generation(b"f" * 32)
    assert index.generations() == {b"g" * 32: 100}


def test_written_bytes_are_counted_by_day(index: KvIndex) -> None:
    """Of one day, of another one, and of all together."""
    assert (index.written("2026-01-01"), index.written()) == (0, 0)
    index.count_written("2026-01-01", 5)
    index.count_written("2026-01-01", 6)
    index.count_written("2026-01-02", 7)
    assert (index.written("2026-01-01"), index.written("2026-01-02"), index.written("2026-01-03")) == (11, 7, 0)
    assert index.written() == 18


def test_marks_are_times_by_name(index: KvIndex) -> None:
    """The last time something was done; never is 0."""
    assert index.marked("reconciled") == 0.0
    index.mark("reconciled", 5.5)
    index.mark("reconciled", 6.5)
    assert (index.marked("reconciled"), index.marked("other")) == (6.5, 0.0)


# --- what must not stay readable ---


def test_what_is_removed_is_not_in_the_files_any_more(tmp_path: Path, index: KvIndex) -> None:
    """A deleted conversation's tokens stay neither in free pages nor in the log."""
    tokens = tuple(range(1_000_000, 1_000_300))
    secret = SegmentId(b"f" * 32, ROOT, 0, tokens)
    for n in range(50):
        add(index, SegmentId(b"f" * 32, ROOT, 0, (n,)))
    add(index, secret)

    def is_readable() -> bool:
        return any(pack_tokens(tokens[:20]) in path.read_bytes() for path in tmp_path.glob("index.db*"))

    assert is_readable()
    index.remove([secret.key])
    index.checkpoint()
    assert not is_readable()


def test_the_database_is_private(tmp_path: Path, index: KvIndex) -> None:
    """Its files have mode 0600."""
    add(index, FIRST)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("index.db*")} == {0o600}


# --- versions and damage ---


def set_version(path: Path, version: int) -> None:
    """Make an index one of another version."""
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version={version}")


def test_a_new_index_says_so_once(tmp_path: Path) -> None:
    """Whoever creates it has to fill it; who opens it later has not."""
    with closing(KvIndex(tmp_path / "kv" / "index.db")) as index:
        assert index.is_new
    with closing(KvIndex(tmp_path / "kv" / "index.db")) as index:
        assert not index.is_new


def test_an_older_version_is_replaced(tmp_path: Path) -> None:
    """Tables of the first version are dropped, and the index has to be filled from the files."""
    path = tmp_path / "index.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE segments(key BLOB PRIMARY KEY, bytes INTEGER)")
        db.execute("INSERT INTO segments VALUES(x'00', 1)")
        db.execute("PRAGMA user_version=1")
        db.commit()
    with closing(KvIndex(path)) as index:
        assert (index.is_new, index.outlines()) == (True, [])
        add(index, FIRST)
        assert index.total_bytes() == 100


def test_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    """What a newer program made is an error in one sentence, and still there afterwards."""
    path = tmp_path / "index.db"
    with closing(KvIndex(path)) as index:
        add(index, FIRST)
    set_version(path, 3)
    with pytest.raises(OSError, match="newer version of this program") as caught:
        KvIndex(path)
    assert caught.value.strerror == "the KV index was made by a newer version of this program"
    set_version(path, 2)
    with closing(KvIndex(path)) as index:
        assert (index.is_new, index.total_bytes()) == (False, 100)


@pytest.mark.parametrize("junk", [b"junk" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_database_is_replaced(tmp_path: Path, junk: bytes) -> None:
    """Junk in the index's place costs the rows, nothing else."""
    (tmp_path / "index.db").write_bytes(junk)
    with closing(KvIndex(tmp_path / "index.db")) as index:
        assert index.is_new
        add(index, FIRST)
        assert index.total_bytes() == 100


def test_a_busy_database_is_not_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that another process has locked is an OSError, and its rows are still there afterwards."""
    path = tmp_path / "index.db"
    with closing(KvIndex(path)) as index:
        add(index, FIRST)
    monkeypatch.setattr("models.kvindex._BUSY_S", 0.0)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OSError, match="locked"):
            KvIndex(path)
        other.execute("ROLLBACK")
    with closing(KvIndex(path)) as index:
        assert index.total_bytes() == 100


def test_a_folder_in_its_place_is_replaced(tmp_path: Path) -> None:
    """Nobody puts anything there, and an index can always be made anew."""
    (tmp_path / "index.db" / "in it").mkdir(parents=True)
    with closing(KvIndex(tmp_path / "index.db")) as index:
        assert index.is_new


def test_errors_of_the_database_become_os_errors(tmp_path: Path) -> None:
    """Tables that went away under an open index are OSErrors, whatever is asked for."""
    with closing(KvIndex(tmp_path / "index.db")) as index:
        with closing(sqlite3.connect(tmp_path / "index.db")) as other:
            for table in ("segments", "written", "marks"):
                other.execute(f"DROP TABLE {table}")
        for use in (
            lambda: index.children(ROOT),
            lambda: index.get(ROOT),
            lambda: add(index, FIRST),
            lambda: index.lose([(FIRST.key, "rows")], "evicted"),
            lambda: index.remove([FIRST.key]),
            lambda: index.remove_generation(b"f" * 32),
            lambda: index.touch([FIRST.key], 1.0),
            index.outlines,
            index.total_bytes,
            index.generations,
            lambda: index.drop_lost_leaves(1),
            lambda: index.count_written("2026-01-01", 1),
            index.written,
            lambda: index.written("2026-01-01"),
            lambda: index.mark("reconciled", 1.0),
            lambda: index.marked("reconciled"),
        ):
            with pytest.raises(OSError, match="KV index"):
                use()


def test_a_closed_index_is_an_os_error(tmp_path: Path) -> None:
    """Who comes late gets the same error as for any other failure."""
    index = KvIndex(tmp_path / "index.db")
    index.close()
    with pytest.raises(OSError, match="KV index"):
        index.children(ROOT)
    with pytest.raises(OSError, match="KV index"):
        index.remove([FIRST.key])


@pytest.mark.parametrize("column", ["tokens = x'010203'", "loss = 'eaten'", "rows_bytes = 'many'", "last_used = 'now'"])
def test_a_damaged_row_is_an_os_error(tmp_path: Path, index: KvIndex, column: str) -> None:
    """What no version of the program writes is not guessed at."""
    add(index, FIRST)
    with closing(sqlite3.connect(tmp_path / "index.db")) as other, other:
        other.execute(f"UPDATE segments SET {column}")
    with pytest.raises(OSError, match="damaged"):
        index.children(ROOT)
    with pytest.raises(OSError, match="damaged"):
        index.get(FIRST.key)


@pytest.mark.parametrize("junk", ["'many'", "x'ff'", "9e999", "NULL"])
def test_damaged_sums_and_marks_are_numbers(tmp_path: Path, index: KvIndex, junk: str) -> None:
    """A value of a kind that nobody writes makes a wrong number, never an error that nobody expects."""
    add(index, FIRST)
    index.count_written("2026-01-01", 7)
    index.mark("reconciled", 1.0)
    with closing(sqlite3.connect(tmp_path / "index.db")) as other, other:
        other.execute("PRAGMA ignore_check_constraints=ON")
        for change in ("segments SET rows_bytes", "segments SET fingerprint", "written SET bytes", "marks SET at"):
            with contextlib.suppress(sqlite3.IntegrityError):  # NULL where there must be a value
                other.execute(f"UPDATE {change} = {junk}")
    numbers = (
        index.total_bytes(),
        index.written(),
        index.written("2026-01-01"),
        index.marked("reconciled"),
        *index.generations().values(),
    )
    assert all(isinstance(number, int | float) for number in numbers)


def test_a_change_that_fails_half_way_is_undone(index: KvIndex) -> None:
    """Several rows are changed together or not at all, and the index goes on."""
    add(index, FIRST)

    def keys() -> Iterator[bytes]:
        yield FIRST.key
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.remove(keys())
    assert index.total_bytes() == 100
    add(index, SECOND)
    assert index.total_bytes() == 200


# --- at the same time ---


def test_two_threads_may_use_it(index: KvIndex) -> None:
    """Writes from a second thread while the first one reads arrive all."""

    def write() -> None:
        for n in range(200):
            add(index, SegmentId(b"f" * 32, ROOT, 0, (n,)), 1)

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        index.children(ROOT)
    writer.join()
    assert index.total_bytes() == 200


def write_from_a_process(path: Path, first: int) -> None:
    """Add a hundred segments and count as many bytes."""
    with closing(KvIndex(path)) as index:
        for n in range(first, first + 100):
            add(index, SegmentId(b"f" * 32, ROOT, 0, (n,)), 1)
            index.count_written("2026-01-01", 1)


def test_two_processes_may_use_it(tmp_path: Path) -> None:
    """What both write at the same time arrives all, the new file's tables included."""
    spawned = multiprocessing.get_context("spawn")
    path = tmp_path / "index.db"
    processes = [spawned.Process(target=write_from_a_process, args=(path, first)) for first in (0, 100)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    with closing(KvIndex(path)) as index:
        assert (index.total_bytes(), index.written()) == (200, 200)
