"""Whether this build restores this model's KV rightly: save, clear, restore, and the same logits must come back.

How a state is taken apart and put together depends on the library's undocumented layout. So nothing is kept on disk for
a model before it has shown here, with these settings, that it works.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import pstdev

from models import kvrows
from models.errors import EngineError, ModelError
from models.llama import Context, ContextSettings, MemoryKind, Model

TOLERANCE: dict[MemoryKind, float] = {"dense": 0.0, "hybrid": 0.1, "recurrent": 0.1, "sliding window": 0.5}
"""How far a logit may be off, as a share of the logits' spread (standard deviation).

Measured with random models of each kind, 4 to 24 layers, f32, Q8_0 and Q4_1 weights, f16 and q8_0 KV, flash attention
on and off. Right restores: 0 for all but sliding windows, whose sums run over cells in other places: 0.04 there with
flash attention on two threads, and up to 0.33 in a dense model of 30 layers with Q4_1 weights whose rows lay in other
cells. Wrong restores: 0.25 and more with rows of another conversation, 2 and more without the window, 4 and more with
no state or that of another position.
"""

_BLOCK = 16
_FIRST = 32
_SECOND = 16
_REAL_FILL_S = 20.0


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Whether restoring works, and why one may think so: one sentence, the largest difference of any logit.

    `state_bytes` and `row_bytes` are what the fixed part and one more token take, 0 where it did not come so far.
    """

    passed: bool
    detail: str
    max_difference: float
    state_bytes: int
    seconds: float
    row_bytes: int = 0


def run(model: Model, settings: ContextSettings) -> SelfTest:
    """Test in a small context of its own, whatever `settings.n_ctx` is; fewer than 128 tokens are evaluated.

    Any refusal of the library is a failed test; only a lack of memory for the context is an error, `ModelError`.
    """
    begun = time.perf_counter()
    window = model.sliding_window if model.memory_kind == "sliding window" else 0
    n_ctx = 2 * _BLOCK + window + _FIRST + 2 * _SECOND
    check = _Check(TOLERANCE[model.memory_kind])
    try:
        with _context(model, replace(settings, n_ctx=n_ctx)) as context:
            detail = _compare(context, model.n_vocab, window, check)
    except ModelError:
        raise
    except EngineError as exc:
        check.failed(f"The restored state could not be tested: {exc}")
        detail = ""
    return SelfTest(
        passed=check.failure is None,
        detail=check.failure or detail,
        max_difference=check.max_difference,
        state_bytes=check.state_bytes,
        seconds=time.perf_counter() - begun,
        row_bytes=check.row_bytes,
    )


class _Check:
    """What was found so far; the first failure stands."""

    def __init__(self, tolerance: float) -> None:
        self.failure: str | None = None
        self.max_difference = 0.0
        self.state_bytes = 0
        self.row_bytes = 0
        self._tolerance = tolerance

    def same(self, found: array[float], wanted: array[float], what: str) -> None:
        """The same choice, and numbers as near as the kind of memory must give."""
        difference = _distance(found, wanted)
        if not all(map(math.isfinite, (*found, *wanted))):
            self.failed(f"The logits behind {what} are not finite numbers.")
            return
        self.max_difference = max(self.max_difference, difference)
        spread = pstdev(wanted)
        # A tie may be broken the other way.
        allowed = self._tolerance * spread
        is_same = difference <= allowed and max(wanted) - wanted[_best(found)] <= allowed
        if not is_same or spread == 0:
            self.failed(f"The logits behind {what} differ by {difference:.3g}, with a spread of {spread:.3g}.")

    def failed(self, sentence: str) -> None:
        """Keep the first reason."""
        self.failure = self.failure or sentence


