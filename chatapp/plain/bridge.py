"""Two threads: the main one reads lines and gets the signals, the other one has the event loop and the conversations.

A line can be waited for while the engine's events go on being taken, and Ctrl+C reaches whatever goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import FrameType
from typing import TypeAlias

from chatapp.console import ending_signals
from chatapp.plain.lines import Reader
from chatapp.plain.rousing import CAN_ROUSE, rousing

_POLL_S = 0.5
"""Windows tells a waiting thread of Ctrl+C only when it looks."""


class Signal(Enum):
    """What comes in place of a line."""

    END = "end"
    INTERRUPT = "interrupt"
    CLEARED = "cleared"
    """Ctrl+C that dropped what was typed on the line."""


Line: TypeAlias = str | Signal


class _Ended(BaseException):
    """The program is to end: interrupts the reading of a line."""


@dataclass(frozen=True, slots=True)
class _Wish:
    prompt: str
    begin: str
    is_answer: bool
    line: asyncio.Future[Line]


def _give(future: asyncio.Future[Line], line: Line) -> None:
    if not future.done():
        future.set_result(line)


class Bridge:
    """Hands lines from the main thread to the event loop, and the signals.

    `interrupted` and `ended` are called in the loop for Ctrl+C and for the signals that end the program, unless they
    meet a line that is read: that then is one of `Signal`.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.interrupted: Callable[[], object] = lambda: None
        self.ended: Callable[[], object] = lambda: None
        self.ended_by: int | None = None
        """The signal that ends the program, if one does."""
        self._wishes: queue.SimpleQueue[_Wish | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_reading = self._has_begun = False
        self._leaves_by: type[BaseException] | None = None
        """What the reading of this line is to end with."""

    # --- in the event loop ---

    async def line(self, prompt: str, begin: str = "", *, is_answer: bool = False) -> Line:
        """Wait for a line; see `Reader`."""
        if self.ended_by is not None:
            return Signal.END
        found: asyncio.Future[Line] = asyncio.get_running_loop().create_future()
        self._wishes.put(_Wish(prompt, begin, is_answer, found))
        return await found

    # --- in the main thread ---

    def run(self, work: Callable[[], Awaitable[int]]) -> int:
        """Run the work in a thread of its own and read lines for it; return its exit code, or that of a signal.

        What the work raises is raised here.
        """
        result: Future[int] = Future()

        async def begun() -> int:
            self._loop = asyncio.get_running_loop()
            return await work()

        def serve() -> None:
            try:
                result.set_result(asyncio.run(begun()))
            except BaseException as error:  # noqa: BLE001 - raised again in the main thread
                result.set_exception(error)
            finally:
                self._wishes.put(None)

        with self._signals(), rousing(self._roused):
            # A daemon, because nothing may keep a program from ending whose main thread has failed.
            thread = threading.Thread(target=serve, name="conversations", daemon=True)
            thread.start()
            while (wish := self._next_wish()) is not None:
                self._answer(wish)
            thread.join()
        if self.ended_by is not None:
            return 128 + self.ended_by
        return result.result()

    def _next_wish(self) -> _Wish | None:
        while True:
            with contextlib.suppress(queue.Empty):
                return self._wishes.get(timeout=_POLL_S if os.name == "nt" else None)

    def _answer(self, wish: _Wish) -> None:
        line: Line = Signal.END
        try:
            line = self._read(wish)
        except KeyboardInterrupt:
            line = Signal.CLEARED if self._has_begun else Signal.INTERRUPT
        except _Ended:
            line = Signal.END
        except OSError:  # the terminal is gone
            line = Signal.END
        self._call(partial(_give, wish.line, line))

    def _read(self, wish: _Wish) -> Line:
        self._leaves_by, self._has_begun = None, True
        try:
            self._is_reading = True
            if self.ended_by is not None:
                return Signal.END
            read = self.reader.read(wish.prompt, wish.begin, is_answer=wish.is_answer)
        finally:
            self._is_reading = False
        if self._leaves_by is not None:  # the line ended before its reading was left
            raise self._leaves_by
        return Signal.END if read is None else read

    def _call(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Take the signals while the work goes on. Only the reading of a line is broken off by them."""
        before = {number: signal.getsignal(number) for number in ending_signals()}
        for number in before:
            signal.signal(number, self._pressed if number == signal.SIGINT else self._told_to_end)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pressed(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_reading:
            self._leave(KeyboardInterrupt)
        else:
            self._call(self.interrupted)

    def _told_to_end(self, number: int, _frame: FrameType | None) -> None:
        self.ended_by = number
        self._call(self.ended)
        if self._is_reading:
            self._leave(_Ended)

    def _leave(self, error: type[BaseException]) -> None:
        """Have the reading of this line end with an error."""
        self._leaves_by = error
        if not CAN_ROUSE:
            self._roused()

    def _roused(self) -> None:
        """End the reading of a line that is to be left; once more if a completion has swallowed that."""
        if self._is_reading and self._leaves_by is not None:
            self._has_begun = self.reader.has_begun()
            raise self._leaves_by
