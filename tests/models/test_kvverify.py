import os
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest
from blake3 import blake3

from models import kvverify
from models.kvfolder import KvFolder
from models.kvformat import FORMAT, MAGIC, PARTS, SegmentDamaged, SegmentId, check_segment
from models.kvstore import KvStore
from models.kvverify import Fault, Kind, VerifyReport, verify
from models.sqlite import sqlite3
from sessions.store import Store
from tests.models.helpers import FINGERPRINT, damage
from tests.models.kvstock import (
    KEY,
    OTHER_KEY,
    Clock,
    content,
    on_disk,
    open_store,
    outlines,
    path_of,
    put,
    stored,
)

posix_only = pytest.mark.skipif(os.name != "posix", reason="POSIX file types")


class Stock:
    """A KV folder of one chain of four segments and one state, and conversations beside it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "cache" / "kv"
        self.data_dir = folder / "data"
        with closing(Store(self.data_dir)) as sessions:
            sessions.add_question(sessions.create_session(system="s").id, "q", title="t")
        with closing(open_store(self.root)) as store:
            self.chain = put(store, (1, 2), (3,), (4, 5, 6))
            self.chain += put(store, (7,), after=self.chain[-1], kinds=("rows", "state"))
        self.paths = [path_of(self.root, segment) for segment in self.chain]
        self.victim = self.paths[1]
        self.chats = content(self.data_dir)

    def verify(self, *, repair: bool = False, key: bytes | None = KEY) -> VerifyReport:
        """Check everything."""
        return kvverify.verify(self.root, key, repair=repair, progress=lambda _done, _total: None, clock=Clock())

    def sql(self, statement: str, *parameters: object) -> None:
        """Change the index behind the program's back."""
        with closing(sqlite3.connect(self.root / "index.db", isolation_level=None)) as db:
            db.execute(statement, parameters)

    @property
    def victim_key(self) -> bytes:
        """Of the segment that is tampered with."""
        return self.chain[1].key


@pytest.fixture
def stock(tmp_path: Path) -> Stock:
    """Nothing is wrong yet."""
    return Stock(tmp_path)


def kinds(report: VerifyReport) -> set[Kind]:
    """What kinds of faults were found."""
    return {fault.kind for fault in report.faults}


def patch(path: Path, at: int, data: bytes) -> None:
    """Write over some bytes of a file."""
    whole = bytearray(path.read_bytes())
    whole[at : at + len(data)] = data
    path.write_bytes(whole)


def resealed(path: Path, at: int, data: bytes) -> None:
    """Write over header bytes and make the MAC right again, as only who has the key can."""
    whole = bytearray(path.read_bytes())
    whole[at : at + len(data)] = data
    whole[100:132] = blake3(bytes(whole[:100] + whole[132:]), key=KEY).digest()
    path.write_bytes(whole)


def swap(stock: Stock) -> None:
    """Two good files in each other's place."""
    one, other = stock.paths[1].read_bytes(), stock.paths[2].read_bytes()
    stock.paths[1].write_bytes(other)
    stock.paths[2].write_bytes(one)


def truncate(stock: Stock, n: int) -> None:
    """Cut the victim to `n` bytes, from its end if negative."""
    data = stock.victim.read_bytes()
    stock.victim.write_bytes(data[:n])


def replace_by(make: Callable[[Path], object]) -> Callable[[Stock], None]:
    """Something else in the victim's place."""

    def tamper(stock: Stock) -> None:
        stock.victim.unlink()
        make(stock.victim)

    return tamper


def rename(stock: Stock) -> None:
    """A good file under a key that nobody has."""
    key = "ab" * 32
    target = stock.victim.parent.parent / "ab" / f"{key}.rows"
    target.parent.mkdir(exist_ok=True)
    stock.victim.rename(target)


def misplace(stock: Stock) -> None:
    """A good file in a folder where nobody looks."""
    target = stock.victim.parent.parent / ("00" if stock.victim.parent.name != "00" else "01") / stock.victim.name
    target.parent.mkdir(exist_ok=True)
    stock.victim.rename(target)


def copy_to_other_generation(stock: Stock) -> None:
    """A good file, and the same under another model's settings."""
    folder = KvFolder(stock.root)
    target = folder.segment_path(b"\xcd" * 32, stock.victim_key, "rows")
    target.parent.mkdir(parents=True)
    target.write_bytes(stock.victim.read_bytes())


def as_state(stock: Stock) -> None:
    """Rows under the name of a state."""
    stock.victim.rename(stock.victim.with_suffix(".state"))


def make_filled(path: Path) -> None:
    """A folder with something in it."""
    path.mkdir()
    (path / "x").write_bytes(b"x")


