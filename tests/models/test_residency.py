import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import misses
from models.cost import Rates
from models.engine import MemoryKind
from models.errors import EngineError
from models.fingerprint import Fingerprint
from models.kvbudget import evict
from models.kvfolder import KvFolder, tips_in_use
from models.kvformat import HEADER_BYTES, Buffer, Part, SegmentId
from models.kvstore import KvStore
from models.kvwriter import Written
from models.llama import Context
from models.residency import Outcome, Request, Residency
from tests.models.helpers import FINGERPRINT, changed, damage, rows_of, segment_files

KEY = b"k" * 32
SYSTEM, ONE, TWO, THREE = (list(range(n, n + 30)) for n in (100, 200, 300, 400))
ENDS = [30, 60, 90, 120]


class FakeContext:
    """A context whose rows say which tokens they belong to, so that a wrong restore cannot pass unseen.

    Every kind's rules are kept: what can be cut, what has rows, what needs a state.
    """

    row_bytes = 8
    n_ctx = 1_000
    window = 20

    def __init__(self, kind: MemoryKind = "dense") -> None:
        self.kind = kind
        self.tokens: list[int] = []
        self.n_evaluated = 0
        self.cancel_at: int | None = None
        self.refuses = False
        self.lacks_state = False
        self.is_pushed_back = self.has_branches = False
        self.n_compacted = 0

    @property
    def is_cancelled(self) -> bool:
        """True once as many tokens are resident as the test lets through."""
        return self.cancel_at is not None and len(self.tokens) >= self.cancel_at

    def prefill(self, tokens: Sequence[int], progress: Callable[[int], None]) -> bool:
        """Append tokens, up to where it is cancelled."""
        assert not self.lacks_state
        allowed = tokens if self.cancel_at is None else tokens[: max(0, self.cancel_at - len(self.tokens))]
        self.tokens.extend(allowed)
        self.n_evaluated += len(allowed)
        progress(len(allowed))
        return len(allowed) == len(tokens)

    def keep(self, n: int) -> None:
        """Cut to the first n tokens, or to none where the memory cannot rewind."""
        if n < len(self.tokens) or self.lacks_state:
            del self.tokens[n if self.kind in ("dense", "sliding window") else 0 :]
            self.lacks_state = False

    def clear(self) -> None:
        """Empty it."""
        self.tokens.clear()
        self.lacks_state = False

    def compact(self) -> bool:
        """Count the call."""
        self.n_compacted += 1
        self.is_pushed_back = False
        return True

    def export_rows(self, start: int, end: int) -> bytearray:
        """The rows of [start, end)."""
        assert self.kind != "recurrent"
        return bytearray(rows_of(self.tokens[:end], start))

    def import_rows(self, payload: memoryview, start: int, tokens: Sequence[int], begin: int, end: int) -> bool:
        """Append [begin, end); the rows must be those of exactly these tokens behind the resident ones."""
        assert self.kind != "recurrent"
        assert begin == len(self.tokens)
        assert start <= begin < end <= start + len(tokens)
        assert self.kind == "dense" or (begin, end) == (start, start + len(tokens))
        assert len(self.tokens) + len(tokens) <= self.n_ctx, "no room for the whole piece"
        if self.refuses:
            self.clear()
            return False
        resulting = [*self.tokens[:start], *tokens]
        assert self.tokens[start:] == list(tokens[: begin - start])
        assert bytes(payload) == rows_of(resulting, start), "rows of other tokens"
        self.tokens = resulting[:end]
        self.lacks_state = self.kind == "hybrid"
        return True

    def export_state(self) -> bytearray:
        """The state behind the last token."""
        assert self.kind in ("hybrid", "recurrent")
        assert not self.lacks_state
        return bytearray(b"state" + rows_of(self.tokens, len(self.tokens) - 1))

    def import_state(self, payload: memoryview, tokens: Sequence[int]) -> bool:
        """Load a state; it must be the one behind exactly these tokens."""
        assert self.kind in ("hybrid", "recurrent")
        assert self.tokens == (list(tokens) if self.kind == "hybrid" else [])
        if self.refuses:
            self.clear()
            return False
        assert bytes(payload) == b"state" + rows_of(tokens, len(tokens) - 1), "the state of other tokens"
        self.tokens = list(tokens)
        self.lacks_state = False
        return True


class FullDisk(KvStore):
    """A store whose disk is full from the nth write on, until it is emptied."""

    room = 1_000
    gate: threading.Event | None = None
    """Writes wait until this is set."""

    def write(self, segment: SegmentId, payload: Buffer, part: Part = "rows") -> int:
        """Write, while there is room."""
        if self.gate:
            assert self.gate.wait(30)
        if self.room <= 0:
            raise OSError(28, "No space left on device")
        self.room -= 1
        return super().write(segment, payload, part)


