"""Save, restore and rewind for every kind of memory, with tiny models whose weights are random."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import pstdev

import pytest
from llama_cpp import llama_cpp as lib

from models.errors import EngineError, ModelError
from models.llama import Context, ContextSettings, Model
from tests.models.tiny_models import KINDS, WINDOW, build

CASES = (*KINDS, "q8_0")
CUTS = (0, 50, 120, 170, 300)
PROBE = 7
# Of the logits' spread. On one thread these models differ by at most 0.0002, wrong restores by 0.25 and more.
TOLERANCE = 0.01
TEXT = "The old lighthouse keeper counted the ships that passed in the night and wrote each into a book. "


@dataclass
class Case:
    """A model and two contexts of it; `make` gives fresh ones, as in a new process."""

    name: str
    model: Model
    tokens: list[int]
    settings: ContextSettings
    made: list[Context] = field(default_factory=list)

    def make(self) -> Context:
        """A fresh context, closed at the end of the tests."""
        self.made.append(Context(self.model, self.settings))
        return self.made[-1]

    @property
    def has_rows(self) -> bool:
        """True but for recurrent models."""
        return self.model.memory_kind != "recurrent"

    @property
    def has_state(self) -> bool:
        """True for hybrid and recurrent models."""
        return self.model.memory_kind in ("hybrid", "recurrent")


@dataclass
class Saved:
    """Everything taken from one conversation: rows by range, states by position."""

    rows: dict[tuple[int, int], bytearray]
    states: dict[int, bytearray]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, native_log: list[str]) -> Iterator[dict[str, Case]]:
    """One model of each kind, and the dense one with quantized KV."""
    assert native_log is not None
    folder = tmp_path_factory.mktemp("tiny")
    made = {}
    for name in CASES:
        path = build("dense" if name == "q8_0" else name, folder)
        model = Model(path, gpu_layers=0, progress=lambda _share: None)
        tokens = model.tokenize(TEXT * 5, False)[: CUTS[-1]]
        settings = ContextSettings(1024, name == "q8_0", 1, "q8_0" if name == "q8_0" else "f16")
        made[name] = Case(name, model, tokens, settings)
    yield made
    for case in made.values():
        for context in case.made:
            context.close()
        case.model.close()


@pytest.fixture(params=CASES)
def case(cases: dict[str, Case], request: pytest.FixtureRequest) -> Case:
    """Each kind of memory in turn."""
    return cases[request.param]


@pytest.fixture
def sliding(cases: dict[str, Case]) -> Case:
    """The model with a window."""
    return cases["sliding window"]


@pytest.fixture
def hybrid(cases: dict[str, Case]) -> Case:
    """The model with rows and a state."""
    return cases["hybrid"]


@pytest.fixture
def recurrent(cases: dict[str, Case]) -> Case:
    """The model with a state alone."""
    return cases["recurrent"]


def prefill(context: Context, tokens: Sequence[int], progress: Callable[[int], None] = lambda _done: None) -> bool:
    """Append tokens, not looking at the progress."""
    return context.prefill(tokens, progress)


def logits(context: Context, token: int = PROBE) -> array[float]:
    """Evaluate one token; the logits behind it."""
    assert context.decode(token)
    return context.logits()


def live(case: Case, end: int = CUTS[-1]) -> tuple[Context, Saved]:
    """A fresh conversation evaluated turn by turn, saved at each turn's end."""
    context, saved = case.make(), Saved({}, {})
    for start, stop in pairwise(CUTS):
        if stop <= end:
            assert prefill(context, case.tokens[start:stop])
            if case.has_rows:
                saved.rows[start, stop] = context.export_rows(start, stop)
            if case.has_state:
                saved.states[stop] = context.export_state()
    return context, saved


def restore(context: Context, case: Case, saved: Saved, end: int) -> bool:
    """Load what was saved up to `end`."""
    for (start, stop), rows in saved.rows.items():
        if stop <= end and not context.import_rows(memoryview(rows), start, case.tokens[start:stop], start, stop):
            return False
    return not case.has_state or context.import_state(memoryview(saved.states[end]), case.tokens[:end])


