import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from models.kvbudget import KvFull
from models.kvformat import PARTS, Part, SegmentId
from models.kvstore import KvStore
from models.kvwriter import Item, KvWriter, Written
from tests.models.helpers import FINGERPRINT

WAIT_S = 10.0
FULL = "KV is not kept: the disk is full"


class SlowStore(KvStore):
    """A store whose writes wait for a permit each and fail where they are told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, b"k" * 32, FINGERPRINT, clock=lambda: 1.0)
        self.permits = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.failing: set[tuple[bytes, Part]] = set()
        self.published: list[tuple[tuple[int, ...], Part]] = []
        self.n_tidied = 0

    def write(self, segment: SegmentId, payload: bytes | bytearray | memoryview, part: Part = "rows") -> int:
        """Wait, then fail or publish."""
        self.begun.release()
        assert self.permits.acquire(timeout=WAIT_S)
        if (segment.key, part) in self.failing:
            raise KvFull("the disk is full")
        n_bytes = super().write(segment, payload, part)
        self.published.append((segment.tokens, part))
        return n_bytes

    def tidy(self) -> None:
        """Count."""
        self.n_tidied += 1


class Reports:
    """What the writer says, in order; `wait` for the next one."""

    def __init__(self) -> None:
        self.said: list[Written] = []
        self._arrived = threading.Semaphore(0)

    def __call__(self, written: Written) -> None:
        """The writer's thread."""
        self.said.append(written)
        self._arrived.release()

    def wait(self) -> Written:
        """The newest, when it is there."""
        assert self._arrived.acquire(timeout=WAIT_S)
        return self.said[-1]


class Gate(threading.Event):
    """Tells when somebody waits at it."""

    def __init__(self) -> None:
        super().__init__()
        self.set()
        self._reached = threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        """As an event does."""
        if not self.is_set():
            self._reached.release()
        return super().wait(timeout)

    def is_reached(self) -> bool:
        """True when somebody came and found it closed."""
        return self._reached.acquire(timeout=WAIT_S)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SlowStore]:
    """A store that waits for permits."""
    with closing(SlowStore(tmp_path / "kv")) as opened:
        yield opened


@pytest.fixture
def writer(store: SlowStore) -> Iterator[KvWriter]:
    """Its writer; at the end everything may be written."""
    writer = KvWriter(store)
    yield writer
    store.permits.release(1_000)
    writer.close()


def chain_of(store: KvStore, n: int, first: int = 0) -> list[SegmentId]:
    """A conversation of n segments of two tokens each."""
    chain: list[SegmentId] = []
    for i in range(n):
        parent, start = (chain[-1].key, chain[-1].end) if chain else (store.root_key, 0)
        chain.append(SegmentId(store.digest, parent, start, (first + 2 * i, first + 2 * i + 1)))
    return chain


def items(segments: Sequence[SegmentId], parts: Sequence[Part] = ("rows",), n_bytes: int = 50) -> list[Item]:
    """What is to be published of them."""
    return [Item(segment, part, bytearray(n_bytes)) for segment in segments for part in parts]


def ignored(_written: Written) -> None:
    """Nobody asks."""


# --- publishing ---


def test_everything_is_published_in_order(store: SlowStore, writer: KvWriter) -> None:
    """Batch after batch, item after item; each report tells its bytes and the chain's end."""
    store.permits.release(100)
    chain, reports = chain_of(store, 3), Reports()
    writer.put(items(chain[:2], PARTS), chain[1].key, reports)
    writer.put(items(chain[2:]), chain[2].key, reports)
    writer.drain()
    tokens = [segment.tokens for segment in chain]
    expected: list[tuple[tuple[int, ...], Part]] = [(t, part) for t in tokens[:2] for part in PARTS]
    assert store.published == [*expected, (tokens[2], "rows")]
    assert [written.tip for written in reports.said] == [chain[1].key.hex(), chain[2].key.hex()]
    assert [written.note for written in reports.said] == [None, None]
    assert sum(written.n_bytes for written in reports.said) == store._index.total_bytes()


