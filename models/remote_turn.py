"""One request to a server and the events of its answer: deadlines, cancelling, what is tried again and what is not."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from models.engine import Event, Finished, Piece, Prepared, Progress, Prompt, Sampling, TokenRun
from models.remote_client import RemoteClient
from models.remote_errors import RemoteError
from models.remote_guard import Guard, Stopped, again_after, pause
from models.remote_probe import Facts
from models.remote_profile import RemoteProfile
from models.remote_reply import Reply
from models.remote_request import LEFT_OUT, body_of

Stream = AsyncGenerator[tuple[float, dict[str, Any] | None], None]

NO_RUN = TokenRun((), 0, 0)
_BYTES_PER_TOKEN = 3
_SLOWEST_TOKENS_PER_S = 100.0
"""Of reading a prompt, until a turn has measured it."""
_LEAST_FIRST_S = 60.0
_TAIL_S = 5.0
"""How long the usage may take behind the last word."""
_END_S = 0.25


class RemoteTurn:
    """One answer. `without` are fields the server refuses: what is learned here is added.

    `restored_s` is how long the server just took to read the conversation from its disk, None if it did not.
    """

    def __init__(
        self,
        client: RemoteClient,
        profile: RemoteProfile,
        facts: Facts,
        *,
        without: set[str],
        guard: Guard,
        prefill_tokens_per_s: float | None,
        restored_s: float | None = None,
        monotonic: Callable[[], float],
    ) -> None:
        self._client = client
        self._profile = profile
        self._facts = facts
        self._without = without
        self._guard = guard
        self._rate = prefill_tokens_per_s or _SLOWEST_TOKENS_PER_S
        self._restored_s = restored_s
        self._monotonic = monotonic
        self._text: list[str] = []
        self._is_prepared = False
        self._conversation = ""
        self.body: dict[str, Any] = {}
        """What was sent last."""
        self.started_at = monotonic()
        self.reply = self._new_reply()

    async def events(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Event, None]:
        """Yield `Progress`*, `Prepared`, `Piece`*, `Finished`. Raises `EngineError`."""
        try:
            async with aclosing(self._tries(prompt, sampling)) as events:
                async for event in events:
                    yield event
        except Stopped:
            stats = self.reply.stats(seed=sampling.seed)
            yield Finished("cancelled", "".join(self._text), NO_RUN, stats)

    async def _tries(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Event, None]:
        """Ask again while nothing was said: without a field that is refused, or when a busy server says so."""
        waited_s, n_tries = 0.0, 1
        while True:
            self.body = body_of(prompt, sampling, self._facts, without=self._without, name=self._profile.name)
            self.reply, self.started_at = self._new_reply(), self._monotonic()
            yield Progress("prefill", 0, 0)
            try:
                async with aclosing(self._answer(prompt, sampling)) as events:
                    async for event in events:
                        yield event
                return
            except RemoteError as error:
                if self._is_prepared:
                    raise
                if error.field is not None and error.field not in self._without:
                    self._without.add(error.field)
                    continue
                wait_s = again_after(error, n_tries, waited_s)
                if wait_s is None:
                    raise
            waited_s, n_tries = waited_s + wait_s, n_tries + 1
            async for waiting in pause(self._guard, wait_s):
                yield waiting

    async def _answer(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Event, None]:
        last = prompt.entries[-1]
        begun = last.text if last.role == "assistant" else ""
        first_s = self._first_s(prompt)
        prepared_at: float | None = None
        deadline = self.started_at + first_s
        async with aclosing(self._received(lambda: deadline)) as received:
            async for now, event in received:
                text = self.reply.take(event, now)
                progress = self.reply.progress
                if not self._is_prepared and not text and event.get("prompt_progress") and progress:
                    deadline = now + first_s
                    prepared_at = now if progress.done == progress.total else None
                    yield Progress("prefill", max(0, progress.done - progress.cached), progress.total - progress.cached)
                    continue
                if (text or self.reply.finish) and not self._is_prepared:
                    self._is_prepared = True
                    yield self._prepared(now)
                    if begun:
                        self._text.append(begun)
                        yield Piece(begun, ())
                        # Some llama-servers repeat in their first words what the answer begins with.
                        text = text.removeprefix(begun) if self._facts.kind == "llama-server" else text
                if text:
                    self._text.append(text)
                    yield Piece(text, ())
                    deadline = now + self._profile.token_s
                if self.reply.finish:
                    deadline = now + _TAIL_S
        reason = self.reply.reason()
        stats = self.reply.stats(seed=sampling.seed, prepared_at=prepared_at, restored_s=self._restored_s)
        yield Finished(reason, "".join(self._text), NO_RUN, stats)

    async def _received(self, deadline: Callable[[], float]) -> AsyncGenerator[tuple[float, dict[str, Any]], None]:
        """Yield the events of the answer; where the server can repeat what a broken connection lost, of several."""
        url = f"{self._profile.api}/chat/completions"
        headers: dict[str, str] = {}
        if self._facts.resumes:
            self._conversation = secrets.token_hex(16)
            headers["X-Conversation-Id"] = self._conversation
        sent = [field for field in LEFT_OUT if field in self.body]
        stream = self._client.stream(url, self.body, sent=sent, headers=headers)
        n_told, is_over, has_resumed = 0, False, False
        try:
            while True:
                try:
                    n_received = 0
                    async with aclosing(self._within(stream, deadline)) as events:
                        async for event in events:
                            n_received += 1
                            if n_received > n_told:
                                n_told = n_received
                                yield event
                    is_over = True
                    return
                except RemoteError as error:
                    if error.kind != "cut" or not self._conversation or has_resumed or not n_told or self.reply.finish:
                        raise
                    # The part that was received comes once more, the same in each byte, and is passed over.
                    again = f"{self._profile.root}/v1/stream?conv_id={self._conversation}&from=0"
                    stream, has_resumed = self._client.stream(again, {}, method="GET"), True
        finally:
            if self._conversation and not is_over:
                await self._give_up()

    async def _within(
        self, stream: Stream, deadline: Callable[[], float]
    ) -> AsyncGenerator[tuple[float, dict[str, Any]], None]:
        async with aclosing(stream):
            while True:
                try:
                    now, event = await self._guard.wait(anext(stream), deadline() - self._monotonic())
                except StopAsyncIteration:
                    return
                except TimeoutError as exc:
                    if self.reply.finish:  # only the usage is missing
                        return
                    raise self._silence() from exc
                if event is None:
                    # Once the end of the body was read, the connection serves the next request.
                    with contextlib.suppress(RemoteError, StopAsyncIteration, Stopped, TimeoutError):
                        await self._guard.wait(anext(stream), _END_S)
                    return
                yield now, event

    async def _give_up(self) -> None:
        """Tell a server that goes on without us that nobody listens."""
        with contextlib.suppress(RemoteError, TimeoutError):
            async with asyncio.timeout(2.0):
                await self._client.delete(f"{self._profile.root}/v1/stream?conv_id={self._conversation}")

    def _prepared(self, now: float) -> Prepared:
        progress = self.reply.progress
        cached, read = (progress.cached, progress.total - progress.cached) if progress else (0, 0)
        return Prepared(
            resident=0 if self._restored_s is not None else cached,
            restored=cached if self._restored_s is not None else 0,
            prefilled=read,
            miss_reason=None,
            restore_s=self._restored_s or 0.0,
            prefill_s=now - self.started_at,
            kv_bytes=0,
            runs=(),
            is_counted=progress is not None,
        )

    def _first_s(self, prompt: Prompt) -> float:
        """Seconds until something has to come: three times what reading the prompt should take, a minute at least."""
        if self._profile.first_token_s is not None:
            return self._profile.first_token_s
        n_bytes = sum(len(entry.text.encode("utf-8", "replace")) for entry in prompt.entries)
        return max(_LEAST_FIRST_S, 3 * n_bytes / _BYTES_PER_TOKEN / self._rate)

    def _silence(self) -> RemoteError:
        name = self._profile.name
        if self._text:
            return RemoteError(
                "cut", f"{name} has said nothing for {self._profile.token_s:.0f} s: what was said is kept; try again."
            )
        return RemoteError(
            "unreachable", f"{name} took the request and does not answer: look at its log, or try again."
        )

    def _new_reply(self) -> Reply:
        return Reply(self._profile.name, n_ctx=self._facts.n_ctx, secrets=self._client.secrets)
