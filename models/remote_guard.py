"""Waiting for a server: not longer than it may take, not once the request was cancelled, and what is asked again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable
from typing import TypeVar

from models.engine import Progress
from models.remote_errors import MAX_WAIT_S, RemoteError

T = TypeVar("T")
_TRIES = 3


class Stopped(Exception):
    """The request was cancelled."""


class Guard:
    """Waits for a server, but not longer than it may take, and not when the request was cancelled."""

    def __init__(self) -> None:
        self._timeout: asyncio.Timeout | None = None
        self.is_cancelled = False

    async def wait(self, awaited: Awaitable[T], seconds: float) -> T:
        """Raise `Stopped` when cancelled meanwhile, `TimeoutError` when it takes longer."""
        if self.is_cancelled:
            if asyncio.iscoroutine(awaited):
                awaited.close()
            raise Stopped
        try:
            async with asyncio.timeout(max(0.0, seconds)) as self._timeout:
                return await awaited
        except TimeoutError:
            if self.is_cancelled:
                raise Stopped from None
            raise
        finally:
            self._timeout = None

    def cancel(self) -> None:
        """End what waits, and what will."""
        self.is_cancelled = True
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())


def again_after(error: RemoteError, n_tries: int, waited_s: float) -> float | None:
    """Return after how many seconds a server is asked again by itself; None if that is for the user to decide."""
    if n_tries >= _TRIES or error.kind not in ("busy", "unreachable"):
        return None
    if error.kind == "unreachable" and error.retry_after_s is None:
        return None
    wait_s = error.retry_after_s if error.retry_after_s is not None else float(n_tries)
    return wait_s if waited_s + wait_s <= MAX_WAIT_S else None


async def pause(guard: Guard, seconds: float) -> AsyncGenerator[Progress, None]:
    """Wait, and tell it second by second."""
    whole = math.ceil(seconds)
    for second in range(whole):
        yield Progress("wait", second, whole)
        try:
            await guard.wait(asyncio.Event().wait(), min(1.0, seconds - second))
        except TimeoutError:
            continue
