import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from chatapp.console import ending_signals, on_ending_signals

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
