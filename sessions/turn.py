"""One question and its answer: measured, never left without an end, and stored as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from models.engine import (
    Engine,
    Entry,
    Event,
    Failed,
    Finished,
    FinishReason,
    Piece,
    Prepared,
    Prompt,
    Sampling,
    Stored,
    TokenRun,
)
from models.errors import EngineError
from sessions.conversation import Message, MessageStatus
from sessions.errors import BadRequest
from sessions.history import entries
from sessions.hygiene import tidy
from sessions.journal import Journal, Partial

if TYPE_CHECKING:
    from sessions.store import Store  # at run time it would load the database library for everybody

STATUS_OF: dict[FinishReason, MessageStatus] = {
    "end": "complete",
    "stop": "complete",
    "cancelled": "stopped",
    "length": "cut",
    "context": "cut",
}
"""The status of an answer, by why it ended."""


def checked(text: str) -> str:
    """Return a question as it is stored: by the rule of `hygiene`, not empty. Raises `BadRequest`."""
    text, _ = tidy(text)
    if not text.strip():
        raise BadRequest("The message is empty.")
    return text


async def answer(
    engine: Engine, prompt: Prompt, sampling: Sampling, *, asked_at: float, monotonic: Callable[[], float]
) -> AsyncGenerator[Event, None]:
    """Yield an engine's events.

    Adds `ttft_s` (from `asked_at` to the first text) to the final stats. Whatever happens, the last word is
    `Finished` (and what follows it) or `Failed`. A caller that goes away early cancels the engine.
    """
    ttft_s: float | None = None
    is_over = False
    events = engine.generate(prompt, sampling)
    try:
        async for event in events:
            if isinstance(event, Piece) and event.text and ttft_s is None:
                ttft_s = monotonic() - asked_at
            is_over = is_over or isinstance(event, Finished | Failed)
            if isinstance(event, Finished):
                yield replace(event, stats=replace(event.stats, ttft_s=ttft_s))
            else:
                yield event
        if not is_over:
            is_over = True
            yield Failed("protocol", "The engine ended without an answer.")
    except EngineError as error:
        is_over = True
        yield Failed(error.kind, str(error))
    finally:
        if not is_over:
            await engine.cancel()
        await close_events(events)


async def ask(
    engine: Engine,
    text: str,
    sampling: Sampling,
    *,
    system: str | None = None,
    system_run: TokenRun | None = None,
    monotonic: Callable[[], float],
) -> AsyncGenerator[Event, None]:
    """Answer one question outside any conversation: nothing of it is written to disk. Raises `BadRequest`."""
    asked_at = monotonic()
    before = [Entry("system", system, system_run)] if system else []
    prompt = Prompt((*before, Entry("user", checked(text))), store_kv=False)
    async with aclosing(answer(engine, prompt, sampling, asked_at=asked_at, monotonic=monotonic)) as events:
        async for event in events:
            yield event


async def close_events(events: AsyncIterator[Event]) -> None:
    """End a generator early; an iterator that is no generator needs no end."""
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()


class Turn:
    """A stored question on its way to a stored answer, under the journal that gives the right to write it."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        journal: Journal,
        messages: Sequence[Message],
        *,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._engine = engine
        self._journal = journal
        self._messages = messages
        self._question = messages[-1]
        self._monotonic = monotonic
        self._partial: Partial | None = None
        self._text: list[str] = []
        self._ids: list[int] = []
        self._answer: Message | None = None
        self.is_settled = False
        """True once the store has the turn's outcome."""

    @property
    def session_id(self) -> str:
        """The conversation it belongs to."""
        return self._question.session_id

    async def events(self, sampling: Sampling, *, asked_at: float) -> AsyncGenerator[Event, None]:
        """Yield the engine's events, each after the store or the journal knows what it says."""
        prompt = Prompt(entries(self._messages))
        events = answer(self._engine, prompt, sampling, asked_at=asked_at, monotonic=self._monotonic)
        try:
            async for event in events:
                self._take(event)
                yield event
        except asyncio.CancelledError:
            self._abandon()
            raise
        except GeneratorExit:
            self._abandon()
            if self._answer and self._answer.stats:  # `Finished` was passed on: only the KV's key is missing
                async for event in events:
                    self._take(event)
            raise
        finally:
            await events.aclose()

    def _take(self, event: Event) -> None:
        match event:
            case Prepared():
                self._partial = Partial(
                    self.session_id,
                    self._question.id,
                    missing_runs(self._messages, event),
                    event.opening,
                    event.closing,
                )
                self._journal.begin(self._partial)
            case Piece():
                self._text.append(event.text)
                self._ids.extend(event.token_ids)
                self._journal.add(event.text, event.token_ids)
            case Finished():
                self._finish(event)
            case Stored() if self._answer:
                self._store.record_kv(self.session_id, fingerprint=event.fingerprint, tip=event.tip)
                self._store.record_kv_bytes(self._answer.id, event.kv_bytes_written)
            case Failed() if not self.is_settled:
                self._fail(event)

    def _finish(self, event: Finished) -> None:
        info = self._engine.info
        self._answer = self._store.add_answer(
            self.session_id,
            event.text,
            STATUS_OF[event.reason],
            run=event.run if event.run.ids else None,
            stats=event.stats,
            runs=self._partial.runs if self._partial else {},
            model=info.name if info else None,
        )
        self._settle()

    def _fail(self, event: Failed) -> None:
        if self._ids or any(self._text):
            self._keep("interrupted")
        elif event.kind == "too_long":
            self._store.mark_failed(self._question.id)
            self._settle()
        else:
            self._keep("stopped" if event.kind == "cancelled" else "failed")

    def _abandon(self) -> None:
        if not self.is_settled:
            self._keep("stopped")

    def _keep(self, status: MessageStatus) -> None:
        """Store what was said so far."""
        partial = self._partial and replace(self._partial, ids=tuple(self._ids))
        self._answer = self._store.add_answer(
            self.session_id,
            "".join(self._text),
            status,
            run=partial.run if partial else None,
            runs=partial.runs if partial else {},
        )
        self._settle()

    def _settle(self) -> None:
        self._journal.discard()
        self.is_settled = True


def missing_runs(messages: Sequence[Message], prepared: Prepared) -> Mapping[int, TokenRun]:
    """Return the token runs, by message id, of messages the store has none for."""
    pairs = zip(messages, prepared.runs, strict=True)
    return {message.id: run for message, run in pairs if message.run is None}
