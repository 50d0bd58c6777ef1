"""An engine whose model runs at a server with an OpenAI-compatible chat endpoint. Text is the truth: no token ids."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace

from models.engine import (
    Ahead,
    Event,
    Failed,
    Finished,
    Loaded,
    ModelInfo,
    Prepared,
    Progress,
    Prompt,
    Sampling,
    Stored,
)
from models.errors import EngineError
from models.remote_client import RemoteClient
from models.remote_errors import RemoteError
from models.remote_guard import Guard, Stopped, again_after, pause
from models.remote_info import info_of
from models.remote_metrics import READ_S, Counters, with_cached
from models.remote_probe import Facts, n_tokens, probe
from models.remote_profile import RemoteProfile
from models.remote_request import refusal
from models.remote_slots import SLOT_S, Slots
from models.remote_turn import RemoteTurn

_CLOSED = "The engine is closed."
_BYTES_PER_TOKEN = 3
_KEY_S = 90.0
"""How long a key may take: more than its command may, see `chatapp/profiles.py`."""


class RemoteEngine:
    """One model at one server; `profile.n_parallel` requests at a time, more wait in line.

    Loading connects: it fetches the key, asks the server what it is, and evaluates nothing.
    """

    def __init__(self, profile: RemoteProfile, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.profile = profile
        self._monotonic = monotonic
        self._client: RemoteClient | None = None
        self._facts: Facts | None = None
        self._slots: Slots | None = None
        self._counters: Counters | None = None
        self._info: ModelInfo | None = None
        self._without: set[str] = set()
        self._rate: float | None = None
        self._places = asyncio.Semaphore(max(1, profile.n_parallel))
        self._load_lock = asyncio.Lock()
        self._running: list[Guard] = []
        self._n_cancels = 0
        self._is_closed = False

    @property
    def info(self) -> ModelInfo | None:
        """The model at the server, None before `Loaded`."""
        return self._info

    @property
    def facts(self) -> Facts | None:
        """What the server told of itself, None before `Loaded`."""
        return self._facts

    async def load(self) -> AsyncIterator[Event]:
        """Connect: `Progress`*, then `Loaded` or `Failed`. Again, `Loaded` at once."""
        async with self._load_lock:
            if self._info is None:
                if self._is_closed:
                    yield Failed("died", _CLOSED)
                    return
                guard = Guard()
                self._running.append(guard)
                try:
                    async with aclosing(self._connecting(guard)) as events:
                        async for event in events:
                            yield event
                except Stopped:
                    yield Failed("cancelled", "Stopped.")
                    return
                except EngineError as error:
                    yield Failed(error.kind, str(error))
                    return
                finally:
                    self._running.remove(guard)
            assert self._info is not None
            yield Loaded(self._info)

    async def prepare(self, prompt: Prompt) -> AsyncIterator[Event]:
        """Have the server read back what it saved of a conversation, where it does: `Prepared`, `Stored`; or `Failed`.

        Elsewhere no prompt is sent: what a server keeps of a prefix is its own affair, and its reading may cost money.
        """
        async with aclosing(self._alone()) as steps:
            async for step in steps:
                if not isinstance(step, Guard):
                    yield step
                    continue
                try:
                    if self._slots and prompt.store_kv and prompt.conversation:
                        yield Progress("restore", 0, 0)
                        await step.wait(self._slots.bring(prompt.conversation), SLOT_S)
                    elif self._counters and self._running == [step]:
                        await step.wait(self._counters.note(), READ_S)
                    elif step.is_cancelled:
                        raise Stopped
                except TimeoutError:
                    pass  # the next prompt tells what came of it
                except Stopped:
                    yield Failed("cancelled", "Stopped.")
                    return
                yield Prepared(0, 0, 0, None, 0.0, 0.0, 0, (), is_counted=False)
                yield Stored(0, self._fingerprint, None)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Event]:
        """Answer a prompt: `Progress`*, `Prepared`, `Piece`*, `Finished`, `Stored`; or `Failed` at any point."""
        async with aclosing(self._alone()) as steps:
            async for step in steps:
                if isinstance(step, Guard):
                    async with aclosing(self._turn(prompt, sampling, step)) as events:
                        async for event in events:
                            yield event
                else:
                    yield step

    async def cancel(self) -> None:
        """Stop the oldest request that has not ended, also one that still connects."""
        self._n_cancels += 1
        if self._running:
            self._running[0].cancel()

    async def anticipate(self, _prompt: Prompt) -> AsyncIterator[Ahead]:
        """Send nothing: a draft is nobody's business, and its reading may cost money."""
        nothing: tuple[Ahead, ...] = ()
        for ahead in nothing:
            yield ahead

    async def count(self, text: str) -> int:
        """Tokens of a text by the server's tokenizer, else about (3 bytes a token). Raises `EngineError`."""
        async for event in self.load():
            if isinstance(event, Failed):
                raise EngineError(event.message)
        client, facts = self._client, self._facts
        assert client is not None
        assert facts is not None
        if text and facts.tokenize:
            # What begins a text for vLLM unless it is told otherwise is no part of a message's body.
            extra = {"add_special_tokens": False} if facts.tokenize == "prompt" else {}
            body = {"model": facts.model, facts.tokenize: text, **extra}
            try:
                status, _, answer = await client.fetch(f"{self.profile.root}/tokenize", body)
            except RemoteError:
                status, answer = 0, None
            if status == 200 and (found := n_tokens(answer)) is not None:
                return found
        return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)

    async def close(self) -> None:
        """End what runs and close the connections."""
        self._is_closed = True
        for guard in list(self._running):
            guard.cancel()
        if self._client is not None:
            await self._client.close()

    # --- inside ---

    @property
    def _fingerprint(self) -> str:
        return self._info.fingerprint if self._info else ""

    async def _alone(self) -> AsyncGenerator[Event | Guard, None]:
        """Connect if need be, with the events of that; then, once there is a place, the guard of this request."""
        n_cancels = self._n_cancels
        if self._info is None:
            async for event in self.load():
                yield event
                if isinstance(event, Failed):
                    return
        if self._n_cancels != n_cancels:
            yield Failed("cancelled", "Stopped.")
            return
        async with self._places:
            if self._is_closed:
                yield Failed("died", _CLOSED)
                return
            guard = Guard()
            self._running.append(guard)
            try:
                yield guard
            finally:
                if guard in self._running:
                    self._running.remove(guard)

    async def _turn(self, prompt: Prompt, sampling: Sampling, guard: Guard) -> AsyncGenerator[Event, None]:
        client, facts = self._client, self._facts
        assert client is not None
        assert facts is not None
        restored_s = await self._bring(prompt, guard)
        turn = RemoteTurn(
            client,
            self.profile,
            facts,
            without=self._without,
            guard=guard,
            prefill_tokens_per_s=self._rate,
            restored_s=restored_s,
            monotonic=self._monotonic,
        )
        finished: Finished | None = None
        try:
            async with aclosing(turn.events(prompt, sampling)) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        self._running.remove(guard)  # what follows is not the answer: it cannot be cancelled
                        self._measure(turn)
                        finished = await self._with_cached(event)
                        yield finished
                    else:
                        yield event
        except EngineError as error:
            yield Failed(error.kind, str(error))
        if finished:
            is_kept = prompt.store_kv and finished.reason != "cancelled"
            n_bytes = await self._slots.keep(prompt.conversation if is_kept else "") if self._slots else 0
            note = refusal(self.profile.name, self._without, turn.body)
            yield Stored(n_bytes, self._fingerprint, None, note)

    async def _bring(self, prompt: Prompt, guard: Guard) -> float | None:
        """Have the slot hold the conversation; return how long the server read it from its disk, None if it did not."""
        if self._slots is None:
            return None
        if not (prompt.store_kv and prompt.conversation):
            self._slots.lose()
            return None
        started_at = self._monotonic()
        try:
            was_read = await guard.wait(self._slots.bring(prompt.conversation), SLOT_S)
        except (TimeoutError, Stopped):
            return None  # the turn itself sees that it was stopped
        return self._monotonic() - started_at if was_read else None

    async def _with_cached(self, finished: Finished) -> Finished:
        """Return the end of an answer, with what was cached by the server's counters where it does not tell itself."""
        stats = finished.stats
        if self._counters is None or stats.resident_tokens is not None:
            return finished
        if self._running:
            self._counters.lose()
            return finished
        n_cached = await self._counters.cached(stats.prompt_tokens)
        return finished if n_cached is None else replace(finished, stats=with_cached(stats, n_cached))

    def _measure(self, turn: RemoteTurn) -> None:
        """Learn how fast this server reads, for the next turn's patience."""
        stats = turn.reply.stats()
        n_read = stats.prefilled_tokens
        if turn.reply.first_at is not None and n_read and n_read >= 64:
            self._rate = n_read / max(0.001, turn.reply.first_at - turn.started_at)

    async def _connecting(self, guard: Guard) -> AsyncGenerator[Event, None]:
        started_at, waited_s, n_tries = self._monotonic(), 0.0, 1
        key = None
        yield Progress("load", 0, 1000)
        if self.profile.key is not None:
            try:
                key = await guard.wait(asyncio.to_thread(self.profile.key), _KEY_S)
            except TimeoutError as exc:
                raise RemoteError("key", f"The key of {self.profile.name} does not come: unlock where it is.") from exc
        if self._client is not None:  # of a load that failed, perhaps for its key
            await self._client.close()
        client = self._client = RemoteClient(self.profile, key, monotonic=self._monotonic)
        facts: Facts | None = None
        while facts is None:
            wait_s: float | None = None
            try:
                facts = await guard.wait(probe(client, self.profile), 60.0)
            except TimeoutError as exc:
                raise RemoteError("unreachable", f"{self.profile.name} does not answer: look at its log.") from exc
            except RemoteError as error:
                wait_s = again_after(error, n_tries, waited_s)
                if wait_s is None:
                    raise
                waited_s, n_tries = waited_s + wait_s, n_tries + 1
            async for waiting in pause(guard, wait_s or 0.0):
                yield waiting
        self._facts = facts
        self._slots = Slots(client, self.profile, facts) if facts.slot is not None else None
        self._counters = Counters(client, self.profile, facts.metrics) if facts.metrics else None
        self._info = info_of(self.profile, facts, self._monotonic() - started_at)