def _compare(context: Context, n_vocab: int, window: int, check: _Check) -> str:
    """Evaluate `[fill | first | second] probe` live, then again behind restored parts; returns what was done."""
    context.warm_up()
    check.row_bytes, check.state_bytes = context.row_bytes, context.state_bytes
    fill = _fill(context, window)
    drawn = [(7_919 * i + 13) % n_vocab for i in range(1, _FIRST + _SECOND + 2)]
    first, second, probe = drawn[:_FIRST], drawn[_FIRST:-1], drawn[-1]
    middle, end = len(fill) + _FIRST, len(fill) + _FIRST + _SECOND
    tokens = [*fill, *first, *second]
    has_state = context.kind in ("hybrid", "recurrent")

    context.prefill(first, _ignored)
    state_in_middle = context.export_state() if has_state else bytearray()
    at_middle = _step(context, second[0])
    context.prefill(second[1:], _ignored)
    state_at_end = context.export_state() if has_state else bytearray()
    cuts = () if context.kind == "recurrent" else ((0, middle), (middle, end))
    # All at the end, as a turn's segments are.
    rows = [context.export_rows(start, stop) for start, stop in cuts]
    at_end = _step(context, probe)

    def restore(n: int, state: bytearray) -> bool:
        context.clear()
        for (start, stop), payload in zip(cuts, rows, strict=True):
            if stop <= n and not context.import_rows(memoryview(payload), start, tokens[start:stop], start, stop):
                return False
        if has_state and not context.import_state(memoryview(state), tokens[:n]):
            return False
        return context.tokens == tokens[:n]

    if not restore(end, state_at_end):
        check.failed("The library refused a state it had saved itself.")
        return ""
    check.same(_step(context, probe), at_end, "a restored conversation")
    # Finer than any logit, where those may differ a little.
    if [context.export_rows(start, stop) for start, stop in cuts] != rows:
        check.failed("The rows that were restored are not those that were saved.")
    if not restore(middle, state_in_middle):
        check.failed("The library refused the first half of a state it had saved itself.")
        return ""
    check.same(_step(context, second[0]), at_middle, "a restored first half")
    context.prefill(second[1:], _ignored)
    check.same(_step(context, probe), at_end, "a first half restored and continued")
    if not has_state:
        context.keep(middle)
        if context.tokens != tokens[:middle]:
            check.failed("A conversation could not be cut back to its first half.")
            return ""
        check.same(_step(context, second[0]), at_middle, "a conversation cut back")
    crossing = f", {len(fill)} of them to fill the window of {window}," if window else ""
    return f"{end} tokens{crossing} were saved and restored, and the logits came back."


def _step(context: Context, token: int) -> array[float]:
    context.decode(token)
    return context.logits()


def _distance(one: array[float], other: array[float]) -> float:
    """The largest difference of any logit."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def _best(logits: array[float]) -> int:
    return max(range(len(logits)), key=logits.__getitem__)


def _ignored(_done: int) -> None:
    pass


def _fill(context: Context, window: int) -> list[int]:
    """Make more tokens resident than the window holds, so that rows drop out of it; returns them.

    They are the rows of one block, copied to ever new positions: evaluating a window may take minutes. Where the layout
    is not the known one, as many are evaluated as 20 s allow.
    """
    if not window:
        return []
    deadline = time.monotonic() + _REAL_FILL_S
    block = [1] * _BLOCK
    wanted = -(-(window + _BLOCK) // _BLOCK) * _BLOCK
    context.prefill(block, _ignored)
    while (n := len(context.tokens)) < wanted:
        size = min(n, wanted - n)
        rows = context.export_rows(n - size, n)
        if not kvrows.move(rows, size) or not context.import_rows(memoryview(rows), n, [1] * size, n, n + size):
            break
    while len(context.tokens) < wanted and time.monotonic() < deadline:
        context.prefill(block, _ignored)
    return list(context.tokens)


@contextmanager
def _context(model: Model, settings: ContextSettings) -> Iterator[Context]:
    context = Context(model, settings)
    try:
        yield context
    finally:
        context.close()
