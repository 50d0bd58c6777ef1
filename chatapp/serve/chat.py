"""A chat request from its body to its answer."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from aiohttp import web

from chatapp.serve.errors import of_failure, stopping
from chatapp.serve.line import Line
from chatapp.serve.recall import Recall
from chatapp.serve.reply import Reply
from chatapp.serve.request import Asked
from chatapp.serve.stream import SIGN_S, stream
from models.engine import Event, Failed, Finished, ModelInfo, Prompt, Sampling
from models.reasoning import answer_of
from sessions.errors import BadField


@dataclass(frozen=True, slots=True)
class Served:
    """The model that answers: what clients call it, what is known of it, and how it is sampled unless they say so."""

    name: str
    info: ModelInfo
    sampling: Sampling


class Chat:
    """Answers chat requests with one model."""

    def __init__(self, line: Line, *, clock: Callable[[], float] = time.time, sign_s: float = SIGN_S) -> None:
        self._line = line
        self._recall = Recall()
        self._clock = clock
        self._sign_s = sign_s

    async def answer(self, request: web.Request, asked: Asked, served: Served) -> web.StreamResponse:
        """Answer, in chunks or as a whole, as was asked. Raises `ApiError` and `BadField`."""
        try:
            sampling = replace(served.sampling, **asked.given)
        except ValueError as error:
            raise BadField(None, str(error)) from error
        reply = Reply(served.name, served.info.fingerprint, int(self._clock()))
        events = self._events(asked, sampling)
        if asked.streams:
            return await stream(
                request,
                events,
                reply,
                n_ctx=served.info.n_ctx,
                wants_usage=asked.wants_usage,
                sign_s=self._sign_s,
            )
        return await _whole(events, reply, n_ctx=served.info.n_ctx)

    async def _events(self, asked: Asked, sampling: Sampling) -> AsyncGenerator[Event, None]:
        """Later prompts hold answers without their reasoning: clients do not send it back."""
        entries = self._recall.known(asked.entries)
        prompt = Prompt(entries, reasoning="strip", may_reason=asked.may_reason)
        async with aclosing(self._line.ask(prompt, sampling)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    self._recall.remember(entries, answer_of(event.text), event.run)
                yield event


async def _whole(events: AsyncGenerator[Event, None], reply: Reply, *, n_ctx: int | None) -> web.Response:
    finished: Finished | None = None
    async with aclosing(events):
        async for event in events:
            match event:
                case Finished():
                    finished = event
                case Failed():
                    raise of_failure(event, n_ctx=n_ctx)
    if finished is None or finished.reason == "cancelled":
        raise stopping()
    return web.json_response(reply.whole(finished))
