"""The server of `chatapp serve` over an engine, mostly the scripted one, and what its clients say, for tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
from aiohttp import web

from chatapp.serve.chat import Chat, Served
from chatapp.serve.guard import Guard
from chatapp.serve.line import Line
from chatapp.serve.server import Server
from models.engine import Engine, Loaded
from models.fake import FakeEngine

KEY = "chatapp-key-of-the-tests"
HOST = "127.0.0.1"
PATIENCE_S = 30.0


def question(text: str = "hi", **more: Any) -> dict[str, Any]:
    """The body of a request with one message."""
    return {"model": "fake", "messages": [{"role": "user", "content": text}], **more}


class Client:
    """A server with the fake engine behind it, and one client."""

    def __init__(self, engine: FakeEngine, server: Server, line: Line, port: int, http: aiohttp.ClientSession) -> None:
        self.engine = engine
        self.server = server
        self.line = line
        self.port = port
        self.http = http
        self.base = f"http://{HOST}:{port}"

    async def post(self, body: object, **headers: str) -> tuple[int, dict[str, Any]]:
        """Ask; return the status and the object. Bytes are sent as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.post(f"{self.base}/v1/chat/completions", data=data, headers=headers) as response:
            return response.status, await response.json()

    async def get(self, path: str, **headers: str) -> tuple[int, dict[str, Any]]:
        """Return the status and the object of an address."""
        async with self.http.get(self.base + path, headers=headers) as response:
            return response.status, await response.json()

    async def refusal(self, body: object, **headers: str) -> tuple[int, str | None, str | None]:
        """Ask what is refused; return status, code and field."""
        status, answer = await self.post(body, **headers)
        return status, answer["error"]["code"], answer["error"]["param"]

    async def stream(self, body: dict[str, Any]) -> list[str]:
        """Ask for a stream; return its frames, without the line breaks between them."""
        async with self.http.post(f"{self.base}/v1/chat/completions", json={**body, "stream": True}) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"].startswith("text/event-stream")
            return (await response.text()).split("\n\n")[:-1]


@asynccontextmanager
async def served(
    engine: Engine, *, most_waiting: int = 8, sign_s: float = 60.0, body_s: float = 60.0, is_loaded: bool = True
) -> AsyncIterator[Client]:
    """Serve an engine for the block."""
    line = Line(engine, most_waiting=most_waiting)
    server = Server(Guard(KEY, HOST), Chat(line, clock=lambda: 1_000.0, sign_s=sign_s), created=1_000, body_s=body_s)
    if is_loaded:
        await load(engine, server)
    runner = server.runner(1.0)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as http,
        ):
            # Tests that reach for the script of the engine have given one with a script.
            yield Client(cast(FakeEngine, engine), server, line, port, http)
    finally:
        await line.close(0.0, asyncio.Event())
        await runner.cleanup()
        await engine.close()
        await line.settle()


async def load(engine: Engine, server: Server) -> None:
    """Let the engine load, and the server know."""
    async for event in engine.load():
        if isinstance(event, Loaded):
            server.served = Served(event.info.name, event.info, event.info.sampling)


def events(frames: list[str]) -> list[dict[str, Any]]:
    """The objects in the frames of a stream that ended well."""
    assert frames[-1] == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1] if not frame.startswith(":")]


def text_of(chunks: list[dict[str, Any]], field: str = "content") -> str:
    """The text that the deltas of chunks make together."""
    return "".join(choice["delta"].get(field, "") for chunk in chunks for choice in chunk["choices"])


async def until(is_so: Callable[[], object]) -> None:
    """Let the others run until something is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)