HEADER_BITS = {f"a bit of {name} flipped": at for at, name in [
    (0, "the magic"), (8, "the owner"), (16, "the fingerprint"), (48, "the parent"), (80, "the part"),
    (84, "the start"), (88, "the number of tokens"), (92, "the payload's length"), (110, "the MAC"),
]}  # fmt: skip
FAULTS: dict[str, tuple[Callable[[Stock], object], set[Kind]]] = {
    **{
        name: ((lambda stock, at=at: damage(stock.victim, at)), {"damaged"})  # type: ignore[misc]
        for name, at in HEADER_BITS.items()
    },
    "a bit of a token flipped": (lambda stock: damage(stock.victim, 133), {"damaged"}),
    "a bit of the payload flipped": (lambda stock: damage(stock.victim, 500), {"damaged"}),
    "the last bit flipped": (lambda stock: damage(stock.victim), {"damaged"}),
    "empty": (lambda stock: truncate(stock, 0), {"damaged"}),
    "7 bytes left": (lambda stock: truncate(stock, 7), {"damaged"}),
    "half left": (lambda stock: truncate(stock, 500), {"damaged"}),
    "one byte short": (lambda stock: truncate(stock, -1), {"damaged"}),
    "one byte more": (lambda stock: stock.victim.write_bytes(stock.victim.read_bytes() + b"x"), {"damaged"}),
    "zeros": (lambda stock: stock.victim.write_bytes(bytes(1136)), {"damaged"}),
    "two files swapped": (swap, {"damaged"}),
    "another key in the name": (rename, {"damaged", "missing"}),
    "in another folder": (misplace, {"damaged", "missing"}),
    "another part in the name": (as_state, {"damaged", "missing"}),
    "a copy in another generation": (copy_to_other_generation, {"damaged"}),
    "a folder in its place": (replace_by(Path.mkdir), {"damaged"}),
    "a full folder in its place": (replace_by(make_filled), {"damaged"}),
    "of a future version": (lambda stock: resealed(stock.victim, 7, bytes([FORMAT + 1])), {"damaged"}),
    "of the first version": (lambda stock: resealed(stock.victim, 0, MAGIC[:7] + b"\1"), {"damaged"}),
    "sealed under another place": (lambda stock: resealed(stock.victim, 84, struct.pack("<I", 77)), {"damaged"}),
    "row without a file": (lambda stock: stock.victim.unlink(), {"missing"}),
    "file without a row": (
        lambda stock: stock.sql("DELETE FROM segments WHERE key = ?", stock.victim_key),
        {"unindexed"},
    ),
    "a row that forgot its file": (
        lambda stock: stock.sql("UPDATE segments SET rows_bytes = 0 WHERE key = ?", stock.victim_key),
        {"unindexed"},
    ),
    "a row of text": (
        lambda stock: stock.sql("UPDATE segments SET rows_bytes = 'many', last_used = 'never' WHERE start = 2"),
        {"bad row", "unindexed"},
    ),
    "a row with half a token": (
        lambda stock: stock.sql("UPDATE segments SET tokens = x'010203' WHERE start = 2"),
        {"bad row"},
    ),
    "a row with a negative size": (
        lambda stock: stock.sql("UPDATE segments SET rows_bytes = -5 WHERE start = 2"),
        {"bad row", "unindexed"},
    ),
    "a row with other tokens": (
        lambda stock: stock.sql("UPDATE segments SET tokens = x'01010101' WHERE start = 2"),
        {"bad row"},
    ),
    "a row with another size": (
        lambda stock: stock.sql("UPDATE segments SET rows_bytes = rows_bytes + 1 WHERE start = 2"),
        {"bad row"},
    ),
    "a row with another start": (
        lambda stock: stock.sql("UPDATE segments SET start = 9 WHERE start = 2"),
        {"bad row"},
    ),
    "a row with another parent": (
        lambda stock: stock.sql("UPDATE segments SET parent = x'ff' WHERE start = 2"),
        {"bad row"},
    ),
    "a row of another owner": (
        lambda stock: stock.sql("UPDATE segments SET owner = x'0102030405060708' WHERE start = 2"),
        {"bad row"},
    ),
    "a row with an unknown loss": (
        lambda stock: stock.sql("UPDATE segments SET loss = 'eaten' WHERE start = 2"),
        {"bad row", "unindexed"},
    ),
    "no index": (lambda stock: (stock.root / "index.db").unlink(), {"unindexed"}),
}
if os.name == "posix":
    FAULTS |= {
        "a link in its place": (replace_by(lambda path: path.symlink_to("/dev/zero")), {"damaged"}),
        "a link to nothing": (replace_by(lambda path: path.symlink_to("nowhere")), {"damaged"}),
        "a pipe in its place": (replace_by(os.mkfifo), {"damaged"}),
    }


