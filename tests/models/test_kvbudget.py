import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from models import kvbudget
from models.kvbudget import KvFull, Limits, ancestry, evict, is_stale, limits_for, make_room, size
from models.kvfolder import InUse, KvFolder
from models.kvformat import Part, SegmentId
from models.kvindex import KvIndex
from models.kvsettings import KvSettings
from models.kvstore import KvStore, today
from tests.models.helpers import changed
from tests.models.kvstock import (
    BUILD,
    OWNER,
    Clock,
    Engine,
    on_disk,
    open_store,
    outlines,
    path_of,
    payload_of,
    put,
    stored,
)

FILE_BYTES = 1132 + 4
"""Of a segment of one token as `put` stores it."""
DAY_S = 86_400.0


class Stock:
    """A store whose files can be evicted from outside, as another process does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = KvFolder(root)
        self.clock = Clock()
        self.store = open_store(root, clock=self.clock)

    def evict(self, n_bytes: int) -> int:
        """At least so much."""
        with self.folder.locked(), closing(KvIndex(self.root / "index.db")) as index:
            return evict(self.folder, index, n_bytes, build=BUILD)

    def put(self, *tokens: int, after: SegmentId | None = None, kinds: tuple[Part, ...] = ("rows",)) -> SegmentId:
        """One segment, a second later than the last one."""
        self.clock.now += 1
        return put(self.store, tokens, after=after, kinds=kinds)[-1]

    def order(self) -> list[tuple[bytes, Part]]:
        """What goes in which order, evicting as little as possible each time; ends when nothing can go."""
        gone: list[tuple[bytes, Part]] = []
        while self.evict(1):
            gone += sorted(on for on in self.known if on not in on_disk(self.root) and on not in gone)
        return gone

    def remember(self) -> None:
        """Start counting what goes from here."""
        self.known = on_disk(self.root)


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[Stock]:
    """Nothing stored yet."""
    made = Stock(tmp_path / "kv")
    yield made
    made.store.close()


def rows(segment: SegmentId) -> tuple[bytes, Part]:
    """Its first part."""
    return segment.key, "rows"


def state(segment: SegmentId) -> tuple[bytes, Part]:
    """Its second part."""
    return segment.key, "state"


# --- the order ---


def test_ends_of_chains_go_least_recently_used_first(stock: Stock) -> None:
    """A beginning follows its last end, so no chain is ever cut in the middle."""
    shared = stock.put(1)
    old, new = stock.put(2, after=shared), stock.put(3, after=shared)
    older = stock.put(4)
    stock.store._index.touch([older.key], 1.0)
    stock.remember()
    assert stock.order() == [rows(older), rows(old), rows(new), rows(shared)]


def test_a_use_saves_an_end(stock: Stock) -> None:
    """A lookup counts as a use of the whole chain."""
    one, other = stock.put(1), stock.put(2)
    stock.clock.now += 1
    stock.store.lookup((1,))
    stock.remember()
    assert stock.order() == [rows(other), rows(one)]


def test_another_build_goes_first(stock: Stock) -> None:
    """However recently it was used: this program can never read it."""
    ours = stock.put(1)
    stock.clock.now += 100
    with closing(open_store(stock.root, changed(llama_build="newer"), clock=stock.clock)) as other:
        theirs = put(other, (1,), (2,))
    stock.remember()
    assert stock.order() == [rows(theirs[1]), rows(theirs[0]), rows(ours)]


def test_states_inside_a_chain_go_before_its_ends(stock: Stock) -> None:
    """The one not restored from for longest first; the rows they belong to stay until they are an end."""
    first = stock.put(1, kinds=("rows", "state"))
    second = stock.put(2, after=first, kinds=("rows", "state"))
    last = stock.put(3, after=second, kinds=("rows", "state"))
    stock.store._index.touch([], stock.clock.now + 1, state=first.key)
    stock.remember()
    assert stock.order() == [state(second), state(first), rows(last), state(last), rows(second), rows(first)]


def test_states_alone_form_chains_too(stock: Stock) -> None:
    """A recurrent memory has no rows; its inner states go first, then the ends."""
    first = stock.put(1, kinds=("state",))
    last = stock.put(2, after=first, kinds=("state",))
    other = stock.put(3, kinds=("state",))
    stock.remember()
    assert stock.order() == [state(first), state(last), state(other)]


def test_a_lost_end_does_not_shield_its_beginning(stock: Stock) -> None:
    """Rows without a file are no reason to keep what is before them."""
    first = stock.put(1)
    second = stock.put(2, after=first)
    stock.store._index.lose([rows(second)], "damaged")
    path_of(stock.root, second).unlink()
    stock.remember()
    assert stock.order() == [rows(first)]


def test_no_more_goes_than_needed(stock: Stock) -> None:
    """What is freed is told, and is the least that suffices."""
    for n in range(5):
        stock.put(n)
    assert stock.evict(0) == 0
    assert stock.evict(1) == FILE_BYTES
    assert stock.evict(FILE_BYTES + 1) == 2 * FILE_BYTES
    assert len(on_disk(stock.root)) == 2
    assert stock.evict(1 << 40) == 2 * FILE_BYTES
    assert stock.evict(1 << 40) == 0


def test_an_evicted_row_says_so(stock: Stock) -> None:
    """A later miss has its reason."""
    segment = stock.put(1)
    stock.evict(1)
    assert outlines(stock.root)[segment.key].loss == "evicted"


def test_old_reasons_are_forgotten(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the newest ends without a file keep their rows; the index does not grow for ever."""
    monkeypatch.setattr(kvbudget, "_LOST_ROWS_KEPT", 2)
    segments = [stock.put(n) for n in range(5)]
    stock.evict(1 << 40)
    assert set(outlines(stock.root)) == {segment.key for segment in segments[3:]}