class Program:
    """One run of the program: a context, a store over a folder, and what it captured last."""

    def __init__(
        self,
        root: Path,
        fingerprint: Fingerprint = FINGERPRINT,
        *,
        kind: MemoryKind = "dense",
        keeps_kv: bool = True,
        row_bytes: int = 8,
    ) -> None:
        self.context = FakeContext(kind)
        self.context.row_bytes = row_bytes
        self.is_awaited = False
        self.store = FullDisk(root, KEY, fingerprint, clock=lambda: 1.0, kind=kind) if keeps_kv else None
        if self.store:
            # Evaluating costs a fortune here and the disk nothing: what can be restored is.
            self.store.remember("rates", Rates(1.0, 0.0, 0.0).to_json())
        self.residency = Residency(cast(Context, self.context), self.store, is_awaited=lambda: self.is_awaited)

    def ensure(
        self,
        tokens: Sequence[int],
        *,
        reusable: int | None = None,
        n_history: int = 0,
        ends: Sequence[int] = (),
        keeps: bool = True,
    ) -> Outcome:
        """Make tokens resident, all of them reusable unless told otherwise."""
        tokens = list(tokens)
        outcome = self.residency.ensure(
            Request(tokens, len(tokens) if reusable is None else reusable, n_history, ends, keeps=keeps),
            lambda _phase, _done, _total: None,
        )
        if outcome.is_complete:
            assert self.context.tokens == tokens
            assert not self.context.lacks_state
            assert outcome.resident + outcome.restored + outcome.prefilled == len(tokens)
        return outcome

    def capture(self, ends: Sequence[int]) -> tuple[int, str | None]:
        """Keep what is resident, wait for it, and return the bytes written and the tip."""
        return self.kept(ends).n_bytes, self.kept_last.tip

    def kept(self, ends: Sequence[int]) -> Written:
        """Keep what is resident, wait for it, and return what became of it."""
        results: list[Written] = []
        arrived = threading.Event()

        def done(written: Written) -> None:
            results.append(written)
            arrived.set()

        self.residency.capture([end for end in ends if end <= len(self.context.tokens)], done)
        assert arrived.wait(30)
        (self.kept_last,) = results
        return self.kept_last

    def turn(self, tokens: Sequence[int], ends: Sequence[int] = ENDS) -> Outcome:
        """Make tokens resident and keep them."""
        outcome = self.ensure(tokens)
        self.capture(ends)
        return outcome


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts the program, over and over, on the same folder; the run before ends."""
    running: list[Program] = []

    def run(
        fingerprint: Fingerprint = FINGERPRINT,
        *,
        kind: MemoryKind = "dense",
        keeps_kv: bool = True,
        row_bytes: int = 8,
    ) -> Program:
        while running:
            running.pop().residency.close()
        running.append(Program(tmp_path / "kv", fingerprint, kind=kind, keeps_kv=keeps_kv, row_bytes=row_bytes))
        return running[-1]

    yield run
    for program in running:
        program.residency.close()


Start = Callable[..., Program]


def counts(outcome: Outcome) -> tuple[int, int, int]:
    """Tokens by origin: resident, restored, prefilled."""
    return outcome.resident, outcome.restored, outcome.prefilled


def test_the_first_time_all_is_prefilled(start: Start) -> None:
    """Nothing stored, nothing resident: every token is evaluated, and a new conversation is no miss."""
    outcome = start().ensure(SYSTEM + ONE)
    assert (counts(outcome), outcome.miss_reason, outcome.restore_s) == ((0, 0, 60), None, 0.0)


def test_what_is_resident_is_not_evaluated_again(start: Start) -> None:
    """The next turn costs its own tokens."""
    program = start()
    program.turn(SYSTEM + ONE)
    assert counts(program.ensure(SYSTEM + ONE + TWO, n_history=60)) == (60, 0, 30)


def test_another_run_restores(start: Start) -> None:
    """A new context over the same folder evaluates only what was never there."""
    start().turn(SYSTEM + ONE)
    program = start()
    outcome = program.ensure(SYSTEM + ONE + TWO, n_history=60)
    assert (counts(outcome), outcome.miss_reason) == ((0, 60, 30), None)
    assert program.context.n_evaluated == 30


def test_one_token_must_run(start: Start) -> None:
    """Where logits are needed the last token is evaluated, though it is stored or resident."""
    start().turn(SYSTEM + ONE)
    program = start()
    assert counts(program.ensure(SYSTEM + ONE, reusable=59, n_history=60)) == (0, 59, 1)
    assert counts(program.ensure(SYSTEM + ONE, reusable=59, n_history=60)) == (59, 0, 1)


def test_residents_come_first_then_the_disk(start: Start) -> None:
    """A context that holds the beginning is continued from disk."""
    start().turn(SYSTEM + ONE + TWO)
    program = start()
    program.ensure(SYSTEM)
    assert counts(program.ensure(SYSTEM + ONE + TWO, n_history=90)) == (30, 60, 0)


def test_part_of_a_segment_is_used(start: Start) -> None:
    """A fork in the middle of a stored segment takes the rows before it."""
    start().turn(SYSTEM + ONE)
    outcome = start().ensure(SYSTEM + ONE[:20] + TWO)
    assert counts(outcome) == (0, 50, 30)


def test_a_few_tokens_are_not_worth_a_file(start: Start) -> None:
    """Below 16 tokens a prefill is as quick as a restore."""
    start().turn(SYSTEM[:15], [15])
    assert counts(start().ensure(SYSTEM[:15])) == (0, 0, 15)


def test_switching_back_restores(start: Start) -> None:
    """Another conversation's tokens leave the context; the first one comes back from disk."""
    program = start()
    program.turn(SYSTEM + ONE)
    program.turn(TWO + THREE)
    assert counts(program.ensure(SYSTEM + ONE, n_history=60)) == (0, 60, 0)


