"""Requests on their way through the engine: in the order they came, a bounded number of them, each with an end."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from chatapp.serve.errors import busy, stopping
from models.engine import Engine, Event, Failed, Finished, Prompt, Sampling
from sessions.turn import answer


class Line:
    """Who is answered and who waits. As many are answered at once as the engine serves."""

    def __init__(self, engine: Engine, *, most_waiting: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._most_waiting = most_waiting
        self._monotonic = monotonic
        self._running: set[asyncio.Future[None]] = set()
        """Places of those who are answered."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._unanswered: set[asyncio.Task[None]] = set()
        self._works: set[asyncio.Task[None]] = set()
        """Those, and those whose KV is still being stored."""
        self._is_closed = False

    async def ask(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Event, None]:
        """Yield the events of an answer, up to `Finished` or `Failed`; its KV is stored behind the client's back.

        Closed early, it stops the engine. Raises `ApiError` when too many wait, or when the server ends.
        """
        place = self._take_place()
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        work = asyncio.create_task(self._work(place, prompt, sampling, events))
        self._works.add(work)
        self._unanswered.add(work)
        work.add_done_callback(lambda work: self._end(work, place))
        is_over = False
        try:
            while (event := await events.get()) is not None:
                is_over = isinstance(event, Finished | Failed)
                if is_over:
                    self._unanswered.discard(work)
                yield event
                if is_over:
                    return
            is_over = True
            failure = None if work.cancelled() else work.exception()
            raise failure or stopping()
        finally:
            if not is_over:
                work.cancel()
                await asyncio.wait({work})

    async def close(self, grace_s: float, hurry: asyncio.Event) -> None:
        """Take nobody any more; those who wait are told, those who are answered have `grace_s`, or until `hurry`."""
        self._is_closed = True
        while self._waiting:
            if not (place := self._waiting.popleft()).done():
                place.set_exception(stopping())
        if self._unanswered:
            answered = asyncio.gather(*self._unanswered, return_exceptions=True)
            hurrying = asyncio.create_task(hurry.wait())
            either: set[asyncio.Future[Any]] = {answered, hurrying}
            await asyncio.wait(either, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            hurrying.cancel()
        for work in self._unanswered:
            work.cancel()

    async def settle(self) -> None:
        """Wait until nothing is left, the storing of KV neither; the engine has to be closed already."""
        await asyncio.gather(*self._works, return_exceptions=True)

    async def _work(
        self, place: asyncio.Future[None], prompt: Prompt, sampling: Sampling, events: asyncio.Queue[Event | None]
    ) -> None:
        """Pass the events of one answer on; a client that reads slowly keeps nobody waiting."""
        asked_at = self._monotonic()
        try:
            await place
            waited_s = self._monotonic() - asked_at
            running = answer(
                self._engine, prompt, sampling, asked_at=asked_at, waited_s=waited_s, monotonic=self._monotonic
            )
            async with aclosing(running):
                async for event in running:
                    if isinstance(event, Finished | Failed):
                        self._leave(place)
                    events.put_nowait(event)
        finally:
            events.put_nowait(None)

    # --- places ---

    def _take_place(self) -> asyncio.Future[None]:
        """Return a place, which is done when it is its turn."""
        if self._is_closed:
            raise stopping()
        if len(self._running) >= self._n_at_once and len(self._waiting) >= self._most_waiting:
            raise busy(len(self._waiting))
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._let_in()
        return place

    @property
    def _n_at_once(self) -> int:
        return self._engine.info.n_parallel if self._engine.info else 1

    def _let_in(self) -> None:
        while self._waiting and len(self._running) < self._n_at_once:
            place = self._waiting.popleft()
            if not place.done():  # who waited may have gone away at this moment
                self._running.add(place)
                place.set_result(None)

    def _leave(self, place: asyncio.Future[None]) -> None:
        """Give a place up, wherever in the line it is; leaving twice is fine."""
        if place in self._waiting:
            self._waiting.remove(place)
        self._running.discard(place)
        self._let_in()

    def _end(self, work: asyncio.Task[None], place: asyncio.Future[None]) -> None:
        self._leave(place)
        self._works.discard(work)
        self._unanswered.discard(work)
        if not work.cancelled():
            work.exception()  # who asked has been told, or is gone
