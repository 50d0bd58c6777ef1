"""Short measurements on one context: tokens a second of prefill and of decoding, broken off when their time is over."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from models.errors import EngineError
from models.llama import Context, ContextSettings, Model

WINDOW_S = 0.2
"""Of decoding: two rounds of painting, since a shorter time may fall between two of them."""
MAX_STEPS = 64
"""In one window."""
_PROMPT_TOKENS = 128
_ROUNDS = 5
_COMPARISON_S = 60.0


class TimeUp(EngineError):
    """A measurement took too long."""


@dataclass(frozen=True, slots=True)
class SpeedRatios:
    """How many times as fast one model is as another."""

    prefill_ratio: float
    decode_ratio: float


@contextmanager
def timed_context(model: Model, settings: ContextSettings, until: float) -> Iterator[Context]:
    """A context whose evaluations are broken off at a time of the monotonic clock. Raises `ModelError`."""
    context = Context(model, settings)
    timer = threading.Timer(until - time.monotonic(), context.cancel)
    timer.daemon = True
    timer.start()
    try:
        yield context
    finally:
        timer.cancel()
        timer.join()
        context.close()


def prefilling(context: Context, n: int, n_vocab: int) -> float:
    """Tokens a second of so many more tokens. Raises `TimeUp`.

    They differ: the same again and again would go to the same experts.
    """
    tokens = [i * 7_919 % n_vocab for i in range(n)]
    begun = time.perf_counter()
    if not context.prefill(tokens, lambda _done: None):
        raise TimeUp
    return n / (time.perf_counter() - begun)


def decoding(context: Context) -> float:
    """Tokens a second over one window; of a slow model, of one step. Raises `TimeUp`."""
    n, begun, took = 0, time.perf_counter(), 0.0
    while took < WINDOW_S and n < MAX_STEPS and context.decode(n):
        n += 1
        took = time.perf_counter() - begun
    if not n:
        raise TimeUp
    return n / took


def speed_ratios(before: Model, after: Model, *, threads: int) -> SpeedRatios | None:
    """Compare two models over one vocabulary, in turns: a prompt of 128 tokens, and decoding behind it.

    Medians of five rounds, so that what disturbs one of them counts for nothing; None where a minute is not enough for
    one. Raises `EngineError`.
    """
    settings = ContextSettings(_PROMPT_TOKENS + MAX_STEPS + 1, flash_attention=False, threads=threads)
    until = time.monotonic() + _COMPARISON_S
    rounds: list[tuple[float, float]] = []
    with timed_context(before, settings, until) as one, timed_context(after, settings, until) as other:
        one.decode(0)
        other.decode(0)
        while len(rounds) < _ROUNDS:
            try:
                (prefill, decode), (prefill_after, decode_after) = (
                    _round(one, before.n_vocab),
                    _round(other, after.n_vocab),
                )
            except TimeUp:
                break
            rounds.append((prefill_after / prefill, decode_after / decode))
    if not rounds:
        return None
    prefills, decodes = zip(*rounds, strict=True)
    return SpeedRatios(statistics.median(prefills), statistics.median(decodes))


def _round(context: Context, n_vocab: int) -> tuple[float, float]:
    context.clear()
    return prefilling(context, _PROMPT_TOKENS, n_vocab), decoding(context)