def test_a_stop_ends_a_restore(start: Start) -> None:
    """Segments that were not loaded yet are left on disk; what was loaded stays and the rest is restored later."""
    start().turn(SYSTEM + ONE + TWO)
    program = start()
    program.context.cancel_at = 30
    outcome = program.ensure(SYSTEM + ONE + TWO, n_history=90)
    assert (outcome.is_complete, program.context.n_evaluated) == (False, 0)
    n_loaded = len(program.context.tokens)
    assert 30 <= n_loaded < 90
    program.context.cancel_at = None
    assert counts(program.ensure(SYSTEM + ONE + TWO, n_history=90)) == (n_loaded, 90 - n_loaded, 0)


def test_a_restore_waits_for_what_is_still_being_written(start: Start) -> None:
    """Switching back before the disk has the rows does not compute them again."""
    program = start()
    assert program.store is not None
    program.store.gate = threading.Event()
    program.ensure(SYSTEM + ONE)
    program.residency.capture([30, 60], lambda _written: None)
    program.context.keep(0)
    opening = threading.Timer(0.1, program.store.gate.set)
    opening.start()
    assert counts(program.ensure(SYSTEM + ONE, n_history=60)) == (0, 60, 0)
    opening.join()


def test_the_next_turn_does_not_wait_for_what_is_resident(start: Start) -> None:
    """What is still being written of a conversation that goes on is in the context already."""
    program = start()
    assert program.store is not None
    program.store.gate = threading.Event()
    program.ensure(SYSTEM + ONE)
    program.residency.capture([30, 60], lambda _written: None)
    turns: list[Outcome] = []
    turn = threading.Thread(target=lambda: turns.append(program.ensure(SYSTEM + ONE + TWO)))
    turn.start()
    turn.join(10)
    had = [counts(outcome) for outcome in turns]
    program.store.gate.set()
    turn.join()
    assert had == [(60, 0, 30)]


def test_a_cancelled_prefill_says_so(start: Start) -> None:
    """What was evaluated stays and is counted."""
    program = start()
    program.context.cancel_at = 40
    outcome = program.ensure(SYSTEM + ONE)
    assert (counts(outcome), outcome.is_complete) == ((0, 0, 40), False)
    program.context.cancel_at = None
    assert counts(program.ensure(SYSTEM + ONE)) == (40, 0, 20)


# --- capture ---


def test_capture_writes_only_new_rows(start: Start, tmp_path: Path) -> None:
    """Each turn writes its own tokens, in this run and after a restore; the same again writes nothing."""
    program = start()
    program.ensure(SYSTEM + ONE)
    first, _ = program.capture(ENDS)
    program.ensure(SYSTEM + ONE + TWO)
    second, tip = program.capture(ENDS)
    assert (program.capture(ENDS), len(segment_files(tmp_path / "kv"))) == ((0, tip), 3)
    per_token = 8 + 4
    assert (first, second) == (2 * HEADER_BYTES + 60 * per_token, HEADER_BYTES + 30 * per_token)
    program = start()
    program.ensure(SYSTEM + ONE + TWO + THREE)
    assert program.capture(ENDS)[0] == second


def test_a_fork_shares_its_beginning(start: Start) -> None:
    """A second answer to the same question writes only what is behind the fork's last whole segment."""
    program = start()
    program.turn(SYSTEM)
    program.turn(SYSTEM + ONE)
    program.ensure(SYSTEM + ONE + TWO)
    n_bytes, one_tip = program.capture(ENDS)
    program.ensure(SYSTEM + ONE + THREE)
    forked, other_tip = program.capture(ENDS)
    assert forked == n_bytes
    assert one_tip != other_tip


def test_a_new_run_that_cannot_restore_a_few_tokens_writes_them_once(start: Start) -> None:
    """Segments too short to restore are still known, so nothing is written twice."""
    start().turn(SYSTEM[:10], [10])
    program = start()
    program.ensure(SYSTEM[:10])
    assert program.capture([10])[0] == 0


