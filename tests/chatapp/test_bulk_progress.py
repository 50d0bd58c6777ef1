import io

import pytest

from chatapp.bulk_progress import PAINT_S, SPEAK_S, Meter
from chatapp.console import Narrator
from models.engine import Prepared, TurnStats
from sessions.batch import Answered
from sessions.batch_rows import Row
from tests.sessions.helpers import Clock

GOOD = Answered(
    Row(1, 0, "0"),
    status="complete",
    stats=TurnStats(output_tokens=20, resident_tokens=60, restored_tokens=15, prefilled_tokens=25),
)
BAD = Answered(Row(1, 0, "0"), error="No.")


class Terminal(io.StringIO):
    """A stream that says whether somebody watches."""

    def __init__(self, *, is_watched: bool) -> None:
        super().__init__()
        self._is_watched = is_watched

    def isatty(self) -> bool:
        """True for a terminal."""
        return self._is_watched


def meter_on(stream: Terminal, clock: Clock, columns: int = 120, n_total: int | None = 40) -> Meter:
    """Return a meter that writes to a stream."""
    return Meter(Narrator(stream), clock, n_total=n_total, is_watched=stream.isatty(), columns=lambda: columns)


def test_the_bar_says_all_that_counts() -> None:
    """Rows, pace, time left, tokens and reuse."""
    stream, clock = Terminal(is_watched=True), Clock()
    meter = meter_on(stream, clock)
    meter.n_before = 8
    clock.now += 10
    meter.count(BAD)
    meter.count(GOOD)
    assert meter.line() == (
        "[#####---------------] 10 / 40 rows · 1 failed · 0.2 rows/s · 2 min left · 2.0 tokens/s · "
        "75% of the prompts reused"
    )
    assert stream.getvalue().startswith("\r\x1b[K[####")


@pytest.mark.parametrize("columns", [10, 30, 60, 80])
def test_the_bar_fits_the_terminal(columns: int) -> None:
    """What matters least goes first."""
    clock = Clock()
    meter = meter_on(Terminal(is_watched=True), clock, columns)
    clock.now += 1
    meter.count(GOOD)
    assert len(meter.line()) < columns
    assert meter.line().startswith("[--------")


def test_it_is_painted_ten_times_a_second_at_most() -> None:
    """However fast the rows come."""
    stream, clock = Terminal(is_watched=True), Clock(step=PAINT_S / 20)
    meter = meter_on(stream, clock, n_total=None)
    for _ in range(100):
        meter.count(GOOD)
    assert 2 <= stream.getvalue().count("\r") <= 12
    assert " / " not in meter.line()


def test_a_log_gets_a_sentence_now_and_then() -> None:
    """Whole lines, without a command to the terminal."""
    stream, clock = Terminal(is_watched=False), Clock()
    meter = meter_on(stream, clock)
    meter.count(GOOD)
    assert stream.getvalue() == ""
    clock.now += SPEAK_S
    meter.count(GOOD)
    meter.count(GOOD)
    assert stream.getvalue() == "2 of 40 rows, 0 failed: 0.067 rows/s, 1.3 tokens/s, about 10 min left.\n"


def test_the_summary_counts_everything() -> None:
    """Rows of all runs, the pace of this one, and where the prompts came from, what rows share included."""
    stream, clock = Terminal(is_watched=False), Clock()
    meter = meter_on(stream, clock)
    meter.count_prefix(Prepared(0, 100, 0, None, 0.0, 0.0, 0, ()))
    meter.count(GOOD)
    meter.n_before = 3
    clock.now += 4
    meter.summarize(2)
    assert stream.getvalue().splitlines() == [
        "4 rows, 2 failed.",
        "3 of them had been answered before.",
        "This run took 4 s: 0.2 rows/s, 5.0 tokens/s.",
        "88% of the prompts' tokens were reused: 60 were in memory, 115 came from disk, 25 were computed.",
    ]
