"""Stdout for data, stderr for narration, and Ctrl+C, for the commands that are not the chat window."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from chatapp.safe import clean
from chatapp.texts import tr, tr_later
from models.engine import Phase, Progress

INTERRUPTED = 130
"""Exit code after Ctrl+C, as shells have it."""

_WORTH_SAYING_S = 1.0
"""Less than that is over before it was read."""

PHASES: dict[Phase, str] = {
    "load": tr_later("loading the model"),
    "wait": tr_later("waiting for the server"),
    "tune": tr_later("measuring the fastest settings"),
    "check": tr_later("checking that saved KV comes back"),
    "restore": tr_later("restoring the conversation"),
    "prefill": tr_later("reading the prompt"),
    "decode": tr_later("answering"),
}


def print_text(text: str) -> None:
    """Write text as it is; to a terminal, only what cannot command it."""
    sys.stdout.write(clean(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def print_json(value: object) -> None:
    """Write one JSON value on one line, pure ASCII."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def replaced_notice(n: int) -> str:
    """What to say about characters of the input that could not be kept."""
    return tr("{n} damaged character(s) in the input were replaced.").format(n=f"{n:,}")


def lost_notice(n: int) -> str:
    """What to say about characters that the model does not get to see."""
    return tr("{n} character(s) cannot be written in this model's vocabulary: the model does not see them.").format(
        n=f"{n:,}"
    )


class Narrator:
    """Says on stderr what is going on: notices always, progress only when somebody watches."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_watched = self._stream.isatty()
        self._has_line = False

    def progress(self, event: Progress) -> None:
        """Show how far a phase is and how long it may take, in a line that the next one replaces."""
        share = f" {100 * event.done // event.total} %" if event.total else ""
        left = ""
        if event.left_s is not None and event.left_s >= _WORTH_SAYING_S:
            left = f", about {event.left_s:,.0f} s left"
        self.line(f"{PHASES[event.phase]}{share}{left}")

    def line(self, text: str) -> None:
        """Show a line that the next one replaces."""
        if self._is_watched:
            self._stream.write(f"\r\x1b[K{clean(text)}")
            self._stream.flush()
            self._has_line = True

    def clear(self) -> None:
        """Take the line away."""
        if self._has_line:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._has_line = False

    def hint(self, text: str) -> None:
        """Say a sentence to somebody who watches."""
        if self._is_watched:
            self.notice(text)

    def notice(self, text: str) -> None:
        """Say a sentence."""
        self.clear()
        self._stream.write(clean(text) + "\n")
        self._stream.flush()


def ending_signals() -> list[signal.Signals]:
    """Return what asks a program to end: Ctrl+C, a polite kill, a closed terminal.

    What is ignored stays so, `nohup` has its reason; only Ctrl+C counts in any case.
    """
    found = [signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    return [one for one in found if one == signal.SIGINT or signal.getsignal(one) is not signal.SIG_IGN]


def on_ending_signals(asked: Callable[[], None]) -> None:
    """Call back on each signal that asks this program to end, for as long as the event loop runs."""
    loop = asyncio.get_running_loop()
    for one in ending_signals():
        try:
            loop.add_signal_handler(one, asked)
        except NotImplementedError:
            pass  # Windows: Ctrl+C cancels the loop's task instead


def run_to_exit(work: Coroutine[Any, Any, int]) -> int:
    """Run a command's coroutine; return its exit code, or 130 when Ctrl+C ended it."""
    try:
        return asyncio.run(work)
    except (asyncio.CancelledError, KeyboardInterrupt):
        return INTERRUPTED


@contextmanager
def interrupts(stop: Callable[[], Awaitable[None]]) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl+C into `stop`, a second one into the end of this task; yields "was it pressed?".

    Where the event loop takes no signal handlers (Windows), the first one ends the task.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None, "runs inside a task"
    stopping: list[asyncio.Future[None]] = []

    def pressed() -> None:
        if stopping:
            task.cancel()
        else:
            stopping.append(asyncio.ensure_future(stop()))

    try:
        loop.add_signal_handler(signal.SIGINT, pressed)
    except NotImplementedError:
        yield lambda: False
        return
    try:
        yield lambda: bool(stopping)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
