"""While the cursor rests on a conversation of the list, its KV is brought into the page cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from textual.timer import Timer

from chatapp.tui.stage import Stage
from models.errors import EngineError
from sessions.errors import SessionError

RESTS_S = 0.3
"""The cursor rests on a row from this long on, in seconds."""


class Prefetcher(Protocol):
    """What finds and reads KV, see `chatapp.prefetching.Prefetching`; tests count instead."""

    def tips(self, session_id: str) -> Sequence[tuple[str, str]]:
        """Return a conversation's newest KV, as (fingerprint, tip)."""
        ...

    def fetch(self, tips: Sequence[tuple[str, str]], fingerprint: str | None, goes_on: Callable[[], bool]) -> int:
        """Read it ahead as long as that goes on; returns bytes."""
        ...


class Prefetch:
    """Owner of the one prefetch that runs: it ends when the cursor moves on, and begins where no answer is written."""

    def __init__(self, stage: Stage, prefetcher: Prefetcher | None) -> None:
        self._stage = stage
        self._prefetcher = prefetcher
        self._later: Timer | None = None
        self._wanted: object | None = None  # stands for one prefetch: its thread may outlive it, and learns so

    def highlighted(self, session_id: str | None) -> None:
        """The cursor came to a row."""
        if self._prefetcher is None:
            return
        self._wanted = None
        if self._later is not None:
            self._later.stop()
        if session_id and session_id != self._stage.current:
            self._later = self._stage.listing.set_timer(RESTS_S, lambda: self._begin(session_id))

    def _begin(self, session_id: str) -> None:
        if self._stage.is_standing and not self._stage.talk.live:
            self._wanted = wish = object()
            self._stage.work(self._fetch(session_id, wish), "prefetch")

    async def _fetch(self, session_id: str, wish: object) -> None:
        prefetcher, info = self._prefetcher, self._stage.talk.model.info
        assert prefetcher is not None
        fingerprint = info.fingerprint if info else None
        try:
            tips = await self._stage.beside.ask(lambda _: prefetcher.tips(session_id))
            await asyncio.to_thread(prefetcher.fetch, tips, fingerprint, lambda: self._wanted is wish)
        except (SessionError, EngineError, OSError):
            pass  # a convenience: without it the restore reads from the disk
        finally:
            if self._wanted is wish:
                self._wanted = None
