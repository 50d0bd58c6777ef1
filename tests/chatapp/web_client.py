"""The server of `chatapp web` and a client in place of a browser, for tests."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pyte
from aiohttp import web

from chatapp.web.door import HOST, Door
from chatapp.web.server import Waits, WebServer

PATIENCE_S = 60.0
_USUAL = Waits()


class Window:
    """One connection of a page: what it is sent is read as a terminal's screen."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.texts: list[tuple[str, object]] = []
        """What the page was told beside the picture: verbs and values."""
        self.socket = socket
        self._screen = pyte.Screen(120, 36)
        self._stream = pyte.ByteStream(self._screen)

    def screen(self) -> str:
        """What the terminal shows."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    async def type(self, text: str) -> None:
        """Type characters as they are."""
        await self.socket.send_json(["stdin", text])

    async def wait_for(self, text: str) -> None:
        """Wait until the terminal shows a text."""
        while text not in self.screen():
            assert await self._take(), f"never saw {text!r}; told {self.texts}; the screen is\n{self.screen()}"

    async def told(self, verb: str) -> object:
        """Wait until the page is told something; return it."""
        while True:
            for text in self.texts:
                if text[0] == verb:
                    self.texts.remove(text)
                    return text[1]
            assert await self._take(), f"was never told {verb!r}"

    async def close(self) -> None:
        """Go away as a browser does."""
        await self.socket.close()

    async def _take(self) -> bool:
        """Take the next message; False when the server closed the connection."""
        message = await self.socket.receive(timeout=PATIENCE_S)
        if message.type is aiohttp.WSMsgType.BINARY:
            self._stream.feed(message.data)
        elif message.type is aiohttp.WSMsgType.TEXT:
            verb, value = json.loads(message.data)
            self.texts.append((verb, value))
        return message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT)


class Served:
    """A running server with a client that has no cookie yet."""

    def __init__(self, server: WebServer, door: Door, client: aiohttp.ClientSession, log: Path) -> None:
        self.server = server
        self.door = door
        self.client = client
        self._log = log

    @property
    def base(self) -> str:
        """The address without anything secret."""
        return f"http://{HOST}:{self.door.port}"

    @property
    def room(self) -> str:
        """The address of the page."""
        return self.base + self.door.room

    @property
    def origin(self) -> dict[str, str]:
        """What a browser says of our own page."""
        return {"Origin": self.base}

    def pids(self) -> list[int]:
        """The processes that were started, the first one first."""
        return [int(line) for line in self._log.read_text().split()] if self._log.exists() else []

    async def enter(self) -> None:
        """Get the cookie."""
        async with self.client.get(self.door.url) as response:
            assert response.status == 200

    async def window(self) -> Window:
        """Connect as the page does."""
        url = f"{self.room}socket?width=120&height=36"
        return Window(await self.client.ws_connect(url, headers=self.origin, max_msg_size=0))


def chat(folder: Path, *more: str, engine: str = "fake") -> list[str]:
    """Return the command line of a chat window with the fake engine."""
    folders = ["--data-dir", str(folder / "data"), "--cache-dir", str(folder / "cache")]
    return [sys.executable, "-P", "-m", "chatapp", "--engine", engine, *folders, *more]


def is_alive(pid: int) -> bool:
    """True while there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@asynccontextmanager
async def served(
    arguments: Sequence[str], log: Path, *, waits: Waits = _USUAL, ends_with_window: bool = False
) -> AsyncIterator[Served]:
    """Run the server for the block; the processes it starts write their ids to `log`."""
    listening = socket.create_server((HOST, 0))
    door = Door(listening.getsockname()[1])
    logged = ["/bin/sh", "-c", 'echo $$ >> "$0"; exec "$@"', str(log), *arguments]
    server = WebServer(logged, door, waits=waits, ends_with_window=ends_with_window)
    runner = web.AppRunner(server.application(), access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
            async with asyncio.timeout(PATIENCE_S):
                yield Served(server, door, client, log)
    finally:
        await runner.cleanup()