def test_a_report_comes_behind_the_last_write(store: SlowStore, writer: KvWriter) -> None:
    """Who hears of a batch can read it."""
    chain, reports = chain_of(store, 2), Reports()
    writer.put(items(chain), chain[-1].key, reports)
    store.permits.release()
    assert store.begun.acquire(timeout=WAIT_S)
    assert store.begun.acquire(timeout=WAIT_S)
    assert reports.said == []
    store.permits.release()
    reports.wait()
    assert store.lookup((0, 1, 2, 3)).end == 4


@pytest.mark.parametrize("tip", [None, b"t" * 32])
def test_an_empty_batch_is_reported_too(writer: KvWriter, tip: bytes | None) -> None:
    """Nothing new was resident: the chain's end is told all the same."""
    reports = Reports()
    writer.put([], tip, reports)
    assert reports.wait() == Written(0, tip.hex() if tip else None)


def test_the_store_is_tidied_once(store: SlowStore, writer: KvWriter) -> None:
    """Behind the user's back, in the writer's thread."""
    writer.drain()
    reports = Reports()
    writer.put([], None, reports)
    reports.wait()
    assert store.n_tidied == 1


# --- failures ---


def test_a_failure_ends_its_chain(store: SlowStore, writer: KvWriter) -> None:
    """What follows could not be found, so it is not written; the report names the last one that is stored."""
    store.permits.release(100)
    chain, reports = chain_of(store, 4), Reports()
    store.failing = {(chain[2].key, "rows")}
    writer.put(items(chain), chain[-1].key, reports)
    written = reports.wait()
    assert [tokens for tokens, _ in store.published] == [segment.tokens for segment in chain[:2]]
    assert written == Written(store._index.total_bytes(), chain[1].key.hex(), FULL)


def test_a_failure_of_the_first_leaves_no_end(store: SlowStore, writer: KvWriter) -> None:
    """Nothing of the chain is stored."""
    store.permits.release(100)
    chain, reports = chain_of(store, 2), Reports()
    store.failing = {(chain[0].key, "rows")}
    writer.put(items(chain), chain[-1].key, reports)
    assert reports.wait() == Written(0, None, FULL)


def test_a_state_is_not_written_without_its_rows(store: SlowStore, writer: KvWriter) -> None:
    """The two belong together."""
    store.permits.release(100)
    chain, reports = chain_of(store, 2), Reports()
    store.failing = {(chain[1].key, "rows")}
    writer.put(items(chain, PARTS), chain[-1].key, reports)
    assert reports.wait().tip == chain[0].key.hex()
    assert store.published == [(chain[0].tokens, part) for part in PARTS]


def test_what_was_queued_behind_a_failure_is_not_written_either(store: SlowStore, writer: KvWriter) -> None:
    """A later batch of the same chain ends where that one did, for the same reason."""
    chain, reports = chain_of(store, 4), Reports()
    store.failing = {(chain[1].key, "rows")}
    writer.put(items(chain[:2]), chain[1].key, reports)
    writer.put(items(chain[2:]), chain[3].key, reports)
    store.permits.release(100)
    writer.drain()
    assert [tokens for tokens, _ in store.published] == [chain[0].tokens]
    assert [(written.tip, written.note) for written in reports.said] == [(chain[0].key.hex(), FULL)] * 2


def test_another_chain_is_not_affected(store: SlowStore, writer: KvWriter) -> None:
    """One conversation's trouble is not the next one's."""
    store.permits.release(100)
    broken, sound, reports = chain_of(store, 2), chain_of(store, 2, first=100), Reports()
    store.failing = {(broken[0].key, "rows")}
    writer.put(items(broken), broken[-1].key, reports)
    writer.put(items(sound), sound[-1].key, reports)
    writer.drain()
    assert (reports.said[1].tip, reports.said[1].note) == (sound[-1].key.hex(), None)


