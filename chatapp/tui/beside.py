"""Conversations asked in a thread of their own, over a connection of their own: no key waits for a search."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sessions.conversations import Conversations

T = TypeVar("T")


class Beside:
    """One question at a time, in their order; the connection is opened by the first. Raises what a question raises."""

    def __init__(self, open_them: Callable[[], Conversations]) -> None:
        self._open = open_them
        self._conversations: Conversations | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._is_closed = False

    async def ask(self, question: Callable[[Conversations], T]) -> T:
        """Answer a question. A caller that goes away takes back one that has not begun; after `close` all have to."""
        if self._is_closed:
            raise asyncio.CancelledError
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="conversations")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, question)

    def _answer(self, question: Callable[[Conversations], T]) -> T:
        if self._conversations is None:
            self._conversations = self._open()
        return question(self._conversations)

    async def close(self) -> None:
        """Close the connection, once the running question is answered."""
        self._is_closed = True
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        await asyncio.get_running_loop().run_in_executor(thread, self._close)
        thread.shutdown()

    def _close(self) -> None:
        if self._conversations is not None:
            self._conversations.close()
            self._conversations = None
