"""A watch over native calls that nothing can interrupt: who waits is told, and the process given up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_POLL_S = 0.1
_PATIENCE_S = 1.0
"""How long a call may still take once the request was cancelled."""


class Watch:
    """Calls `give_up` from a thread of its own when one call takes longer than `limit_s`; runs until `close`."""

    def __init__(self, limit_s: float, *, is_cancelled: Callable[[], bool], give_up: Callable[[], None]) -> None:
        self._limit_s = limit_s
        self._is_cancelled = is_cancelled
        self._give_up = give_up
        self._begun_at: float | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    @contextmanager
    def over_call(self) -> Iterator[None]:
        """The call to be watched."""
        self._begun_at = time.monotonic()
        try:
            yield
        finally:
            self._begun_at = None

    def close(self) -> None:
        """Watch no longer."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(_POLL_S):
            begun_at = self._begun_at
            limit_s = min(self._limit_s, _PATIENCE_S) if self._is_cancelled() else self._limit_s
            if begun_at is not None and time.monotonic() - begun_at > limit_s:
                self._give_up()
                return
