import asyncio
import io
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from chatapp.console import Narrator, ending_signals, on_ending_signals
from models.engine import Progress

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")


@contextmanager
def handled(number: int, handler: Callable[..., Any] | signal.Handlers) -> Iterator[None]:
    """Handle a signal so for the block."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_what_is_ignored_stays_so() -> None:
    """A program under `nohup` outlives its terminal; Ctrl+C counts in any case."""
    with handled(signal.SIGHUP, signal.SIG_IGN), handled(signal.SIGINT, signal.SIG_IGN):
        assert ending_signals() == [signal.SIGINT, signal.SIGTERM]
    with handled(signal.SIGHUP, signal.SIG_DFL):
        assert ending_signals() == [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


async def test_each_signal_is_told() -> None:
    """As often as it comes, and an ignored one never."""
    told: list[None] = []
    loop = asyncio.get_running_loop()
    with handled(signal.SIGHUP, signal.SIG_IGN), handled(signal.SIGINT, signal.SIG_DFL):
        on_ending_signals(lambda: told.append(None))
        try:
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
                n_before = len(told)
                signal.raise_signal(number)
                while number != signal.SIGHUP and len(told) == n_before:  # noqa: ASYNC110 - it comes by the loop's pipe
                    await asyncio.sleep(0)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
    assert len(told) == 3


class Terminal(io.StringIO):
    """A terminal that keeps what was written to it."""

    def isatty(self) -> bool:
        """True."""
        return True


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Progress("prefill", 0, 4000, 12.4), "reading the prompt 0 %, about 12 s left"),
        (Progress("prefill", 0, 4000, 0.4), "reading the prompt 0 %"),
        (Progress("prefill", 1000, 4000), "reading the prompt 25 %"),
    ],
)
def test_a_long_phase_says_how_long_it_will_take(event: Progress, line: str) -> None:
    """From its beginning where the engine expects a time, unless that is over before it was read."""
    terminal = Terminal()
    Narrator(terminal).progress(event)
    assert terminal.getvalue().removeprefix("\r\x1b[K") == line
