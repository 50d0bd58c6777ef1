import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.kvfolder import KvFolder
from models.kvformat import PARTS
from models.kvindex import KvIndex
from models.kvreconcile import Reconciled, reconcile
from models.kvstore import KvStore
from tests.models.helpers import changed
from tests.models.kvstock import OTHER_KEY, content, on_disk, open_store, outlines, path_of, put, stored

NOW = 2_000_000.0


class Stock:
    """A folder of segments, and an index over it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = KvFolder(root)
        self.store: KvStore = open_store(root)
        self.chain = put(self.store, (1, 2), (3,), (4, 5), kinds=("rows", "state"))
        self.victim = path_of(root, self.chain[1])

    def reconcile(self) -> Reconciled:
        """Bring index and files in line, as a program that has just started."""
        with closing(KvIndex(self.root / "index.db")) as index:
            return reconcile(self.folder, index, NOW)

    def remove_index(self) -> None:
        """As somebody does who tidies up."""
        self.store.close()
        for path in self.root.glob("index.db*"):
            path.unlink()


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[Stock]:
    """Six files in line with the index."""
    made = Stock(tmp_path / "kv")
    yield made
    made.store.close()


def test_in_line_nothing_happens(stock: Stock) -> None:
    """Nothing is taken in, lost or set aside; the time is remembered."""
    before = outlines(stock.root)
    assert stock.reconcile() == Reconciled(0, 0, 0)
    assert outlines(stock.root) == before
    with closing(KvIndex(stock.root / "index.db")) as index:
        assert index.marked("reconciled") == NOW


def test_an_index_is_rebuilt_from_the_files(stock: Stock) -> None:
    """Every row comes back as it was, of all owners and generations; uses are as old as their files."""
    for fingerprint, key in ((changed(gpu_layers=1), OTHER_KEY), (changed(gpu_layers=2), b"z" * 32)):
        with closing(open_store(stock.root, fingerprint, key=key)) as other:
            put(other, (1, 2), (9,))
    files = {path: path.stat() for path in stock.root.rglob("*.rows")}
    before = outlines(stock.root)
    stock.remove_index()
    assert stock.reconcile() == Reconciled(10, 0, 0)
    after = outlines(stock.root)
    times = {"last_used": 0.0, "state_used": 0.0}
    assert {key: replace(row, **times) for key, row in after.items()} == {  # type: ignore[arg-type]
        key: replace(row, **times)  # type: ignore[arg-type]
        for key, row in before.items()
    }
    assert {row.last_used for row in after.values()} <= {min(NOW, found.st_mtime) for found in files.values()}
    with closing(KvIndex(stock.root / "index.db")) as index:
        assert [row.segment for row in index.children(stock.store.root_key)] == [stock.chain[0]]


def test_uses_are_as_old_as_the_files(stock: Stock) -> None:
    """The file's time, but never one in the future: that would never be evicted."""
    os.utime(path_of(stock.root, stock.chain[0]), (5.0, 5.0))
    path_of(stock.root, stock.chain[0], "state").unlink()
    os.utime(stock.victim, (NOW + 1e6, NOW + 1e6))
    stock.remove_index()
    stock.reconcile()
    rows = outlines(stock.root)
    assert (rows[stock.chain[0].key].last_used, rows[stock.chain[1].key].last_used) == (5.0, NOW)


def test_a_file_without_a_row_is_taken_in(stock: Stock) -> None:
    """What a crash between file and row left can be used."""
    stock.store._index.remove([stock.chain[1].key])
    assert stock.store.lookup((1, 2, 3, 4)).end == 2
    assert stock.reconcile() == Reconciled(2, 0, 0)
    assert stock.store.lookup((1, 2, 3, 4)).end == 4


def test_one_part_without_its_row_is_taken_in(stock: Stock) -> None:
    """The other part's size stays, the chain has its reason no more."""
    stock.store._index.lose([(stock.chain[1].key, "state")], "vanished")
    assert stock.reconcile() == Reconciled(1, 0, 0)
    row = outlines(stock.root)[stock.chain[1].key]
    assert (row.state_bytes, row.rows_bytes, row.loss) == (1136, 1136, None)


def test_a_row_without_its_file_is_vanished(stock: Stock) -> None:
    """The part that is gone is promised no more; the other one is."""
    stock.victim.unlink()
    assert stock.reconcile() == Reconciled(0, 1, 0)
    row = outlines(stock.root)[stock.chain[1].key]
    assert (row.rows_bytes, row.state_bytes, row.loss) == (0, 1136, "vanished")


def test_a_deleted_generation_is_vanished(stock: Stock) -> None:
    """Somebody deleted the folder of one model."""
    stock.folder.remove_generation(stock.store.digest)
    assert stock.reconcile() == Reconciled(0, 6, 0)
    assert stored(stock.root) == set()