def test_segments_are_capped(start: Start, tmp_path: Path) -> None:
    """Rows of more bytes than a segment may have go into several."""
    program = start(row_bytes=(24 << 20) // 25)
    program.turn(SYSTEM + ONE)
    assert len(segment_files(tmp_path / "kv")) == 4
    assert counts(start().ensure(SYSTEM + ONE)) == (0, 60, 0)


def test_a_slow_disk_does_not_fill_the_memory(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capturing waits where too much is queued, also of what it queued itself, until somebody else waits for it."""
    program = start(row_bytes=(16 << 20) // 5)
    assert program.store is not None
    monkeypatch.setattr("models.kvwriter._QUEUED_BYTES", 100)
    program.store.gate = threading.Event()
    program.ensure(SYSTEM + ONE)
    results: list[Written] = []
    capture = threading.Thread(target=program.residency.capture, args=([30, 60], results.append))
    capture.start()
    capture.join(0.2)
    assert capture.is_alive()
    n_queued = len(program.residency._chain)
    program.is_awaited = True
    capture.join(10)
    assert not capture.is_alive()
    assert n_queued == len(program.residency._chain) < 12
    program.store.gate.set()
    program.is_awaited = False
    program.turn(SYSTEM + ONE + TWO)
    assert counts(start().ensure(SYSTEM + ONE + TWO)) == (0, 90, 0)


def test_a_failed_write_is_made_up_for(start: Start) -> None:
    """After a full disk a later capture writes what is missing, and the tip is never one that is not there."""
    program = start()
    assert program.store is not None
    program.store.room = 1
    program.ensure(SYSTEM + ONE)
    n_bytes, tip = program.capture(ENDS)
    assert program.store.lookup(SYSTEM + ONE).hits[-1].segment.key.hex() == tip
    assert n_bytes == HEADER_BYTES + 30 * 12
    program.ensure(SYSTEM + ONE + TWO)
    assert program.capture(ENDS) == (0, tip)
    program.store.room = 1_000
    program.ensure(SYSTEM + ONE + TWO + THREE)
    program.capture(ENDS)
    assert counts(start().ensure(SYSTEM + ONE + TWO + THREE)) == (0, 120, 0)


def test_nothing_written_has_no_tip(start: Start) -> None:
    """When not even the first segment fits, there is no tip."""
    program = start()
    assert program.store is not None
    program.store.room = 0
    program.ensure(SYSTEM + ONE)
    assert program.capture(ENDS) == (0, None)


def test_a_broken_index_is_made_anew_by_the_writer(start: Start) -> None:
    """Tables that went away under an open store cost nothing that is to be kept."""
    program = start()
    assert program.store is not None
    program.ensure(SYSTEM + ONE)
    program.store._index._query("DROP TABLE segments")
    n_bytes, tip = program.capture(ENDS)
    assert (n_bytes > 0, tip is not None) == (True, True)
    assert counts(start().ensure(SYSTEM + ONE)) == (0, 60, 0)


def test_an_index_that_cannot_be_written_does_not_stop_the_writer(start: Start) -> None:
    """It costs the stored KV, and the answer that it is done still comes."""
    program = start()
    assert program.store is not None
    program.ensure(SYSTEM + ONE)
    program.store._index._query("PRAGMA query_only=ON")
    assert program.capture(ENDS) == (0, None)
    assert program.ensure(TWO).miss_reason is None


# --- misses ---


def miss(program: Program, tokens: Sequence[int]) -> tuple[tuple[int, int, int], str | None]:
    """Counts and reason for a conversation that was all evaluated once."""
    outcome = program.ensure(tokens, n_history=len(tokens))
    return counts(outcome), outcome.miss_reason


def test_nothing_stored_is_a_miss_with_a_reason(start: Start) -> None:
    """A history that nobody stored."""
    assert miss(start(), SYSTEM + ONE) == ((0, 0, 60), "nothing stored")


def test_other_settings_are_a_miss_with_a_reason(start: Start) -> None:
    """The same weights with another setting: the setting is named."""
    start(changed(flash_attention=True)).turn(SYSTEM + ONE)
    assert miss(start(), SYSTEM + ONE) == ((0, 0, 60), "stored under other settings: flash attention")


def test_no_store_is_a_miss_with_a_reason(start: Start) -> None:
    """A model whose KV is not kept says so, and capturing does nothing."""
    program = start(keeps_kv=False)
    assert miss(program, SYSTEM + ONE) == ((0, 0, 60), "KV on disk is off")
    assert program.capture(ENDS) == (0, None)


def test_a_difference_is_a_miss_with_its_place(start: Start) -> None:
    """A history of which only the beginning is stored names the token where it differs."""
    start().turn(SYSTEM + ONE)
    assert miss(start(), SYSTEM + ONE[:20] + TWO) == ((0, 50, 30), "cut at token 50 by edited text")


def test_a_damaged_segment_in_the_middle_costs_what_follows(start: Start, tmp_path: Path) -> None:
    """The rows before it are restored, the rest is prefilled, the reason told; then all is stored again."""
    program = start()
    for tokens in (SYSTEM, SYSTEM + ONE, SYSTEM + ONE + TWO):
        program.turn(tokens)
    assert program.store is not None
    middle = program.store.lookup(SYSTEM + ONE + TWO).hits[1].segment
    program = start()
    damage(KvFolder(tmp_path / "kv").segment_path(middle.fingerprint, middle.key, "rows"))
    reason = "damaged file set aside: its checksum does not match"
    assert miss(program, SYSTEM + ONE + TWO) == ((0, 30, 60), reason)
    program.capture(ENDS)
    assert miss(start(), SYSTEM + ONE + TWO) == ((0, 90, 0), None)


def test_a_vanished_segment_costs_what_follows(start: Start, tmp_path: Path) -> None:
    """A file that is gone is a miss with the system's reason."""
    start().turn(SYSTEM + ONE)
    program = start()
    for path in segment_files(tmp_path / "kv"):
        path.unlink()
    reason = "a stored file is missing"
    assert miss(program, SYSTEM + ONE) == ((0, 0, 60), reason)


def test_refused_rows_are_prefilled(start: Start, tmp_path: Path) -> None:
    """Rows that verify but that the engine cannot load are set aside and computed anew."""
    start().turn(SYSTEM + ONE)
    program = start()
    program.context.refuses = True
    assert miss(program, SYSTEM + ONE) == ((0, 0, 60), "damaged file set aside: the engine refused it")
    assert len(list((tmp_path / "kv" / "damaged").iterdir())) == 1
    program.context.refuses = False
    program.capture(ENDS)
    assert miss(start(), SYSTEM + ONE) == ((0, 60, 0), None)


def test_rows_that_may_lack_cells_stay_where_they_are(start: Start, tmp_path: Path) -> None:
    """Beside other sequences a refusal says nothing of the file: it serves once they are gone."""
    start().turn(SYSTEM + ONE)
    program = start()
    program.context.refuses = program.context.has_branches = True
    assert miss(program, SYSTEM + ONE) == ((0, 0, 60), misses.cut(0, "context limit"))
    assert not list((tmp_path / "kv").glob("damaged/*"))
    assert miss(start(), SYSTEM + ONE) == ((0, 60, 0), None)


def test_rows_refused_behind_residents_are_all_prefilled(start: Start) -> None:
    """A refusal empties the context; then the residents are evaluated again and counted so."""
    start().turn(SYSTEM + ONE)
    program = start()
    program.ensure(SYSTEM)
    program.context.refuses = True
    assert miss(program, SYSTEM + ONE) == ((0, 0, 60), "damaged file set aside: the engine refused it")


def test_a_restore_after_a_history_is_no_miss(start: Start) -> None:
    """No reason is given where everything that was ever evaluated is reused."""
    start().turn(SYSTEM + ONE)
    assert miss(start(), SYSTEM + ONE) == ((0, 60, 0), None)


# --- other kinds of memory ---

STATEFUL: tuple[MemoryKind, ...] = ("hybrid", "recurrent")
KINDS: tuple[MemoryKind, ...] = ("dense", "sliding window", *STATEFUL)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back(start: Start, kind: MemoryKind) -> None:
    """A new run restores all turns, whatever its memory consists of, and goes on writing only what is new."""
    program = start(kind=kind)
    program.turn(SYSTEM + ONE)
    program.turn(SYSTEM + ONE + TWO)
    program = start(kind=kind)
    assert miss(program, SYSTEM + ONE + TWO) == ((0, 90, 0), None)
    program.ensure(SYSTEM + ONE + TWO + THREE)
    n_bytes, _ = program.capture(ENDS)
    size = HEADER_BYTES + 30 * 4
    rows, state = size + 30 * 8, size + 13
    assert n_bytes == {"hybrid": rows + state, "recurrent": state}.get(kind, rows)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_only_dense_rows_are_cut(start: Start, kind: MemoryKind) -> None:
    """Elsewhere a fork in the middle of a turn goes back to the restore point before it."""
    program = start(kind=kind)
    program.turn(SYSTEM)
    program.turn(SYSTEM + ONE)
    outcome = start(kind=kind).ensure(SYSTEM + ONE[:20] + TWO)
    assert counts(outcome) == (0, 30, 50)


@pytest.mark.parametrize("kind", STATEFUL)
def test_a_memory_that_cannot_rewind_restores_what_it_had(start: Start, kind: MemoryKind) -> None:
    """Another question behind the first turn is answered from its stored state, not by reading it all again."""
    program = start(kind=kind)
    program.turn(SYSTEM + ONE)
    program.turn(SYSTEM + ONE + TWO)
    assert counts(program.ensure(SYSTEM + ONE + THREE, n_history=60)) == (0, 60, 30)


@pytest.mark.parametrize("kind", STATEFUL)
def test_states_are_taken_on_the_way(start: Start, kind: MemoryKind) -> None:
    """Behind the first message, which conversations share, and behind long ones: it cannot be had later."""
    long = list(range(1_000, 1_300))
    ends = [30, 60, 360]
    program = start(kind=kind)
    program.ensure(SYSTEM + ONE + long + TWO, ends=ends)
    assert program.capture([*ends, 390])[0] > 0
    program = start(kind=kind)
    assert counts(program.ensure(SYSTEM + THREE)) == (0, 30, 30)
    assert counts(program.ensure(SYSTEM + ONE + long + THREE)) == (0, 360, 30)
    assert counts(program.ensure(SYSTEM + ONE + THREE)) == (0, 30, 60)


def test_what_was_taken_on_the_way_is_counted_with_the_turn(start: Start, tmp_path: Path) -> None:
    """The bytes reported for a turn are all that it wrote."""
    program = start(kind="hybrid")
    program.ensure(SYSTEM + ONE, ends=[30, 60])
    n_bytes, _ = program.capture([30, 60])
    assert n_bytes == sum(path.stat().st_size for path in segment_files(tmp_path / "kv"))


def test_nothing_is_taken_on_the_way_when_nothing_is_kept(start: Start, tmp_path: Path) -> None:
    """A request that leaves no KV behind stops nowhere."""
    start(kind="hybrid").ensure(SYSTEM + ONE, ends=[30, 60], keeps=False)
    assert segment_files(tmp_path / "kv") == []


@pytest.mark.parametrize("kind", STATEFUL)
def test_a_missing_state_is_a_miss_with_a_reason(start: Start, tmp_path: Path, kind: MemoryKind) -> None:
    """Where the last state is gone the one before it serves, and the reason is told."""
    program = start(kind=kind)
    program.turn(SYSTEM + ONE)
    program.turn(SYSTEM + ONE + TWO)
    assert program.store is not None
    last = program.store.lookup(SYSTEM + ONE + TWO).hits[-1].segment
    program = start(kind=kind)
    KvFolder(tmp_path / "kv").segment_path(last.fingerprint, last.key, "state").unlink()
    reason = "a stored file is missing"
    assert miss(program, SYSTEM + ONE + TWO) == ((0, 0, 90), reason)
    program.context.clear()
    assert miss(program, SYSTEM + ONE + TWO) == ((0, 60, 30), "a stored file is missing")


def test_a_stop_between_rows_and_state_leaves_nothing_half_done(start: Start) -> None:
    """Rows of a hybrid model without their state are no prefix; the next request begins anew."""
    program = start(kind="hybrid")
    program.turn(SYSTEM + ONE)
    program.turn(SYSTEM + ONE + TWO)
    program = start(kind="hybrid")
    program.context.cancel_at = 60
    assert program.ensure(SYSTEM + ONE + TWO, n_history=90).is_complete is False
    assert program.context.lacks_state is False
    program.context.cancel_at = None
    assert counts(program.ensure(SYSTEM + ONE + TWO, n_history=90))[2] == 0


# --- restore or recompute ---


def test_a_restore_that_does_not_pay_is_not_made(start: Start) -> None:
    """When reading is expected to take longer than evaluating, the tokens are evaluated and the reason told."""
    start().turn(SYSTEM + ONE)
    program = start()
    assert program.store is not None
    program.residency._rates = Rates(0.001, 1.0, 1.0)
    outcome = program.ensure(SYSTEM + ONE, n_history=60)
    assert (counts(outcome), outcome.miss_reason) == ((0, 0, 60), "too small to pay")
    assert outcome.estimate is not None
    assert (outcome.estimate.restores, round(outcome.estimate.prefill_s, 6)) == (False, 0.06)


def test_a_restore_that_did_not_pay_is_tried_again(start: Start) -> None:
    """A disk that was measured as slow is doubted a little less each time, and that is remembered."""
    start().turn(SYSTEM + ONE)
    program = start()
    assert program.store is not None
    slow = Rates(0.001, 1e-3, 0.0)
    program.residency._rates = slow
    program.turn(SYSTEM + ONE)
    assert program.store.note("rates")["restore_s_per_byte"] < slow.restore_s_per_byte


def test_a_restore_says_what_it_was_decided_from(start: Start) -> None:
    """Both expected times are known where there was something to decide, and only there."""
    start().turn(SYSTEM + ONE)
    program = start()
    outcome = program.ensure(SYSTEM + ONE)
    assert outcome.estimate is not None
    assert outcome.estimate.restores
    assert program.ensure(SYSTEM + ONE + TWO).estimate is None


def test_rates_are_learnt_and_remembered(start: Start) -> None:
    """What prefills took is known to the next run."""
    program = start()
    program.turn(SYSTEM + ONE)
    learnt = program.residency._rates
    assert program.store is not None
    assert program.store.note("rates") == learnt.to_json() != Rates(1.0, 0.0, 0.0).to_json()


# --- limits ---


def test_a_piece_that_does_not_fit_the_context_is_left(start: Start) -> None:
    """A long segment of which only the beginning is wanted has to be loaded whole; where it cannot, it is prefilled."""
    start().turn(SYSTEM + ONE, [60])
    program = start()
    program.context.n_ctx = 50
    tokens = SYSTEM + ONE[:10] + TWO[:5]
    outcome = program.ensure(tokens, n_history=len(tokens))
    assert (counts(outcome), outcome.miss_reason) == ((0, 0, 45), "cut at token 0 by context limit")


def test_a_piece_that_overlaps_what_is_resident_fits(start: Start) -> None:
    """Where both have no room in the context, the resident part of the piece gives way to it."""
    start().turn(SYSTEM + ONE + TWO, [30, 90])
    program = start()
    program.ensure(SYSTEM + ONE + THREE)
    program.context.n_ctx = 100
    assert counts(program.ensure(SYSTEM + ONE + TWO)) == (30, 60, 0)


def test_what_was_evicted_is_named(start: Start) -> None:
    """A conversation whose KV had to go says so."""
    start().turn(SYSTEM + ONE)
    program = start()
    assert program.store is not None
    with program.store._folder.locked():
        evict(program.store._folder, program.store._index, 1 << 30, build="another")
    assert miss(program, SYSTEM + ONE) == ((0, 0, 60), "evicted to stay within the budget")


def test_the_chain_in_use_is_shown(start: Start, tmp_path: Path) -> None:
    """Whoever makes room can see what this engine works on."""
    program = start()
    _, tip = program.turn(SYSTEM + ONE), program.kept_last.tip
    assert tip is not None
    assert tips_in_use(KvFolder(tmp_path / "kv")) == {bytes.fromhex(tip)}


def test_what_could_not_be_written_does_not_hide_the_chain_in_use(start: Start, tmp_path: Path) -> None:
    """What is stored of a conversation stays in use when its newest turn finds the disk full."""
    program = start()
    program.turn(SYSTEM + ONE)
    stored = program.kept_last.tip
    assert program.store is not None
    program.store.room = 0
    for tokens in (SYSTEM + ONE + TWO, SYSTEM + ONE + TWO + THREE):
        program.turn(tokens)
        assert stored is not None
        assert tips_in_use(KvFolder(tmp_path / "kv")) == {bytes.fromhex(stored)}
        assert program.residency.tip == stored
        program.ensure(tokens)
        assert tips_in_use(KvFolder(tmp_path / "kv")) == {bytes.fromhex(stored)}


def test_a_full_store_says_why(start: Start) -> None:
    """What could not be kept is told with the limit that stood in the way."""
    program = start()
    assert program.store is not None
    program.store.room = 0
    program.ensure(SYSTEM + ONE)
    assert program.kept(ENDS).note == "KV is not kept: No space left on device"


# --- behind the user's back ---


def test_capturing_gives_way(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that has waited long enough goes first; the next turn's capture makes up for it."""
    program = start()
    program.ensure(SYSTEM + ONE)
    program.is_awaited = True
    clock = itertools.count()
    with monkeypatch.context() as patched:
        patched.setattr("models.residency.time.monotonic", lambda: next(clock))
        assert program.capture(ENDS) == (0, None)
    program.is_awaited = False
    program.ensure(SYSTEM + ONE + TWO)
    program.capture(ENDS)
    assert counts(start().ensure(SYSTEM + ONE + TWO)) == (0, 90, 0)


def test_what_others_deleted_is_written_again(start: Start, tmp_path: Path) -> None:
    """A store that was emptied while the conversation was resident gets all of it with the next turn."""
    program = start()
    program.turn(SYSTEM + ONE)
    assert program.store is not None
    program.store._index.remove([one.key for one in program.residency._chain])
    for path in segment_files(tmp_path / "kv"):
        path.unlink()
    program.turn(SYSTEM + ONE + TWO)
    assert counts(start().ensure(SYSTEM + ONE + TWO)) == (0, 90, 0)


def test_rows_that_are_gone_end_a_capture(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that was overwritten cannot be kept; the turn goes on without an error."""
    program = start(kind="sliding window")
    program.ensure(SYSTEM + ONE)

    def refuse(_start: int, _end: int) -> bytearray:
        raise EngineError("The rows are gone.")

    monkeypatch.setattr(program.context, "export_rows", refuse)
    assert program.capture(ENDS) == (0, None)


def test_a_pushed_back_conversation_is_moved_to_the_front(start: Start) -> None:
    """Only while nobody waits."""
    program = start()
    program.turn(SYSTEM + ONE)
    program.residency.tidy()
    program.context.is_pushed_back = program.is_awaited = True
    program.residency.tidy()
    assert program.context.n_compacted == 0
    program.is_awaited = False
    program.residency.tidy()
    assert program.context.n_compacted == 1


# --- anything at all ---

MESSAGE = st.integers(0, 3).map(lambda n: [n] * (8 * n + 5))
STEP = st.tuples(
    st.lists(MESSAGE, min_size=1, max_size=5),
    st.sampled_from(["go on", "restart", "damage", "full", "cancel", "refuse", "evict", "empty", "await"]),
    st.integers(0, 1_000),
)


@settings(max_examples=120)
@given(st.sampled_from(KINDS), st.lists(STEP, min_size=1, max_size=8))
def test_whatever_happens_the_context_is_right(
    tmp_path_factory: pytest.TempPathFactory, kind: MemoryKind, steps: list[tuple[list[list[int]], str, int]]
) -> None:
    """Restarts, damage, eviction, full disks and cancels in any order: rows never stand behind foreign tokens."""
    root = tmp_path_factory.mktemp("kv")
    program = Program(root, kind=kind, row_bytes=(24 << 20) // 12)
    try:
        for messages, event, n in steps:
            store = cast(FullDisk, program.store)
            files = segment_files(root)
            if event == "restart":
                program.residency.close()
                program = Program(root, kind=kind, row_bytes=(24 << 20) // 12)
                store = cast(FullDisk, program.store)
            elif event == "damage" and files:
                damage(files[n % len(files)], n % HEADER_BYTES)
            elif event == "empty" and files:
                files[n % len(files)].unlink()
            elif event == "evict":
                with store._folder.locked():
                    evict(store._folder, store._index, n, build=FINGERPRINT.llama_build)
            program.context.cancel_at = n % 60 if event == "cancel" else None
            program.context.refuses = event == "refuse"
            program.is_awaited = event == "await"
            store.room = n % 2 if event == "full" else 1_000
            tokens = [token for message in messages for token in message]
            ends = [sum(map(len, messages[: i + 1])) for i in range(len(messages))]
            if program.ensure(tokens, ends=ends).is_complete:
                _, tip = program.capture(ends)
                assert tip is None or store._index.get(bytes.fromhex(tip)) is not None
    finally:
        program.residency.close()


# --- where the time goes ---


def test_a_restore_tells_what_it_was_made_of(start: Start) -> None:
    """Reading, verifying and loading each took something; where nothing was restored, nothing."""
    cold = start().turn(SYSTEM + ONE)
    assert (cold.restore_read_s, cold.restore_verify_s, cold.restore_copy_s) == (0.0, 0.0, 0.0)
    program = start()
    restored = program.ensure(SYSTEM + ONE)
    assert min(restored.restore_read_s, restored.restore_verify_s, restored.restore_copy_s) > 0
    again = program.ensure(SYSTEM + ONE)
    assert (again.restore_read_s, again.restore_verify_s, again.restore_copy_s) == (0.0, 0.0, 0.0)


def expected(program: Program, tokens: Sequence[int]) -> dict[tuple[str, int], float | None]:
    """What is expected to be left at each report of a phase."""
    told: dict[tuple[str, int], float | None] = {}

    def report(phase: str, done: int, _total: int) -> None:
        told[phase, done] = program.residency.left_s

    program.residency.ensure(Request(list(tokens), len(tokens), 0), report)
    return told


def test_how_long_it_will_take_is_told_before_it_begins(start: Start) -> None:
    """By the rates that were remembered, at the first report; at the last one nothing is left."""
    told = expected(start(), SYSTEM + ONE)  # which remembers a second for each token
    assert told["prefill", 0] == 60.0
    assert told["prefill", 60] == 0.0


def test_a_running_prefill_corrects_what_was_expected(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a half of the tokens in ten seconds, ten are left, whatever was remembered."""
    program = start(kind="hybrid")  # stops behind the first message
    now = [0.0]

    class Clock:
        """Ten seconds for each batch."""

        @staticmethod
        def monotonic() -> float:
            return now[0]

    monkeypatch.setattr("models.residency.time", Clock)
    evaluate = program.context.prefill

    def slow(tokens: Sequence[int], progress: Callable[[int], None]) -> bool:
        now[0] += 10.0
        return evaluate(tokens, progress)

    monkeypatch.setattr(program.context, "prefill", slow)
    told: list[float | None] = []

    def report(phase: str, done: int, _total: int) -> None:
        if phase == "prefill" and done:
            told.append(program.residency.left_s)

    program.residency.ensure(Request(SYSTEM + ONE, 60, 0, [30, 60]), report)
    assert told == [10.0, 0.0]


def test_nobody_is_told_a_time_that_nothing_was_measured_for(start: Start) -> None:
    """Without remembered rates the first prefill is not estimated; the second one is."""
    program = start(keeps_kv=False)
    assert expected(program, SYSTEM + ONE)["prefill", 0] is None
    assert expected(program, TWO)["prefill", 0] is not None