@pytest.mark.parametrize("parts", [("rows",), ("state",), PARTS])
def test_what_failed_may_be_tried_again(store: SlowStore, writer: KvWriter, parts: Sequence[Part]) -> None:
    """When there is room again, the chain is written from where it broke: rows, a state alone, or both."""
    store.permits.release(100)
    chain, reports = chain_of(store, 2), Reports()
    store.failing = {(chain[0].key, parts[-1])}
    writer.put(items(chain, parts), chain[-1].key, reports)
    assert reports.wait().note == FULL
    store.failing.clear()
    writer.put(items(chain, parts), chain[-1].key, reports)
    written = reports.wait()
    assert (written.tip, written.note) == (chain[-1].key.hex(), None)
    assert set(store.published) == {(segment.tokens, part) for segment in chain for part in parts}


def test_a_failure_is_told_once(store: SlowStore, writer: KvWriter) -> None:
    """Whoever extends the chain next has to look where it ends; after that the writer is as before."""
    store.permits.release(100)
    chain, reports = chain_of(store, 1), Reports()
    assert not writer.has_failed()
    store.failing = {(chain[0].key, "rows")}
    writer.put(items(chain), chain[0].key, reports)
    reports.wait()
    assert (writer.has_failed(), writer.has_failed()) == (True, False)


def test_the_systems_own_words_are_told(store: SlowStore, writer: KvWriter) -> None:
    """An error without a text of its own is told as it is."""
    store.permits.release(100)
    (segment,) = chain_of(store, 1)
    store._index.close()
    reports = Reports()
    writer.put(items([segment]), segment.key, reports)
    note = reports.wait().note
    assert note is not None
    assert note.startswith("KV is not kept: the KV index failed (")