def assert_same(case: Case, found: array[float], wanted: array[float]) -> None:
    """Dense: bit for bit. Others: the same choice, and nearly the same numbers."""
    if case.model.memory_kind == "dense":
        assert found == wanted
    else:
        assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) <= TOLERANCE * pstdev(wanted)
        assert found.index(max(found)) == wanted.index(max(wanted))


def assert_clean(context: Context, case: Case) -> None:
    """Nothing is left, and what is computed now is what a new context computes, bit for bit."""
    assert (context.tokens, context.kv_bytes, context.cells_end) == ([], 0, 0)
    assert [lib.llama_memory_seq_pos_max(context._memory, sequence) for sequence in (0, 1)] == [-1, -1]
    fresh = case.make()
    for each in (context, fresh):
        prefill(each, case.tokens[:90])
    assert logits(context) == logits(fresh)


# --- what the tests stand on ---


def test_each_tiny_model_is_of_its_kind(case: Case) -> None:
    """The models have the memories they are named for, and their logits depend on the context."""
    expected = case.name if case.name in ("sliding window", "hybrid", "recurrent") else "dense"
    context = case.make()
    assert (case.model.memory_kind, context.kind) == (expected, expected)
    assert case.model.sliding_window == (WINDOW if expected == "sliding window" else 0)
    prefill(context, case.tokens[:100])
    one = logits(context)
    context.clear()
    prefill(context, case.tokens[1:100])
    other = logits(context)
    assert pstdev(one) > 1
    assert max(abs(a - b) for a, b in zip(one, other, strict=True)) > TOLERANCE * pstdev(one)


def test_tiny_models_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    """Weights come from a seed, so that a failure can be run again."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    for kind in KINDS:
        one, two = (build(kind, tmp_path / folder).read_bytes() for folder in ("one", "two"))
        assert one == two
        assert len(one) < 5_000_000


# --- restore ---


@pytest.mark.parametrize("end", [120, 300])
def test_a_conversation_comes_back_in_a_fresh_context(case: Case, end: int) -> None:
    """Behind what was restored, a token and a whole next turn have the logits they had."""
    context, saved = live(case, end)
    wanted = [logits(context), (prefill(context, case.tokens[:40]), context.logits())[1]]
    fresh = case.make()
    assert restore(fresh, case, saved, end)
    assert fresh.tokens == case.tokens[:end]
    assert_same(case, logits(fresh), wanted[0])
    prefill(fresh, case.tokens[:40])
    assert_same(case, fresh.logits(), wanted[1])


def test_an_earlier_turn_comes_back(case: Case) -> None:
    """A longer conversation's parts also restore the end of a turn in its middle."""
    reference, _ = live(case, 120)
    wanted = logits(reference)
    _, saved = live(case)
    fresh = case.make()
    assert restore(fresh, case, saved, 120)
    assert_same(case, logits(fresh), wanted)


def test_rows_may_be_taken_late(case: Case) -> None:
    """Rows cut when the conversation had gone on are those cut at once; the window of each segment is still there."""
    if not case.has_rows:
        return
    reference, _ = live(case, 120)
    wanted = logits(reference)
    context, saved = live(case)
    late = Saved({cut: context.export_rows(*cut) for cut in saved.rows}, saved.states)
    fresh = case.make()
    assert restore(fresh, case, late, 120)
    assert_same(case, logits(fresh), wanted)


def test_what_a_restored_context_saves_is_as_good(case: Case) -> None:
    """Parts written by a context that was itself restored restore the same."""
    context, saved = live(case)
    second = case.make()
    assert restore(second, case, saved, 300)
    again = Saved(
        {cut: second.export_rows(*cut) for cut in saved.rows}, {300: second.export_state()} if case.has_state else {}
    )
    third = case.make()
    assert restore(third, case, again, 300)
    assert_same(case, logits(third), logits(context))