def test_remnants_of_killed_writers_are_deleted(stock: Stock) -> None:
    """Files under temporary names, and nothing else."""
    remnant = stock.victim.with_name(f".{stock.victim.name}.77.tmp")
    remnant.write_bytes(b"half")
    before = content(stock.root)
    assert stock.reconcile() == Reconciled(0, 0, 0)
    assert not remnant.exists()
    assert set(before) - set(content(stock.root)) == {str(remnant.relative_to(stock.root))}


@pytest.mark.parametrize("data", [b"", b"junk" * 500, b"CHATKV\0\2" + bytes(2000)], ids=["empty", "junk", "magic only"])
def test_what_is_no_segment_is_set_aside(stock: Stock, data: bytes) -> None:
    """It cannot be taken in, and would be looked at every day."""
    key = "ab" * 32
    path = stock.folder.segment_path(stock.store.digest, bytes.fromhex(key), "rows")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    assert stock.reconcile() == Reconciled(0, 0, 1)
    assert (stock.root / "damaged" / path.name).read_bytes() == data


def test_a_segment_under_another_name_is_set_aside(stock: Stock) -> None:
    """Under another key, part or generation, or in another folder, nobody would find it."""
    data = stock.victim.read_bytes()
    key = stock.chain[1].key
    places = [
        stock.folder.segment_path(stock.store.digest, b"\xab" * 32, "rows"),
        stock.folder.segment_path(stock.store.digest, b"\xab" * 32, "state"),
        stock.folder.segment_path(b"\xcd" * 32, key, "rows"),
        stock.victim.parent.with_name("00" if stock.victim.parent.name != "00" else "01") / stock.victim.name,
    ]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    before = stored(stock.root)
    stock.reconcile()
    assert [place for place in places if place.exists()] == []
    assert stored(stock.root) == before == on_disk(stock.root)


def test_folders_and_links_in_a_files_place_are_set_aside(stock: Stock) -> None:
    """They would stand in the way of the segment for ever."""
    one, other = (stock.folder.segment_path(stock.store.digest, bytes([n]) * 32, "rows") for n in range(2))
    for path in (one, other):
        path.parent.mkdir(exist_ok=True)
    one.mkdir()
    other.symlink_to("/dev/zero")
    assert stock.reconcile() == Reconciled(0, 0, 2)
    assert on_disk(stock.root) == stored(stock.root)


def test_what_cannot_be_read_now_is_left(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the system says nothing about the file; it is taken in when it can be read."""

    def fail(_path: Path) -> None:
        raise PermissionError(13, "refused")

    stock.store._index.remove([stock.chain[1].key])
    with monkeypatch.context() as patched:
        patched.setattr("models.kvreconcile.read_head", fail)
        assert stock.reconcile() == Reconciled(0, 0, 2)
    assert stock.victim.exists()
    assert stock.reconcile() == Reconciled(2, 0, 0)


@pytest.mark.parametrize("garbage", ["rows_bytes = 'many'", "tokens = x'010203'", "owner = 7", "last_used = 'never'"])
def test_a_row_of_garbage_is_replaced(stock: Stock, garbage: str) -> None:
    """Its file is there, so it can be described again."""
    with closing(KvIndex(stock.root / "index.db")) as index:
        index._query(f"UPDATE segments SET {garbage} WHERE key = ?", (stock.chain[1].key,))
    assert stock.reconcile() == Reconciled(2, 0, 0)
    assert stock.store.lookup((1, 2, 3, 4, 5)).end == 5


def test_a_row_of_garbage_without_a_file_is_forgotten(stock: Stock) -> None:
    """It promises nothing that could be kept."""
    for part in PARTS:
        path_of(stock.root, stock.chain[1], part).unlink()
    with closing(KvIndex(stock.root / "index.db")) as index:
        index._query("UPDATE segments SET tokens = x'01' WHERE key = ?", (stock.chain[1].key,))
    stock.reconcile()
    assert set(outlines(stock.root)) == {stock.chain[0].key, stock.chain[2].key}


EVENTS = st.lists(st.tuples(st.sampled_from(["row", "file", "both", "junk"]), st.integers(0, 5)), max_size=6)


@settings(max_examples=30)
@given(EVENTS)
def test_afterwards_rows_and_files_agree(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int]]
) -> None:
    """Whatever went missing or was overwritten, the index promises exactly the files that are there; twice is once."""
    stock = Stock(tmp_path_factory.mktemp("stock") / "kv")
    try:
        for what, n in events:
            segment = stock.chain[n // 2]
            path = path_of(stock.root, segment, PARTS[n % 2])
            if what in ("row", "both"):
                stock.store._index.remove([segment.key])
            if what in ("file", "both"):
                path.unlink(missing_ok=True)
            if what == "junk" and path.exists():
                stock.store._index.remove([segment.key])
                path.write_bytes(b"junk")
        stock.reconcile()
        assert stored(stock.root) == on_disk(stock.root)
        assert stock.reconcile() == Reconciled(0, 0, 0)
    finally:
        stock.store.close()
