"""Requests to the engine, seen from the prompt: what is waited for, what goes on beside, and how Ctrl+C ends it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from chatapp.texts import tr
from models.engine import Event, Failed
from models.errors import EngineError
from sessions.errors import SessionError

T = TypeVar("T")
CANCELLED = "cancelled"
"""The kind of a failure: it was stopped, and there is nothing to keep."""
_END_S = 5.0
"""How long an answer may take to stop when the program is to end, in seconds."""


class Following:
    """Owner of the request that is waited for, and of those of which only KV is still to be written."""

    def __init__(self, stop: Callable[[], Awaitable[None]]) -> None:
        """`stop` asks the engine to stop, as `SessionManager.stop` does."""
        self._stop = stop
        self._stopping: asyncio.Task[None] | None = None
        self._current: asyncio.Task[Any] | None = None
        self._can_stop = False
        self._ahead: asyncio.Task[None] | None = None
        self._beside: set[asyncio.Task[None]] = set()
        self.was_interrupted = False
        """True if Ctrl+C, or the end of the program, met the last request."""

    async def events(
        self,
        events: AsyncGenerator[Event, None],
        take: Callable[[Event], object],
        *ends: type[Event],
        can_stop: bool = True,
    ) -> Failed | None:
        """Hand events to `take` until one of `ends` has come, or all have; the rest is taken beside.

        `can_stop` False: the engine is not asked to stop, it is just not waited for any more. Returns the failure it
        ended with, if it did; errors of ours are failures.
        """
        over = asyncio.Event()
        failures: list[Failed] = []

        async def run() -> None:
            try:
                async with aclosing(events):
                    async for event in events:
                        take(event)
                        if isinstance(event, Failed):
                            failures.append(event)
                        if isinstance(event, ends):
                            over.set()
            except (SessionError, EngineError) as error:
                failures.append(Failed("refused", str(error)))
            finally:
                over.set()

        task = asyncio.create_task(run())
        self._begin(task, can_stop=can_stop)
        await over.wait()
        self._current = None
        if not task.done():
            self._beside.add(task)
        elif task.cancelled():
            return Failed(CANCELLED, tr("Stopped."))
        else:
            task.result()
        return failures[0] if failures else None

    async def wait(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Wait for work of which nothing has to be kept; None if Ctrl+C ended it."""
        task = asyncio.create_task(work)
        self._begin(task, can_stop=False)
        try:
            return await task
        except asyncio.CancelledError:
            if self.was_interrupted:
                return None
            raise
        finally:
            self._current = None

    def ahead(self, events: AsyncGenerator[Event, None], take: Callable[[Event], object]) -> None:
        """Take events that nobody waits for; what goes wrong is told by the next request."""

        async def run() -> None:
            with contextlib.suppress(SessionError, EngineError):
                async with aclosing(events):
                    async for event in events:
                        take(event)

        self._ahead = asyncio.create_task(run())

    def interrupt(self) -> None:
        """Stop what is waited for: an answer keeps its text. A second time, whatever it is doing."""
        current = self._current
        if current is None:
            return
        if self._can_stop and not self.was_interrupted:
            self._stopping = asyncio.ensure_future(self._stopped())
        else:
            current.cancel()
        self.was_interrupted = True

    def end(self) -> None:
        """The program is to end: stop, but do not wait for ever."""
        current = self._current
        self.interrupt()
        if current is not None:
            asyncio.get_running_loop().call_later(_END_S, current.cancel)

    async def settle(self, *, is_end: bool = False) -> None:
        """Raise what went wrong beside; at the end, wait until all is over there."""
        tasks = list(self._beside) if is_end else [task for task in self._beside if task.done()]
        self._beside.difference_update(tasks)
        if is_end and self._ahead is not None:
            self._ahead.cancel()
            await asyncio.wait([self._ahead])
        for task in tasks:
            await task

    def _begin(self, task: asyncio.Task[Any], *, can_stop: bool) -> None:
        self._current, self._can_stop, self.was_interrupted = task, can_stop, False

    async def _stopped(self) -> None:
        with contextlib.suppress(SessionError, EngineError):  # the request itself tells what became of it
            await self._stop()