def test_a_sound_stock_is_fine(stock: Stock) -> None:
    """Each file is read once, and all are as they should be."""
    report = stock.verify()
    assert (report.n_ok, report.faults, report.n_foreign) == (5, (), 0)
    assert report.n_bytes == sum(path.stat().st_size for path in stock.root.rglob("*.rows")) + 1136
    assert report.is_fine


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_found_and_repaired(stock: Stock, name: str) -> None:
    """Looking changes nothing; repairing leaves a sound stock whose good files are all in use; chats are untouched."""
    tamper, expected = FAULTS[name]
    tamper(stock)
    before = content(stock.root)
    report = stock.verify()
    assert kinds(report) == expected
    assert not report.is_fine
    assert content(stock.root) == before
    repaired = stock.verify(repair=True)
    assert kinds(repaired) == expected
    assert repaired.is_fine
    again = stock.verify()
    assert (again.faults, again.n_ok) == ((), len(on_disk(stock.root)))
    assert stored(stock.root) == on_disk(stock.root)
    assert content(stock.data_dir) == stock.chats
    with closing(open_store(stock.root)) as store:
        hits = store.lookup((1, 2, 3, 4, 5, 6, 7)).hits
        for hit in hits:
            store.read(hit.segment)
    # Where no file was lost, the chain is whole again.
    assert (len(hits) == 4) == (len(on_disk(stock.root)) == 5)


@pytest.mark.parametrize(("name", "loss"), [("half left", "damaged"), ("row without a file", "vanished")])
def test_a_repaired_row_says_why_it_has_no_file(stock: Stock, name: str, loss: str) -> None:
    """A later miss has its reason."""
    FAULTS[name][0](stock)
    stock.verify(repair=True)
    assert outlines(stock.root)[stock.victim_key].loss == loss


def test_damaged_files_are_kept_for_a_look(stock: Stock) -> None:
    """They are set aside, not deleted."""
    damage(stock.victim)
    data = stock.victim.read_bytes()
    stock.verify(repair=True)
    assert (stock.root / "damaged" / stock.victim.name).read_bytes() == data


def test_faults_say_where_and_how(stock: Stock) -> None:
    """The file and one phrase."""
    damage(stock.victim)
    assert stock.verify().faults == (Fault("damaged", str(stock.victim), "its checksum does not match"),)


@pytest.mark.skipif(os.name != "posix" or os.getuid() == 0, reason="the superuser may read everything")
def test_a_file_that_may_not_be_read_is_told(stock: Stock) -> None:
    """It is left as it is: perhaps it can be read tomorrow."""
    stock.victim.chmod(0)
    report = stock.verify(repair=True)
    assert kinds(report) == {"unreadable"}
    assert not report.is_fine
    assert stock.victim.exists()


