"""Connections of servers on loopback, ended with the test: what a loop leaves open is told in another test."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Connections:
    """Those that handlers serve at the moment, with the tasks that serve them."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, *writers: asyncio.StreamWriter) -> None:
        """Take note of what the running handler writes to."""
        self._writers.extend(writers)
        task = asyncio.current_task()
        assert task is not None, "a handler runs in a task"
        self._tasks.add(task)

    async def end(self) -> None:
        """Cancel the handlers, and wait until every socket is closed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)


@asynccontextmanager
async def listening(server: asyncio.Server, connections: Connections) -> AsyncGenerator[int, None]:
    """Have a server listen until the block ends; gives its port."""
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await connections.end()
