import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.fingerprint import Fingerprint
from models.kvformat import Buffer, SegmentId
from models.kvstore import KvStore, segment_path
from models.llama import Context
from models.residency import Outcome, Residency
from tests.models.helpers import FINGERPRINT, changed, damage, rows_of, segment_files

KEY = b"k" * 32
SYSTEM, ONE, TWO, THREE = (list(range(n, n + 30)) for n in (100, 200, 300, 400))
ENDS = [30, 60, 90, 120]


class FakeContext:
    """A context whose rows say which tokens they belong to, so that a wrong restore cannot pass unseen."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.n_evaluated = 0
        self.cancel_at: int | None = None
        self.refuses = False

    @property
    def is_cancelled(self) -> bool:
        """True once as many tokens are resident as the test lets through."""
        return self.cancel_at is not None and len(self.tokens) >= self.cancel_at

    def prefill(self, tokens: Sequence[int], progress: Callable[[int], None]) -> bool:
        """Append tokens, up to where it is cancelled."""
        allowed = tokens if self.cancel_at is None else tokens[: max(0, self.cancel_at - len(self.tokens))]
        self.tokens.extend(allowed)
        self.n_evaluated += len(allowed)
        progress(len(allowed))
        return len(allowed) == len(tokens)

    def keep(self, n: int) -> None:
        """Cut to the first n tokens."""
        del self.tokens[n:]

    def export_rows(self, start: int, end: int) -> bytearray:
        """The rows of [start, end)."""
        return bytearray(rows_of(self.tokens[:end], start))

    def import_rows(self, payload: memoryview, start: int, tokens: Sequence[int], begin: int, end: int) -> bool:
        """Append [begin, end); the rows must be those of exactly these tokens behind the resident ones."""
        assert begin == len(self.tokens)
        assert start <= begin < end <= start + len(tokens)
        if self.refuses:
            self.tokens.clear()
            return False
        resulting = [*self.tokens[:start], *tokens]
        assert self.tokens[start:] == list(tokens[: begin - start])
        assert bytes(payload) == rows_of(resulting, start), "rows of other tokens"
        self.tokens = resulting[:end]
        return True


class FullDisk(KvStore):
    """A store whose disk is full from the nth write on, until it is emptied."""

    room = 1_000
    gate: threading.Event | None = None
    """Writes wait until this is set."""

    def write(self, segment: SegmentId, payload: Buffer) -> int:
        """Write, while there is room."""
        if self.gate:
            assert self.gate.wait(30)
        if self.room <= 0:
            raise OSError(28, "No space left on device")
        self.room -= 1
        return super().write(segment, payload)


class Program:
    """One run of the program: a context, a store over a folder, and what it captured last."""

    def __init__(
        self, root: Path, fingerprint: Fingerprint = FINGERPRINT, *, keeps_kv: bool = True, kv_bytes_per_token: int = 8
    ) -> None:
        self.context = FakeContext()
        self.store = FullDisk(root, KEY, fingerprint, clock=lambda: 1.0) if keeps_kv else None
        self.residency = Residency(cast(Context, self.context), self.store, kv_bytes_per_token)

    def ensure(self, tokens: Sequence[int], *, reusable: int | None = None, n_history: int = 0) -> Outcome:
        """Make tokens resident, all of them reusable unless told otherwise."""
        tokens = list(tokens)
        outcome = self.residency.ensure(
            tokens,
            reusable=len(tokens) if reusable is None else reusable,
            n_history=n_history,
            report=lambda _phase, _done, _total: None,
        )
        if outcome.is_complete:
            assert self.context.tokens == tokens
            assert outcome.resident + outcome.restored + outcome.prefilled == len(tokens)
        return outcome

    def capture(self, ends: Sequence[int]) -> tuple[int, str | None]:
        """Keep what is resident, wait for it, and return the bytes written and the tip."""
        results: list[tuple[int, str | None]] = []
        arrived = threading.Event()

        def done(n_bytes: int, tip: str | None) -> None:
            results.append((n_bytes, tip))
            arrived.set()

        self.residency.capture([end for end in ends if end <= len(self.context.tokens)], done)
        assert arrived.wait(30)
        return results[0]

    def turn(self, tokens: Sequence[int], ends: Sequence[int] = ENDS) -> Outcome:
        """Make tokens resident and keep them."""
        outcome = self.ensure(tokens)
        self.capture(ends)
        return outcome


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts the program, over and over, on the same folder; the run before ends."""
    running: list[Program] = []

    def run(fingerprint: Fingerprint = FINGERPRINT, *, keeps_kv: bool = True, kv_bytes_per_token: int = 8) -> Program:
        while running:
            running.pop().residency.close()
        running.append(Program(tmp_path / "kv", fingerprint, keeps_kv=keeps_kv, kv_bytes_per_token=kv_bytes_per_token))
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
    program.residency.capture([30, 60], lambda _n_bytes, _tip: None)
    program.context.keep(0)
    opening = threading.Timer(0.1, program.store.gate.set)
    opening.start()
    assert counts(program.ensure(SYSTEM + ONE, n_history=60)) == (0, 60, 0)
    opening.join()


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
    assert (first, second) == (2 * 128 + 60 * per_token, 128 + 30 * per_token)
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
    program = start(kv_bytes_per_token=(24 << 20) // 25)
    program.turn(SYSTEM + ONE)
    assert len(segment_files(tmp_path / "kv")) == 4
    assert counts(start().ensure(SYSTEM + ONE)) == (0, 60, 0)


def test_a_failed_write_is_made_up_for(start: Start) -> None:
    """After a full disk a later capture writes what is missing, and the tip is never one that is not there."""
    program = start()
    assert program.store is not None
    program.store.room = 1
    program.ensure(SYSTEM + ONE)
    n_bytes, tip = program.capture(ENDS)
    assert program.store.lookup(SYSTEM + ONE)[-1].segment.key.hex() == tip
    assert n_bytes == 128 + 30 * 12
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


def test_a_broken_index_does_not_stop_the_writer(start: Start) -> None:
    """An index that cannot be written costs the stored KV, and the answer that it is done still comes."""
    program = start()
    assert program.store is not None
    program.ensure(SYSTEM + ONE)
    program.store._index._query("DROP TABLE segments")
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
    assert miss(program, SYSTEM + ONE) == ((0, 0, 60), "KV on disk is off for this model")
    assert program.capture(ENDS) == (0, None)


def test_a_difference_is_a_miss_with_its_place(start: Start) -> None:
    """A history of which only the beginning is stored names the token where it differs."""
    start().turn(SYSTEM + ONE)
    assert miss(start(), SYSTEM + ONE[:20] + TWO) == ((0, 50, 30), "differs from what is stored at token 50")


def test_a_damaged_segment_in_the_middle_costs_what_follows(start: Start, tmp_path: Path) -> None:
    """The rows before it are restored, the rest is prefilled, the reason told; then all is stored again."""
    program = start()
    for tokens in (SYSTEM, SYSTEM + ONE, SYSTEM + ONE + TWO):
        program.turn(tokens)
    assert program.store is not None
    middle = program.store.lookup(SYSTEM + ONE + TWO)[1].segment
    program = start()
    damage(segment_path(tmp_path / "kv", middle.key))
    reason = "a stored segment was set aside: its checksum does not match"
    assert miss(program, SYSTEM + ONE + TWO) == ((0, 30, 60), reason)
    program.capture(ENDS)
    assert miss(start(), SYSTEM + ONE + TWO) == ((0, 90, 0), None)


def test_a_vanished_segment_costs_what_follows(start: Start, tmp_path: Path) -> None:
    """A file that is gone is a miss with the system's reason."""
    start().turn(SYSTEM + ONE)
    program = start()
    for path in segment_files(tmp_path / "kv"):
        path.unlink()
    reason = "a stored segment could not be read: No such file or directory"
    assert miss(program, SYSTEM + ONE) == ((0, 0, 60), reason)


def test_refused_rows_are_prefilled(start: Start, tmp_path: Path) -> None:
    """Rows that verify but that the engine cannot load are set aside and computed anew."""
    start().turn(SYSTEM + ONE)
    program = start()
    program.context.refuses = True
    assert miss(program, SYSTEM + ONE) == ((0, 0, 60), "a stored segment was refused by the engine")
    assert len(list((tmp_path / "kv" / "damaged").iterdir())) == 1
    program.context.refuses = False
    program.capture(ENDS)
    assert miss(start(), SYSTEM + ONE) == ((0, 60, 0), None)


def test_rows_refused_behind_residents_are_all_prefilled(start: Start) -> None:
    """A refusal empties the context; then the residents are evaluated again and counted so."""
    start().turn(SYSTEM + ONE)
    program = start()
    program.ensure(SYSTEM)
    program.context.refuses = True
    assert miss(program, SYSTEM + ONE) == ((0, 0, 60), "a stored segment was refused by the engine")


def test_a_restore_after_a_history_is_no_miss(start: Start) -> None:
    """No reason is given where everything that was ever evaluated is reused."""
    start().turn(SYSTEM + ONE)
    assert miss(start(), SYSTEM + ONE) == ((0, 60, 0), None)


# --- anything at all ---

MESSAGE = st.integers(0, 3).map(lambda n: [n] * (8 * n + 5))
STEP = st.tuples(
    st.lists(MESSAGE, min_size=1, max_size=5),
    st.sampled_from(["go on", "restart", "damage", "full", "cancel", "refuse"]),
    st.integers(0, 1_000),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=8))
def test_whatever_happens_the_context_is_right(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[list[list[int]], str, int]]
) -> None:
    """Restarts, damage, full disks and cancels in any order: rows never stand behind tokens that are not theirs."""
    root = tmp_path_factory.mktemp("kv")
    program = Program(root, kv_bytes_per_token=(24 << 20) // 12)
    try:
        for messages, event, n in steps:
            if event == "restart":
                program.residency.close()
                program = Program(root, kv_bytes_per_token=(24 << 20) // 12)
            elif event == "damage" and (files := segment_files(root)):
                damage(files[n % len(files)], n % 128)
            program.context.cancel_at = n % 60 if event == "cancel" else None
            program.context.refuses = event == "refuse"
            store = cast(FullDisk, program.store)
            store.room = n % 2 if event == "full" else 1_000
            tokens = [token for message in messages for token in message]
            if program.ensure(tokens).is_complete:
                ends = [sum(map(len, messages[: i + 1])) for i in range(len(messages))]
                _, tip = program.capture(ends)
                assert tip is None or store._index.get(bytes.fromhex(tip)) is not None
    finally:
        program.residency.close()
