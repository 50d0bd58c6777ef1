"""Events of an answer as server-sent events: framing, signs of life, and an end that says how it ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from aiohttp import web

from chatapp.serve.errors import ApiError, of_failure, stopping
from chatapp.serve.reply import Reply, deltas_of, end_of, timings_of
from models.engine import Event, Failed, Finished, Piece, Prepared, Progress
from models.reasoning import Splitter

SIGN_S = 5.0
"""How often a sign of life is sent where nothing else was: clients and proxies give up on a silent connection."""
HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
_SIGN = b": waiting\n\n"
_DONE = b"data: [DONE]\n\n"


async def stream(
    request: web.Request,
    events: AsyncGenerator[Event, None],
    reply: Reply,
    *,
    n_ctx: int | None,
    wants_usage: bool,
    sign_s: float = SIGN_S,
) -> web.StreamResponse:
    """Send an answer in chunks.

    As long as nothing was sent, an error has a status of its own: raises `ApiError`. A client does not wait in silence
    for that, so after `sign_s` the stream begins all the same, and an error is its last event, without [DONE].
    """
    sse = _Stream(request, reply)
    splitter = Splitter()
    finished: Finished | None = None
    try:
        async with aclosing(_with_signs(events, sign_s)) as signed:
            async for event in signed:
                match event:
                    case None:
                        await sse.show_life()
                    case Failed():
                        raise of_failure(event, n_ctx=n_ctx)
                    case Prepared() | Progress(phase="restore" | "prefill"):
                        await sse.begin()  # it fits, and its turn has come
                    case Piece(text=text):
                        for delta in deltas_of(splitter.feed(text)):
                            await sse.send(reply.chunk(delta))
                    case Finished():
                        finished = event
        if finished is None or finished.reason == "cancelled":
            raise stopping()
    except ApiError as error:
        if not sse.has_begun:
            raise
        return await sse.end(error.body())
    for delta in deltas_of(splitter.finish()):
        await sse.send(reply.chunk(delta))
    timings = {} if wants_usage else {"timings": timings_of(finished.stats)}
    await sse.send(reply.chunk({}, end_of(finished)) | timings)
    return await sse.end(reply.last(finished.stats) if wants_usage else None, is_done=True)


class _Stream:
    """The response to one request, which begins with the first thing that is sent."""

    def __init__(self, request: web.Request, reply: Reply) -> None:
        self._request = request
        self._reply = reply
        self._response = web.StreamResponse(headers=HEADERS)
        self._was_silent = True

    @property
    def has_begun(self) -> bool:
        """True when it is too late for a status."""
        return self._response.prepared

    async def begin(self) -> None:
        """Send the headers and who speaks, once."""
        if not self.has_begun:
            await self._response.prepare(self._request)
            await self._write(_frame(self._reply.chunk({"role": "assistant", "content": ""})))

    async def send(self, value: Mapping[str, Any]) -> None:
        """Send an event."""
        await self.begin()
        await self._write(_frame(value))

    async def show_life(self) -> None:
        """Send something if nothing was sent since the last time."""
        await self.begin()
        if self._was_silent:
            await self._response.write(_SIGN)
        self._was_silent = True

    async def end(self, last: Mapping[str, Any] | None, *, is_done: bool = False) -> web.StreamResponse:
        """Send a last event if there is one, and end the stream; `is_done`: the answer is whole."""
        if last is not None:
            await self.send(last)
        if is_done:
            await self._write(_DONE)
        await self._response.write_eof()
        return self._response

    async def _write(self, data: bytes) -> None:
        self._was_silent = False
        await self._response.write(data)


def _frame(value: Mapping[str, Any]) -> bytes:
    """One event: JSON without line breaks, pure ASCII, so that no client cuts a character in two."""
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


async def _with_signs(events: AsyncGenerator[Event, None], every_s: float) -> AsyncGenerator[Event | None, None]:
    """Yield the events, and None every so many seconds, whether there were events or not."""
    loop = asyncio.get_running_loop()
    sign_at = loop.time() + every_s
    coming: asyncio.Task[Event | None] | None = None
    try:
        while True:
            coming = coming or asyncio.create_task(_next(events))
            await asyncio.wait({coming}, timeout=max(0.0, sign_at - loop.time()))
            if loop.time() >= sign_at:
                sign_at += every_s
                yield None
            if coming.done():
                event, coming = coming.result(), None
                if event is None:
                    return
                yield event
    finally:
        if coming:
            coming.cancel()
            await asyncio.wait({coming})
        await events.aclose()


async def _next(events: AsyncGenerator[Event, None]) -> Event | None:
    return await anext(events, None)