def test_only_dense_rows_may_be_cut(case: Case) -> None:
    """Part of a segment restores in a dense model; elsewhere asking for it is a caller's bug."""
    context, saved = live(case, 120)
    if not case.has_rows:
        with pytest.raises(AssertionError):
            context.export_rows(0, 50)
        return
    fresh = case.make()
    assert fresh.import_rows(memoryview(saved.rows[0, 50]), 0, case.tokens[:50], 0, 50)
    part = memoryview(saved.rows[50, 120]), 50, case.tokens[50:120], 50, 100
    if case.model.memory_kind != "dense":
        with pytest.raises(AssertionError, match="may be cut"):
            fresh.import_rows(*part)
        return
    assert fresh.import_rows(*part)
    context.keep(100)
    assert logits(fresh) == logits(context)


# --- rewind ---


def test_keep_rewinds_where_it_can(case: Case) -> None:
    """Rows can be cut back to any token; a memory with a state is emptied, never left with a state of the future."""
    context, _ = live(case)
    context.keep(300)
    assert context.tokens == case.tokens
    context.keep(120)
    if case.has_state:
        assert_clean(context, case)
        return
    assert context.tokens == case.tokens[:120]
    reference, _ = live(case, 120)
    assert_same(case, logits(context), logits(reference))


@pytest.mark.parametrize("n", [120, 140])
def test_keep_goes_back_to_an_anchor(case: Case, n: int) -> None:
    """What cannot rewind is what it was where the anchor was set, and goes on as if nothing had come behind it."""
    context = case.make()
    prefill(context, case.tokens[:120])
    context.anchor()
    assert context.anchor_end == (120 if case.has_state else None)
    for _ in range(2):
        prefill(context, case.tokens[120:170])
        assert context.decode(PROBE)
        context.keep(n)
        assert context.tokens == case.tokens[: 120 if case.has_state else n]
        assert context.cells_end in (0, len(context.tokens))
    fresh = case.make()
    prefill(fresh, case.tokens[:120])
    prefill(fresh, case.tokens[120 : len(context.tokens)])
    for each in (context, fresh):
        prefill(each, case.tokens[200:260])
    assert_same(case, logits(context), logits(fresh))


def test_an_anchor_goes_with_what_it_stands_on(case: Case) -> None:
    """Cut before it, or emptied, the context has none any more; a later one takes its place."""
    context = case.make()
    context.anchor()
    assert context.anchor_end is None
    prefill(context, case.tokens[:120])
    context.anchor()
    prefill(context, case.tokens[120:150])
    context.anchor()
    assert context.anchor_end == (150 if case.has_state else None)
    context.keep(100)
    assert context.tokens == ([] if case.has_state else case.tokens[:100])
    assert context.anchor_end is None


