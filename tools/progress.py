"""Shows how far a long compilation is, from the lines ninja prints."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

_STEP = re.compile(r"\s*\[(\d+)/(\d+)\] ")
_MIN_FRACTION_FOR_ETA = 0.05


@dataclass(frozen=True, slots=True)
class Step:
    """Build step `n` of `n_total`, counted from 1."""

    n: int
    n_total: int


def parse_step(line: str) -> Step | None:
    """Read ninja's `[n/m]` at the start of a line; None for any other line."""
    match = _STEP.match(line)
    if match is None or int(match[2]) == 0:
        return None
    return Step(int(match[1]), int(match[2]))


def describe(step: Step, elapsed_s: float) -> str:
    """Say how much is done and, once that can be told, how long the rest takes."""
    fraction = step.n / step.n_total
    text = f"compiling llama.cpp: {fraction:4.0%} ({step.n}/{step.n_total})"
    if fraction < _MIN_FRACTION_FOR_ETA or step.n == step.n_total:
        return text
    left_s = elapsed_s * (1 - fraction) / fraction
    return f"{text}, about {f'{left_s / 60:.0f} min' if left_s >= 90 else f'{left_s:.0f} s'} left"


@dataclass(slots=True)
class Reporter:
    """Writes progress to a stream: one rewritten line on a terminal, else a line for each tenth done."""

    stream: TextIO
    clock: Callable[[], float] = time.monotonic
    _started_s: float | None = field(default=None, init=False)
    _tenths: int = field(default=0, init=False)

    def feed(self, line: str) -> None:
        """Take one line of the build's output; lines without a step are ignored."""
        step = parse_step(line)
        if step is None:
            return
        if self._started_s is None:
            self._started_s = self.clock()
        text = describe(step, self.clock() - self._started_s)
        if self.stream.isatty():
            self._write(f"\r\x1b[K{text}")
        elif (tenths := 10 * step.n // step.n_total) > self._tenths:
            self._tenths = tenths
            self._write(f"{text}\n")

    def close(self) -> None:
        """End the rewritten line, so that what follows starts on its own."""
        if self._started_s is not None and self.stream.isatty():
            self._write("\n")

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()