# --- what is in use ---


def test_a_chain_in_use_stays(stock: Stock) -> None:
    """From its beginning to its tip; what hangs on it behind the tip goes."""
    first = stock.put(1)
    tip = stock.put(2, after=first)
    stock.put(3, after=tip)
    stock.put(4, after=first)
    sign = InUse(stock.folder)
    sign.show(tip.key, None)
    stock.evict(1 << 40)
    assert on_disk(stock.root) == {rows(first), rows(tip)}
    sign.close()
    stock.evict(1 << 40)
    assert on_disk(stock.root) == set()


def test_other_processes_chains_stay_while_they_live(stock: Stock) -> None:
    """Several engines, each with its chain; one that was killed protects nothing."""
    one, other, free = stock.put(1), stock.put(2), stock.put(3)
    engines = [Engine(stock.root, one.key), Engine(stock.root, other.key)]
    stock.evict(1 << 40)
    assert on_disk(stock.root) == {rows(one), rows(other)}
    assert rows(free) not in on_disk(stock.root)
    engines[0].kill()
    stock.evict(1 << 40)
    assert on_disk(stock.root) == {rows(other)}
    engines[1].end()
    stock.evict(1 << 40)
    assert on_disk(stock.root) == set()


def test_states_in_use_stay(stock: Stock) -> None:
    """Inner states too: the engine may go back to them."""
    first = stock.put(1, kinds=("rows", "state"))
    tip = stock.put(2, after=first, kinds=("rows", "state"))
    stock.store.use(tip)
    assert stock.evict(1 << 40) == 0


def test_a_chain_that_grows_keeps_its_beginning(tmp_path: Path) -> None:
    """While a segment is written whose key no sign can protect yet, what it continues is not evicted for it."""
    settings = KvSettings(budget_bytes=3 * FILE_BYTES, free_floor_bytes=0)
    clock = Clock()
    with closing(open_store(tmp_path / "kv", clock=clock, settings=settings)) as store:
        chain = put(store, (1,), (2,))
        clock.now += 1
        put(store, (9,))
        put(store, (3,), after=chain[1])
        assert store.lookup((1, 2, 3)).end == 3
        with pytest.raises(KvFull, match="in use"):
            put(store, (4,), after=SegmentId(store.digest, chain[1].key, 2, (3,)))
        assert store.lookup((1, 2, 3)).end == 3