def test_an_unexpected_error_does_not_end_the_writer(
    store: SlowStore, writer: KvWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told like any other; who waits for the writer does not wait for ever."""
    store.permits.release(100)
    chain, reports = chain_of(store, 1), Reports()

    def fail(*_args: object) -> int:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(store, "write", fail)
        writer.put(items(chain), chain[0].key, reports)
        assert reports.wait() == Written(0, None, "KV is not kept: unexpected error (MemoryError)")
    writer.put(items(chain), chain[0].key, reports)
    writer.drain()
    assert reports.said[-1].tip == chain[0].key.hex()


# --- what is waiting ---


def test_pending_segments_are_known(store: SlowStore, writer: KvWriter) -> None:
    """Until its last part is written, a segment is held."""
    chain, reports = chain_of(store, 2), Reports()
    writer.put(items(chain, PARTS), chain[-1].key, reports)
    for segment in chain:
        for _part in PARTS:
            assert writer.holds(segment)
            store.permits.release()
            assert store.begun.acquire(timeout=WAIT_S)
    reports.wait()
    assert [writer.holds(segment) for segment in chain] == [False, False]


def test_a_segment_that_failed_is_not_held(store: SlowStore, writer: KvWriter) -> None:
    """Nobody waits for what will not come, nor for what would have followed it."""
    store.permits.release(100)
    chain, reports = chain_of(store, 3), Reports()
    store.failing = {(chain[1].key, "rows")}
    writer.put(items(chain), chain[-1].key, reports)
    reports.wait()
    assert [writer.holds(segment) for segment in chain] == [False, False, False]
    assert writer.has_room()


@pytest.mark.parametrize(
    ("tokens", "useful", "expected"),
    [
        ((0, 1, 2, 3), 4, True),
        ((0, 1, 2, 3, 4), 4, True),
        ((0, 1, 2, 3, 4), 5, False),
        ((0, 9), 1, True),
        ((0, 9), 2, False),
        ((9, 9, 2), 3, True),
        ((9, 9), 1, False),
        ((), 1, False),
    ],
)
def test_a_prefix_may_be_waiting(
    store: SlowStore, writer: KvWriter, tokens: tuple[int, ...], useful: int, expected: bool
) -> None:
    """Told by the tokens at the segment's place: one too many is waited for, never one too few."""
    chain = chain_of(store, 2)
    assert not writer.holds_part_of(tokens, useful)
    writer.put(items(chain), chain[-1].key, ignored)
    assert writer.holds_part_of(tokens, useful) is expected
    store.permits.release(100)
    writer.drain()
    assert not writer.holds_part_of(tokens, useful)


def test_a_slow_disk_fills_the_room(store: SlowStore, writer: KvWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capturing waits until something was written, and no longer than it is told to."""
    monkeypatch.setattr("models.kvwriter._QUEUED_BYTES", 100)
    chain = chain_of(store, 3)
    writer.put(items(chain[:1]), chain[0].key, ignored)
    assert writer.has_room()
    writer.put(items(chain[1:]), chain[2].key, ignored)
    assert not writer.has_room()
    writer.wait_for_room(0.0)
    assert not writer.has_room()
    store.permits.release(2)
    writer.wait_for_room(WAIT_S)
    assert writer.has_room()


# --- holding back ---


@pytest.fixture
def gate(writer: KvWriter) -> Gate:
    """Where the writer waits while it is held."""
    gate = Gate()
    writer._may_write = gate
    return gate


def test_nothing_is_written_while_it_is_held(store: SlowStore, writer: KvWriter, gate: Gate) -> None:
    """What is queued meanwhile is written when the hold ends."""
    store.permits.release(100)
    chain, reports = chain_of(store, 1), Reports()
    with writer.held():
        writer.put(items(chain), chain[0].key, reports)
        assert gate.is_reached()
        assert (store.published, writer.holds(chain[0])) == ([], True)
    assert reports.wait().tip == chain[0].key.hex()


def test_a_hold_ends_with_an_error_too(store: SlowStore, writer: KvWriter) -> None:
    """An evaluation that failed does not keep the writer from its work."""
    store.permits.release(100)
    reports = Reports()
    with pytest.raises(ValueError, match="evaluation"), writer.held():
        raise ValueError("evaluation")
    (segment,) = chain_of(store, 1)
    writer.put(items([segment]), segment.key, reports)
    assert reports.wait().note is None


def test_draining_writes_what_is_held(store: SlowStore, writer: KvWriter, gate: Gate) -> None:
    """Who waits for the disk gets everything; then the hold goes on."""
    store.permits.release(100)
    one, other = chain_of(store, 1), chain_of(store, 1, first=100)
    reports = Reports()
    with writer.held():
        writer.put(items(one), one[0].key, reports)
        assert gate.is_reached()
        writer.drain()
        assert [written.tip for written in reports.said] == [one[0].key.hex()]
        writer.put(items(other), other[0].key, reports)
        assert gate.is_reached()
        assert len(reports.said) == 1
    writer.drain()
    assert len(reports.said) == 2


# --- the end ---


@pytest.mark.parametrize("is_held", [False, True])
def test_closing_writes_what_is_queued(store: SlowStore, is_held: bool) -> None:
    """Everything that was captured is on disk when the writer has ended, held or not."""
    store.permits.release(100)
    writer = KvWriter(store)
    if is_held:
        writer.held().__enter__()
    chain, reports = chain_of(store, 5), Reports()
    for segment in chain:
        writer.put(items([segment]), segment.key, reports)
    writer.close()
    assert store.lookup(tuple(range(10))).end == 10
    assert len(reports.said) == 5
    assert not writer._thread.is_alive()


def test_reports_come_from_the_writers_thread(store: SlowStore, writer: KvWriter) -> None:
    """Whoever is told must not assume to be alone."""
    names: list[str] = []
    done: Callable[[Written], None] = lambda _written: names.append(threading.current_thread().name)  # noqa: E731
    writer.put([], None, done)
    writer.drain()
    assert names == ["kv-writer"]
    assert store.published == []