def test_a_file_that_cannot_be_read_is_told(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the disk is none of the file's content; nothing is set aside for it."""
    check = check_segment

    def fail(path: Path, key: bytes, buffer: memoryview) -> object:
        if path == stock.victim:
            raise OSError(5, "Input/output error")
        return check(path, key, buffer)

    monkeypatch.setattr(kvverify, "check_segment", fail)
    report = stock.verify(repair=True)
    assert report.faults == (Fault("unreadable", str(stock.victim), "Input/output error"),)
    assert (report.is_fine, report.n_repaired, stock.victim.exists()) == (False, 0, True)
    assert outlines(stock.root)[stock.victim_key].loss is None


def test_many_faults_at_once(stock: Stock) -> None:
    """One does not hide another."""
    damage(stock.paths[0])
    stock.paths[1].unlink()
    stock.sql("DELETE FROM segments WHERE key = ?", stock.chain[2].key)
    report = stock.verify(repair=True)
    assert [report.count(kind) for kind in ("damaged", "missing", "unindexed", "bad row")] == [1, 1, 1, 0]
    assert (report.n_ok, report.n_repaired) == (2, 3)
    assert stock.verify().is_fine


def test_files_of_another_data_directory_are_counted_only(stock: Stock) -> None:
    """They cannot be checked with our key and are not ours to touch, damaged or not."""
    with closing(open_store(stock.root, key=OTHER_KEY)) as other:
        chain = put(other, (1, 2), (3,), (4,), (5,))
    damage(path_of(stock.root, chain[1]))
    path_of(stock.root, chain[2]).write_bytes(b"junk")
    path_of(stock.root, chain[3]).unlink()
    before = content(stock.root)
    report = stock.verify(repair=True)
    assert (report.n_ok, report.n_foreign, report.faults) == (5, 3, ())
    assert content(stock.root) == before


def test_without_a_mac_key_nothing_is_ours(stock: Stock) -> None:
    """Files are foreign, rows are not judged."""
    report = stock.verify(key=None)
    assert (report.n_ok, report.n_foreign, report.faults) == (0, 5, ())


def test_without_a_folder_nothing_is_made(tmp_path: Path) -> None:
    """There is nothing to check, with or without repair."""
    for repair in (False, True):
        report = kvverify.verify(tmp_path / "kv", KEY, repair=repair, progress=lambda _d, _t: None)
        assert report == VerifyReport()
    assert list(tmp_path.iterdir()) == []


def test_an_unreadable_index_is_an_error_until_repaired(stock: Stock) -> None:
    """Looking leaves it as it is; repairing makes a new one from the files."""
    (stock.root / "index.db").write_bytes(b"no database" * 500)
    with pytest.raises(OSError, match="not a database"):
        stock.verify()
    assert (stock.root / "index.db").read_bytes().startswith(b"no database")
    assert stock.verify(repair=True).count("unindexed") == 5
    assert stock.verify().is_fine


def test_progress_ends_at_everything(stock: Stock) -> None:
    """Bytes done grow up to the total."""
    seen: list[tuple[int, int]] = []
    report = kvverify.verify(stock.root, KEY, repair=False, progress=lambda *both: seen.append(both))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (report.n_bytes, report.n_bytes)


def test_a_stop_does_not_wait_for_the_rest(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl+C leaves the files that no thread has begun."""
    with closing(open_store(stock.root)) as store:
        put(store, *((n,) for n in range(100, 160)))
    n_read = 0
    is_ending = threading.Event()

    def count(*_: object) -> object:
        nonlocal n_read
        n_read += 1
        if n_read > 1:
            is_ending.wait()
        raise SegmentDamaged("counted")

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            is_ending.set()
            super().shutdown(wait=wait)

    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kvverify, "check_segment", count)
    monkeypatch.setattr(kvverify, "_READERS", 1)
    monkeypatch.setattr(kvverify, "ThreadPoolExecutor", Pool)
    with pytest.raises(KeyboardInterrupt):
        kvverify.verify(stock.root, KEY, repair=False, progress=stop)
    assert n_read <= 2


@pytest.fixture
def engine(stock: Stock) -> Iterator[KvStore]:
    """An engine at work."""
    with closing(open_store(stock.root)) as opened:
        yield opened


def test_an_engine_at_work_is_no_fault(stock: Stock, engine: KvStore) -> None:
    """What is published, rewritten or evicted while files are read is looked at again before it is called a fault."""
    done: list[str] = []

    def meanwhile(_done: int, _total: int) -> None:
        if not done:
            done.append("x")
            put(engine, (50,), (51,))
            put(engine, (1, 2), n_bytes=1200)
            engine._index.lose([(stock.chain[3].key, "rows"), (stock.chain[3].key, "state")], "evicted")
            for part in PARTS:
                path_of(stock.root, stock.chain[3], part).unlink()

    report = kvverify.verify(stock.root, KEY, repair=False, progress=meanwhile)
    assert report.faults == ()


def test_a_file_that_was_rewritten_meanwhile_is_not_set_aside(stock: Stock, engine: KvStore) -> None:
    """It is read once more, under the lock, before it is taken out of use."""
    damage(stock.paths[0])

    def meanwhile(done: int, total: int) -> None:
        if done == total:
            put(engine, (1, 2))

    kvverify.verify(stock.root, KEY, repair=True, progress=meanwhile)
    assert engine.lookup((1, 2, 3)).end == 3
    assert stock.verify().faults == ()


def test_a_deletion_under_way_is_no_fault(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows go first, then files: what is found in between is looked at again when the deletion is over."""
    stock.sql("DELETE FROM segments WHERE key = ?", stock.victim_key)
    locked = KvFolder.locked

    def after_the_deletion(folder: KvFolder) -> AbstractContextManager[None]:
        stock.victim.unlink()
        return locked(folder)

    monkeypatch.setattr(KvFolder, "locked", after_the_deletion)
    assert stock.verify().faults == ()


def test_a_damaged_database_is_made_anew(tmp_path: Path) -> None:
    """Repairing begins with the index itself; what is stored is found again afterwards."""
    root = tmp_path / "kv"
    store = KvStore(root, KEY, FINGERPRINT, clock=lambda: 1.0)
    for n in range(60):
        store.write(SegmentId(store.digest, store.root_key, 0, (n, n)), b"rows")
    store.close()
    path = root / "index.db"
    intact = path.read_bytes()
    path.write_bytes(intact[:8_192] + b"\xa5" * (len(intact) - 8_192))
    report = verify(root, KEY, repair=True, progress=lambda _done, _total: None)
    assert ([fault.detail for fault in report.faults], report.n_repaired) == (
        ["the index was damaged, and was made anew"],
        1,
    )
    report = verify(root, KEY, repair=False, progress=lambda _done, _total: None)
    assert (report.n_ok, report.faults) == (60, ())
