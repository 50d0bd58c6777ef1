"""How far a batch is, on stderr: a bar for somebody who watches, else a sentence now and then; and its summary."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable

from chatapp.console import Narrator, lost_notice, replaced_notice
from models.engine import Prepared
from sessions.batch import Answered

PAINT_S = 0.1
SPEAK_S = 30.0
_BAR = 20


class Meter:
    """Counts rows and tokens of one run, and shows them.

    `n_total` are the rows of the input, None where that is unknown; `n_before` of them were answered earlier.
    """

    def __init__(
        self,
        narrator: Narrator,
        monotonic: Callable[[], float],
        *,
        n_total: int | None = None,
        is_watched: bool | None = None,
        columns: Callable[[], int] = lambda: shutil.get_terminal_size().columns,
    ) -> None:
        self._narrator = narrator
        self._monotonic = monotonic
        self._columns = columns
        self._is_watched = sys.stderr.isatty() if is_watched is None else is_watched
        self.n_total = n_total
        self.n_before = 0
        self.n_rows = self.n_failed = self.n_replaced = self.n_lost = 0
        self.n_output = self.n_resident = self.n_restored = self.n_prefilled = 0
        self._started = self._shown = monotonic()

    def start(self) -> None:
        """Begin to measure: the model is there."""
        self._started = self._shown = self._monotonic()

    def count(self, answered: Answered) -> None:
        """Take one more row, and show how far it is if it is time for that."""
        self.n_rows += 1
        self.n_failed += answered.error is not None
        self.n_replaced += answered.row.n_replaced
        self.n_lost += answered.n_lost
        if stats := answered.stats:
            self.n_output += stats.output_tokens or 0
            self.n_resident += stats.resident_tokens or 0
            self.n_restored += stats.restored_tokens or 0
            self.n_prefilled += stats.prefilled_tokens or 0
        now = self._monotonic()
        if now - self._shown >= (PAINT_S if self._is_watched else SPEAK_S):
            self._shown = now
            if self._is_watched:
                self._narrator.line(self.line())
            else:
                self._narrator.notice(self.sentence())

    def count_prefix(self, prepared: Prepared) -> None:
        """Take what making resident cost that all rows begin with."""
        self.n_resident += prepared.resident
        self.n_restored += prepared.restored
        self.n_prefilled += prepared.prefilled

    # --- figures ---

    @property
    def _seconds(self) -> float:
        return max(self._monotonic() - self._started, 1e-9)

    @property
    def n_done(self) -> int:
        """Rows that are answered, in this run or before."""
        return self.n_before + self.n_rows

    @property
    def left_s(self) -> float | None:
        """Seconds until the end at the pace so far; None where the number of rows is unknown."""
        if self.n_total is None or not self.n_rows:
            return None
        return max(0, self.n_total - self.n_done) * self._seconds / self.n_rows

    @property
    def reused(self) -> float | None:
        """Which part of the prompts' tokens did not have to be computed; None without any."""
        n_reused = self.n_resident + self.n_restored
        n_tokens = n_reused + self.n_prefilled
        return n_reused / n_tokens if n_tokens else None

    # --- words ---

    def line(self) -> str:
        """Return the line that is painted over and over: as many figures as the terminal has room for."""
        seconds = self._seconds
        parts = [f"{self.n_done:,} rows" if self.n_total is None else f"{self.n_done:,} / {self.n_total:,} rows"]
        parts.append(f"{_rate(self.n_rows / seconds)} rows/s")
        if self.left_s is not None:
            parts.append(f"{_span(self.left_s)} left")
        parts.append(f"{_rate(self.n_output / seconds)} tokens/s")
        if self.reused is not None:
            parts.append(f"{self.reused:.0%} of the prompts reused")
        if self.n_failed:
            parts.insert(1, f"{self.n_failed:,} failed")
        bar = ""
        if self.n_total:
            filled = min(_BAR, _BAR * self.n_done // self.n_total)
            bar = f"[{'#' * filled}{'-' * (_BAR - filled)}] "
        room = self._columns() - 1
        while len(parts) > 1 and len(bar) + len(" · ".join(parts)) > room:
            parts.pop()
        return (bar + " · ".join(parts))[:room]

    def sentence(self) -> str:
        """Return how far it is for a log."""
        seconds = self._seconds
        total = "" if self.n_total is None else f" of {self.n_total:,}"
        left = "" if self.left_s is None else f", about {_span(self.left_s)} left"
        return (
            f"{self.n_done:,}{total} rows, {self.n_failed:,} failed: {_rate(self.n_rows / seconds)} rows/s, "
            f"{_rate(self.n_output / seconds)} tokens/s{left}."
        )

    def summarize(self, n_failed: int) -> None:
        """Say what became of the rows, `n_failed` of all, and what the run cost."""
        say, seconds = self._narrator.notice, self._seconds
        if self.n_replaced:
            say(replaced_notice(self.n_replaced))
        if self.n_lost:
            say(lost_notice(self.n_lost))
        say(f"{self.n_done:,} row{'s' if self.n_done != 1 else ''}, {n_failed:,} failed.")
        if self.n_before:
            say(f"{self.n_before:,} of them had been answered before.")
        if self.n_rows:
            say(
                f"This run took {_span(seconds)}: {_rate(self.n_rows / seconds)} rows/s, "
                f"{_rate(self.n_output / seconds)} tokens/s."
            )
        if self.reused is not None:
            say(
                f"{self.reused:.0%} of the prompts' tokens were reused: {self.n_resident:,} were in memory, "
                f"{self.n_restored:,} came from disk, {self.n_prefilled:,} were computed."
            )


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 0.1 else f"{value:.2g}"


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"