# --- limits ---


@pytest.mark.parametrize(
    ("free", "disk", "stored_bytes", "budget", "floor"),
    [
        (1000 << 30, 2000 << 30, 0, 20 << 30, 1 << 30),
        (100 << 30, 100 << 30, 50 << 30, 15 << 30, 1 << 30),
        (1 << 30, 10 << 30, 0, (1 << 30) // 10, (10 << 30) // 20),
        (0, 0, 0, 0, 16 << 20),
    ],
)
def test_default_limits_come_from_the_disk(
    stock: Stock,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    disk: int,
    stored_bytes: int,
    budget: int,
    floor: int,
) -> None:
    """What is stored counts as free, so a restart does not shrink the budget."""
    monkeypatch.setattr(KvFolder, "free_bytes", lambda _: free)
    monkeypatch.setattr(KvFolder, "disk_bytes", lambda _: disk)
    assert limits_for(KvSettings(), stock.folder, stored_bytes) == Limits(budget, floor, None)
    chosen = KvSettings(budget_bytes=1, free_floor_bytes=2, daily_bytes=3)
    assert limits_for(chosen, stock.folder, stored_bytes) == Limits(1, 2, 3)


@pytest.fixture
def room(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make room for one file under given limits, on a disk with so much free beside what is stored."""

    def make(
        n_bytes: int, *, budget: int = 1 << 40, floor: int = 0, daily: int | None = None, free: int = 1 << 50
    ) -> None:
        used = sum(1 for _ in on_disk(stock.root)) * FILE_BYTES
        monkeypatch.setattr(KvFolder, "free_bytes", lambda folder: free + used - len(on_disk(folder.root)) * FILE_BYTES)
        with stock.folder.locked(), closing(KvIndex(stock.root / "index.db")) as index:
            day = today(stock.clock())
            make_room(stock.folder, index, Limits(budget, floor, daily), n_bytes, build=BUILD, today=day)

    return make


def test_a_little_more_than_needed_goes(stock: Stock, room: Callable[..., None]) -> None:
    """So that the next turns need not evict again."""
    for n in range(100):
        stock.put(n)
    room(FILE_BYTES, budget=100 * FILE_BYTES)
    assert len(on_disk(stock.root)) == 94
    room(6 * FILE_BYTES, budget=100 * FILE_BYTES)
    assert len(on_disk(stock.root)) == 94


def test_what_fits_evicts_nothing(stock: Stock, room: Callable[..., None]) -> None:
    """Up to the last byte."""
    stock.put(1)
    room(FILE_BYTES, budget=2 * FILE_BYTES, daily=2 * FILE_BYTES, floor=5, free=FILE_BYTES + 5)
    assert len(on_disk(stock.root)) == 1


def test_a_budget_in_use_is_full(stock: Stock, room: Callable[..., None]) -> None:
    """The error names the budget and why nothing can go."""
    stock.store.use(stock.put(1))
    with pytest.raises(KvFull) as caught:
        room(FILE_BYTES, budget=FILE_BYTES)
    assert caught.value.strerror == "the budget of 1.1 KiB is taken by conversations in use"


def test_nothing_is_evicted_for_what_never_fits(stock: Stock, room: Callable[..., None]) -> None:
    """A segment larger than the budget does not empty the store."""
    stock.put(1)
    with pytest.raises(KvFull) as caught:
        room(3 * FILE_BYTES, budget=2 * FILE_BYTES)
    assert caught.value.strerror == "the budget of 2.2 KiB is smaller than what is to be stored"
    assert len(on_disk(stock.root)) == 1


def test_the_free_floor_makes_kv_go(stock: Stock, room: Callable[..., None]) -> None:
    """When others fill the disk, KV gives way; what it cannot reach is an error with the figure."""
    for n in range(4):
        stock.put(n)
    room(FILE_BYTES, floor=2 * FILE_BYTES, free=FILE_BYTES, budget=4 * FILE_BYTES)
    assert len(on_disk(stock.root)) == 1
    with pytest.raises(KvFull) as caught:
        room(FILE_BYTES, floor=1 << 30, free=0)
    assert caught.value.strerror == "the disk has less than 1.0 GiB free"


def test_a_daily_limit_ends_with_the_day(stock: Stock, room: Callable[..., None]) -> None:
    """What was written today counts, evicted or not; tomorrow is another day; nothing to write is never refused."""
    stock.put(1)
    stock.evict(1 << 40)
    with pytest.raises(KvFull) as caught:
        room(FILE_BYTES, daily=2 * FILE_BYTES - 1)
    assert caught.value.strerror == "today's limit of 2.2 KiB of writing is reached"
    room(0, daily=0)
    stock.clock.now += DAY_S
    room(FILE_BYTES, daily=FILE_BYTES)


def test_limits_hold_for_the_whole_file(tmp_path: Path) -> None:
    """Header and token ids count: a budget is never exceeded by a few bytes."""
    settings = KvSettings(budget_bytes=3 * FILE_BYTES - 1, free_floor_bytes=0)
    with closing(open_store(tmp_path / "kv", settings=settings)) as store:
        for n in range(3):
            put(store, (n,))
            assert sum(row.bytes for row in outlines(tmp_path / "kv").values()) <= 3 * FILE_BYTES - 1


def test_a_smaller_budget_counts_from_the_next_start(stock: Stock) -> None:
    """Opening the store evicts what is too much."""
    for n in range(4):
        stock.put(n)
    open_store(stock.root, settings=KvSettings(budget_bytes=2 * FILE_BYTES, free_floor_bytes=0)).close()
    assert 0 < len(on_disk(stock.root)) <= 2


def test_an_old_build_is_stale(stock: Stock) -> None:
    """A generation that does not say is not."""
    fingerprint = changed(llama_build="older")
    open_store(stock.root, fingerprint).close()
    assert is_stale(stock.folder, fingerprint.digest(), BUILD)
    assert not is_stale(stock.folder, stock.store.digest, BUILD)
    assert not is_stale(stock.folder, b"x" * 32, BUILD)


def test_sizes_in_words() -> None:
    """Three figures at most, binary units."""
    sizes = [0, 1023, 1024, 10 * 1024, 1536, 20 << 30, 3 << 50]
    assert [size(n) for n in sizes] == ["0 B", "1023 B", "1.0 KiB", "10 KiB", "1.5 KiB", "20 GiB", "3072 TiB"]


def test_chains_of_garbage_end(stock: Stock) -> None:
    """A row that is its own ancestor does not hang the program."""
    first = stock.put(1)
    second = stock.put(2, after=first)
    stock.store._index._query("UPDATE segments SET parent = ? WHERE key = ?", (second.key, first.key))
    found = ancestry(outlines(stock.root), [second.key, b"unknown"])
    assert found == {first.key, second.key}
    stock.evict(1 << 40)


# --- killed, and large ---


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", range(12))
def test_killed_while_evicting_no_row_promises_too_much(
    stock: Stock, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Stopped before any operation: files may be too many, never rows; what is found can be read."""
    shared = stock.put(1)
    chains = [[shared, stock.put(2, after=shared)], [shared, stock.put(3, after=shared)]]
    for chain in chains:
        chain.append(stock.put(4, 5, after=chain[-1], kinds=("rows", "state")))
    n_steps = 0

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **named: object) -> object:
            nonlocal n_steps
            n_steps += 1
            if n_steps > step:
                raise Killed
            return function(*args, **named)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", counted(Path.unlink))
        patched.setattr(KvIndex, "_many", counted(KvIndex._many))
        patched.setattr(KvIndex, "drop_lost_leaves", counted(KvIndex.drop_lost_leaves))
        with stock.folder.locked(), closing(KvIndex(stock.root / "index.db")) as index:
            try:
                evict(stock.folder, index, 5 * FILE_BYTES, build=BUILD)
            except Killed:
                pass
    assert stored(stock.root) <= on_disk(stock.root)
    check_readable(stock.root)
    with closing(open_store(stock.root)) as again, closing(KvIndex(stock.root / "index.db")) as index:
        index.mark("reconciled", 0.0)
        again.tidy()
    assert stored(stock.root) == on_disk(stock.root)
    check_readable(stock.root)


def check_readable(root: Path) -> None:
    """Whatever a lookup finds can be read and is what was stored."""
    with closing(open_store(root)) as store:
        for tokens in ((1, 2, 4, 5), (1, 3, 4, 5)):
            for hit in store.lookup(tokens).hits:
                assert bytes(store.read(hit.segment)) == payload_of(hit.segment, "rows", 1000)


KILLER = """
import os, sys
from pathlib import Path
from models.kvbudget import evict
from models.kvfolder import KvFolder
from models.kvindex import KvIndex
root, step = Path(sys.argv[1]), int(sys.argv[2])
unlink, n = Path.unlink, 0
def counted(path, missing_ok=False):
    global n
    n += path.suffix == ".rows"
    if n > step:
        os._exit(9)
    unlink(path, missing_ok=missing_ok)
Path.unlink = counted
folder = KvFolder(root)
with folder.locked():
    evict(folder, KvIndex(folder.index_path), 1 << 40, build=sys.argv[3])
"""


@pytest.mark.parametrize("step", [0, 2])
def test_a_process_that_dies_while_evicting_leaves_lock_and_index_usable(stock: Stock, step: int) -> None:
    """The next one finds no lock, no torn row and no promise in vain."""
    for n in range(4):
        stock.put(n)
    command = [sys.executable, "-c", KILLER, str(stock.root), str(step), BUILD]
    assert subprocess.run(command, cwd=Path(__file__).parents[2], check=False).returncode == 9
    assert (len(on_disk(stock.root)), stored(stock.root)) == (4 - step, set())
    stock.put(9)
    assert stock.store.lookup((9,)).end == 1


def steps_of_evicting(root: Path, n_rows: int) -> tuple[int, int]:
    """Calls in Python and instructions of SQLite that evicting nearly everything takes, per thousand."""
    folder = KvFolder(root)
    n_instructions = n_calls = 0

    def instruction() -> int:
        nonlocal n_instructions
        n_instructions += 1
        return 0

    def call(_frame: object, event: str, _arg: object) -> None:
        nonlocal n_calls
        n_calls += event in ("call", "c_call")

    with closing(KvIndex(root / "index.db")) as index:
        parent = b"r" * 32
        values = []
        for n in range(n_rows):
            # Chains of fifty, so that ends become beginnings.
            segment = SegmentId(b"f" * 32, parent if n % 50 else b"r" * 32, n % 50, (n,))
            parent = segment.key
            values.append(
                (segment.key, segment.parent, b"f" * 32, OWNER, n % 50, 1, 100, 7, 1.0 * n, 1.0, None, b"\0" * 4)
            )
        index._many("INSERT INTO segments VALUES(?,?,?,?,?,?,?,?,?,?,?,?)", values)
        index._db.conn.set_progress_handler(instruction, 1000)
        sys.setprofile(call)
        try:
            freed = evict(folder, index, n_rows * 100, build=BUILD)
        finally:
            sys.setprofile(None)
        assert freed >= n_rows * 100
    return n_calls, n_instructions


def test_evicting_is_not_quadratic(tmp_path: Path) -> None:
    """Ten times the rows take about ten times the work, in Python and in SQLite."""
    few = steps_of_evicting(tmp_path / "few", 2_000)
    many = steps_of_evicting(tmp_path / "many", 20_000)
    assert many[0] < 13 * few[0]
    assert many[1] < 15 * few[1]


# --- any sequence ---


class AnySequence(RuleBasedStateMachine):
    """Storing, evicting, losing files or rows, and starting again, beside a plain dictionary of what was stored."""

    BUDGET = 8 * FILE_BYTES

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(AnySequence.folder.mktemp("any")) / "kv"
        self.clock = Clock()
        self.model: dict[bytes, bytes] = {}
        self.store: KvStore | None = None
        self.start()

    folder: pytest.TempPathFactory

    def start(self) -> None:
        """An engine starts."""
        limits = KvSettings(budget_bytes=self.BUDGET, free_floor_bytes=0)
        self.store = open_store(self.root, clock=self.clock, settings=limits)

    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=5))
    def put(self, tokens: list[int]) -> None:
        """Store what is new of a conversation, as far as the budget allows."""
        assert self.store is not None
        self.clock.now += 1
        parent, start = self.store.root_key, 0
        for token in tokens:
            segment = SegmentId(self.store.digest, parent, start, (token,))
            if not self.store.has(segment.key):
                payload = payload_of(segment, "rows", 1000)
                try:
                    self.store.write(segment, payload)
                except KvFull:
                    return
                self.model[segment.key] = payload
            parent, start = segment.key, segment.end
            self.store.use(segment)

    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=5))
    def resume(self, tokens: list[int]) -> None:
        """What is found was stored, from the beginning and without a gap, and is read as it was."""
        assert self.store is not None
        self.clock.now += 1
        position = 0
        for hit in self.store.lookup(tokens).hits:
            assert hit.segment.start == position
            try:
                assert bytes(self.store.read(hit.segment)) == self.model[hit.segment.key]
            except FileNotFoundError:
                break
            position = hit.end

    @rule(n_bytes=st.integers(0, 4 * FILE_BYTES))
    def evict(self, n_bytes: int) -> None:
        """Another process prunes."""
        folder = KvFolder(self.root)
        with folder.locked(), closing(KvIndex(self.root / "index.db")) as index:
            evict(folder, index, n_bytes, build=BUILD)

    @rule(n=st.integers(0, 20))
    def lose_a_file(self, n: int) -> None:
        """Somebody deletes a file."""
        files = sorted(self.root.rglob("*.rows"))
        if files:
            files[n % len(files)].unlink()

    @rule(n=st.integers(0, 20))
    def lose_a_row(self, n: int) -> None:
        """A crash came between file and row."""
        keys = sorted(outlines(self.root))
        if keys:
            with closing(KvIndex(self.root / "index.db")) as index:
                index.remove([keys[n % len(keys)]])

    @rule()
    def restart(self) -> None:
        """The engine ends and another one starts."""
        assert self.store is not None
        self.store.close()
        self.start()

    @rule()
    def lose_the_index(self) -> None:
        """It is deleted while no engine runs, and filled from the files."""
        assert self.store is not None
        self.store.close()
        for path in self.root.glob("index.db*"):
            path.unlink()
        self.start()

    @precondition(lambda self: self.store is not None)
    @invariant()
    def within_budget(self) -> None:
        """What the index knows is never above the budget."""
        assert sum(row.bytes for row in outlines(self.root).values()) <= self.BUDGET

    def teardown(self) -> None:
        """Close what is open."""
        if self.store:
            self.store.close()


def test_any_sequence_keeps_the_budget_and_what_it_promises(tmp_path_factory: pytest.TempPathFactory) -> None:
    """See `AnySequence`."""
    from hypothesis.stateful import run_state_machine_as_test

    AnySequence.folder = tmp_path_factory
    run_state_machine_as_test(AnySequence, settings=settings(max_examples=25, stateful_step_count=20))