def test_a_batch_can_be_finished_in_spite_of_a_cancel(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is lost then, in any kind of memory, and the batch behind it is not begun."""
    context = case.make()
    prefill(context, case.tokens[:50])
    decode = lib.llama_decode

    def cancelled(handle: object, batch: object) -> int:
        context.cancel()
        return int(decode(handle, batch))

    monkeypatch.setattr("models.llama.context.lib.llama_decode", cancelled)
    assert context.prefill(case.tokens[50:120], lambda _done: None, finishes_batches=True)
    assert not context.prefill(case.tokens[120:150], lambda _done: None, finishes_batches=True)
    monkeypatch.undo()
    assert context.tokens == case.tokens[:120]
    context.clear_cancel()
    assert context.decode(PROBE)


def test_keep_notices_a_window_that_is_gone(sliding: Case) -> None:
    """A cut inside a long restored segment empties the cache, though the library says that all is well."""
    _, saved = live(sliding)
    context = sliding.make()
    assert restore(context, sliding, saved, 300)
    for n in (299, 170):
        context.keep(n)
        assert len(context.tokens) == n
    context.clear()
    assert restore(context, sliding, saved, 300)
    context.keep(200)
    assert_clean(context, sliding)


@pytest.mark.parametrize("n", [1, 63, 64, 65])
def test_a_short_prefix_needs_no_more_than_itself(sliding: Case, n: int) -> None:
    """Within and at the edge of the first window all rows are needed, and there."""
    context, _ = live(sliding)
    context.keep(n)
    assert len(context.tokens) == n


def test_compaction_leaves_one_window(sliding: Case) -> None:
    """Rows before the last window are gone then: neither a cut nor an export pretends to have them."""
    context, _ = live(sliding)
    assert context.compact()
    with pytest.raises(EngineError, match="before token 120 are gone"):
        context.export_rows(0, 120)
    context.keep(120)
    assert_clean(context, sliding)


# --- states ---


def test_a_later_state_is_not_taken_for_an_earlier_one(case: Case) -> None:
    """The trap that gives wrong answers without an error: the tail's state under a shorter prefix."""
    if not case.has_state:
        return
    _, saved = live(case)
    saved.states[120] = saved.states[300]
    fresh = case.make()
    assert not restore(fresh, case, saved, 120)
    assert_clean(fresh, case)


def test_rows_of_a_hybrid_carry_no_state(hybrid: Case) -> None:
    """Rows cut late hold nothing of the tail, and are unusable until a state has come."""
    context, saved = live(hybrid)
    assert context.export_rows(0, 50) == saved.rows[0, 50]
    whole = context._read(0)
    fresh = hybrid.make()
    assert not fresh.import_rows(memoryview(whole), 0, hybrid.tokens, 0, 300)
    assert fresh.import_rows(memoryview(saved.rows[0, 50]), 0, hybrid.tokens[:50], 0, 50)
    for use in (lambda: fresh.decode(PROBE), fresh.export_state, fresh.compact):
        with pytest.raises(AssertionError, match="unusable without their state"):
            use()
    fresh.keep(50)
    assert_clean(fresh, hybrid)


def test_the_state_must_fit_the_rows(hybrid: Case) -> None:
    """A hybrid's state is for the rows that are there; other tokens are a caller's bug."""
    _, saved = live(hybrid)
    fresh = hybrid.make()
    assert fresh.import_rows(memoryview(saved.rows[0, 50]), 0, hybrid.tokens[:50], 0, 50)
    with pytest.raises(AssertionError, match="fit the rows"):
        fresh.import_state(memoryview(saved.states[120]), hybrid.tokens[:120])


def test_models_with_rows_alone_have_no_state(case: Case) -> None:
    """Asking a dense or sliding-window model for a state is a caller's bug."""
    if case.has_state:
        return
    context, saved = live(case, 50)
    with pytest.raises(AssertionError):
        context.export_state()
    with pytest.raises(AssertionError):
        context.import_state(memoryview(saved.rows[0, 50]), case.tokens[:50])


# --- refusals ---


FAULTS: dict[str, Callable[[bytearray], bytearray]] = {
    "truncated": lambda payload: payload[:-8],
    "half": lambda payload: payload[: len(payload) // 2],
    "header only": lambda payload: payload[:8],
    "extended": lambda payload: payload + bytearray(8),
    "empty": lambda _payload: bytearray(),
    "magic": lambda payload: bytearray([payload[0] ^ 1]) + payload[1:],
    "position": lambda payload: payload[:16] + bytearray([payload[16] ^ 1]) + payload[17:],
    "many cells": lambda payload: payload[:8] + b"\xff" * 8 + payload[16:],
    "no cells": lambda payload: payload[:12] + bytearray(4) + payload[16:],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_refused_rows_leave_a_clean_context(case: Case, fault: str) -> None:
    """Rows that are cut, extended or changed in their header are refused, and nothing of them stays."""
    if not case.has_rows:
        return
    _, saved = live(case, 120)
    saved.rows[50, 120] = FAULTS[fault](saved.rows[50, 120])
    fresh = case.make()
    assert not restore(fresh, case, saved, 120)
    assert_clean(fresh, case)


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - {"position"} | {"elsewhere"}))
def test_refused_states_leave_a_clean_context(case: Case, fault: str) -> None:
    """The same for states."""
    if not case.has_state:
        return
    _, saved = live(case, 120)
    saved.states[120] = saved.states[50] if fault == "elsewhere" else FAULTS[fault](saved.states[120])
    fresh = case.make()
    assert not restore(fresh, case, saved, 120)
    assert_clean(fresh, case)


def test_rows_of_another_kind_are_refused(case: Case, cases: dict[str, Case]) -> None:
    """Whatever another model or setting wrote, unless it has the same shape, is refused."""
    for other in cases.values():
        # Mixtures of experts keep the same rows as the dense model: only a fingerprint can tell them apart.
        is_same = other is case or {case.name, other.name} == {"dense", "moe"}
        if is_same or not (case.has_rows and other.has_rows):
            continue
        _, saved = live(other, 50)
        fresh = case.make()
        assert not fresh.import_rows(memoryview(saved.rows[0, 50]), 0, case.tokens[:50], 0, 50), other.name
        assert_clean(fresh, case)


def test_states_of_another_kind_are_refused(hybrid: Case, recurrent: Case) -> None:
    """A hybrid takes no recurrent model's state, nor the other way round."""
    (_, hybrids), (_, recurrents) = live(hybrid, 50), live(recurrent, 50)
    fresh = recurrent.make()
    assert not fresh.import_state(memoryview(hybrids.states[50]), recurrent.tokens[:50])
    assert_clean(fresh, recurrent)
    fresh = hybrid.make()
    assert not restore(fresh, hybrid, Saved(hybrids.rows, recurrents.states), 50)
    assert_clean(fresh, hybrid)


def test_rows_without_their_window_are_refused(sliding: Case) -> None:
    """A segment whose sliding-window part is missing would be taken by the library without a word."""
    context, saved = live(sliding, 50)
    empty = sliding.make()._read(1, 1)
    partial = context._read(0, 1)
    rows = saved.rows[0, 50]
    fresh = sliding.make()
    stripped = rows[: len(rows) - (len(partial) - 8)] + empty[8:]
    assert not fresh.import_rows(memoryview(stripped), 0, sliding.tokens[:50], 0, 50)
    assert_clean(fresh, sliding)


# --- cancel ---


@pytest.mark.parametrize("n_polls", [0, 9])
def test_an_aborted_prefill_leaves_the_truth(case: Case, n_polls: int) -> None:
    """Where rows can be cut, the batches before the abort stay; a half-changed state is dropped with everything."""
    context = case.make()
    left = 10_000

    def poll(_data: object) -> bool:
        nonlocal left
        left -= 1
        return left < 0

    def progress(_done: int) -> None:
        nonlocal left
        left = n_polls

    polled = lib.ggml_abort_callback(poll)
    lib.llama_set_abort_callback(context._handle, polled, None)
    tokens = (case.tokens * 2)[:600]

    assert not prefill(context, tokens, progress)
    context._may_abort(True)
    if case.has_state:
        assert_clean(context, case)
        return
    assert context.tokens == tokens[:512]
    assert context.cells_end == 512
    assert prefill(context, tokens[512:])
    reference = case.make()
    prefill(reference, tokens)
    assert_same(case, logits(context), logits(reference))


def test_a_step_is_not_aborted_where_that_would_cost_everything(case: Case) -> None:
    """Dense rows are cut back to before the step; a state would be lost, so there the step is finished."""
    context, _ = live(case, 120)
    reference, _ = live(case, 120)
    context._abort = lib.ggml_abort_callback(lambda _data: True)
    context._may_abort(True)
    finished = context.decode(PROBE)
    assert finished == case.has_state
    assert context.tokens == case.tokens[:120] + [PROBE] * finished
    context._abort = lib.ggml_abort_callback(lambda _data: False)
    context._may_abort(True)
    if finished:
        logits(reference)
    assert_same(case, logits(context), logits(reference))
    context.cancel()
    n = len(context.tokens)
    assert not context.decode(PROBE)
    assert len(context.tokens) == n


# --- where the rows lie ---


def other_sequence(context: Context, n: int) -> None:
    """Evaluate `n` tokens in sequence 1, and have the context take note of the cells."""
    batch = lib.llama_batch_init(n, 0, 1)
    batch.n_tokens = n
    for i in range(n):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 9, i, 1, 1, i == n - 1
    assert lib.llama_decode(context._handle, batch) == 0
    lib.llama_batch_free(batch)
    if context.kind != "recurrent":
        context.branches_allocated(n)


def test_a_prefix_behind_others_moves_to_the_front(case: Case) -> None:
    """Rows pushed back by a sequence that is gone are known to be, and compaction changes no logits."""
    context = case.make()
    assert (context.cells_end, context.is_pushed_back, context.compact()) == (0, False, True)
    prefill(context, case.tokens[:50])
    other_sequence(context, 400)
    prefill(context, case.tokens[50:120])
    with pytest.raises(AssertionError, match="other sequences"):
        context.compact()
    lib.llama_memory_seq_rm(context._memory, 1, -1, -1)
    if not case.has_rows:
        assert (context.cells_end, context.is_pushed_back) == (0, False)
        return
    assert (context.cells_end, context.is_pushed_back) == (520, True)
    in_front = case.make()
    saved = Saved({(0, 120): context.export_rows(0, 120)}, {120: context.export_state()} if case.has_state else {})
    assert restore(in_front, case, saved, 120)
    assert context.compact()
    assert (context.tokens, context.cells_end, context.is_pushed_back) == (case.tokens[:120], 120, False)
    assert logits(context) == logits(in_front)
    assert context.cells_end == 121


def test_a_prefix_at_the_front_is_known_to_be(case: Case) -> None:
    """Turns, cuts and restores leave the bound where the rows end."""
    if not case.has_rows:
        return
    context, saved = live(case)
    assert context.cells_end == 300
    context.keep(170)
    assert context.cells_end == len(context.tokens)
    fresh = case.make()
    assert restore(fresh, case, saved, 300)
    assert (fresh.cells_end, fresh.is_pushed_back) == (300, False)


def test_a_refused_compaction_leaves_a_clean_context(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """If what was saved cannot be loaded again, the cache is empty and says so."""
    context, _ = live(case, 120)
    read = context._read
    monkeypatch.setattr(context, "_read", lambda *args: read(*args)[:-8])
    assert not context.compact()
    monkeypatch.undo()
    assert_clean(context, case)


# --- sizes ---


def test_sizes_are_measured(case: Case) -> None:
    """A token adds its rows and twelve bytes to a state; what does not grow is told apart."""
    context = case.make()
    context.warm_up()
    assert context.tokens == []
    if case.model.memory_kind == "dense":
        assert context.row_bytes == case.model.kv_shape_of(case.settings.kv_type).bytes_per_token + 12
    assert (context.row_bytes > 0) == case.has_rows
    assert (context.state_bytes > 0) == case.has_state
    prefill(context, case.tokens[:50])
    if case.has_state:
        assert len(context.export_state()) == context.state_bytes
    assert 0 <= context.kv_bytes - 50 * context.row_bytes - context.state_bytes < 500


def test_quantized_kv_needs_flash_attention(cases: dict[str, Case]) -> None:
    """The way out is in the sentence."""
    with pytest.raises(ModelError, match="turn flash attention on"):
        Context(cases["dense"].model, ContextSettings(256, flash_attention=False, threads=1, kv_type="q8_0"))


def test_quantized_kv_is_half_the_size(cases: dict[str, Case]) -> None:
    """Thirty-two elements take 34 bytes, not 64."""
    plain, packed = cases["dense"].make(), cases["q8_0"].make()
    for context in (plain, packed):
        context.warm_up()
    assert (packed.row_bytes - 12) / (plain.row_bytes - 12) == 34 / 64
