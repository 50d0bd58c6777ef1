"""A server on loopback that sends, byte for byte, what a test tells it to."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.models.connections import Connections, listening

CUT = "cut"
"""The connection is reset there."""
HANG = "hang"
"""Nothing more is sent until the client goes away."""
Step = bytes | str
Script = Sequence[Step]


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        """The body as JSON."""
        found: dict[str, Any] = json.loads(self.raw)
        return found


@dataclass
class Scripted:
    """What was asked and what is answered. `chat` are the answers to chat requests, in turn; the last one repeats."""

    port: int = 0
    scheme: str = "http"
    received: list[Received] = field(default_factory=list)
    chat: list[Script] = field(default_factory=list)
    routes: dict[str, Script] = field(default_factory=dict)
    n_connections: int = 0
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client went away while the server hung."""

    @property
    def url(self) -> str:
        """Where it is."""
        return f"{self.scheme}://127.0.0.1:{self.port}/v1"

    @property
    def asked(self) -> list[Received]:
        """The chat requests."""
        return [request for request in self.received if request.path.endswith("/chat/completions")]

    def script_for(self, request: Received) -> Script:
        """What to send for a request."""
        if request.path in self.routes:
            return self.routes[request.path]
        if request.path.endswith("/models"):
            return [reply(200, {"object": "list", "data": [{"id": "m", "object": "model"}]})]
        if request.path.endswith("/chat/completions") and self.chat:
            return self.chat.pop(0) if len(self.chat) > 1 else self.chat[0]
        return [reply(404, {"detail": "Not Found"})]


def reply(status: int, body: Any, headers: dict[str, str] | None = None, kind: str = "application/json") -> bytes:
    """A whole answer."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Content-Type": kind, "Content-Length": str(len(raw)), **(headers or {})}
    head = f"HTTP/1.1 {status} X\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return head.encode() + b"\r\n" + raw


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
"""The head of a stream; `chunk`s and `END` follow."""
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(raw: bytes) -> bytes:
    """One piece of a stream as HTTP frames it."""
    return b"%x\r\n%s\r\n" % (len(raw), raw)


def event(value: Any) -> bytes:
    """One event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(text: str | None = None, finish: str | None = None, **fields: Any) -> bytes:
    """An event with a part of the answer."""
    said = ({} if text is None else {"content": text}) | fields
    return event({"choices": [{"index": 0, "delta": said, "finish_reason": finish}]})


def usage(n_prompt: int = 10, n_output: int = 2, **details: Any) -> bytes:
    """The event that tells what was used."""
    numbers = {"prompt_tokens": n_prompt, "completion_tokens": n_output, **details}
    return event({"choices": [], "usage": numbers})


def stream(*events: bytes) -> Script:
    """A whole stream, each event in a chunk of its own."""
    return [STREAM, *(chunk(one) for one in events), END]


def answer(*words: str) -> Script:
    """The usual answer, word by word."""
    return stream(*(delta(word) for word in words), delta(finish="stop"), usage(n_output=len(words)), DONE)


@asynccontextmanager
async def serving(
    context: ssl.SSLContext | None = None, *, script_for: Callable[[Received], Script] | None = None
) -> AsyncGenerator[Scripted, None]:
    """Serve on a free port until the block ends."""
    scripted, connections = Scripted(scheme="https" if context else "http"), Connections()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        scripted.n_connections += 1
        connections.begin(writer)
        try:
            while (request := await _request(reader)) is not None:
                scripted.received.append(request)
                for step in (script_for or scripted.script_for)(request):
                    if step == CUT:
                        writer.transport.abort()
                        return
                    if step == HANG:
                        await reader.read()
                        scripted.hung_up.set()
                        return
                    assert isinstance(step, bytes)
                    writer.write(step)
                    await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            scripted.hung_up.set()
        except asyncio.CancelledError:
            return  # the test is over
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    async with listening(server, connections) as scripted.port:
        yield scripted


async def _request(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    method, path, _ = first.split(" ")
    return Received(method, path, headers, raw)
