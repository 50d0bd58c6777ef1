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
    Loaded,
    Piece,
    Prepared,
    Prompt,
    Sampling,
    Stored,
    TokenRun,
    TurnStats,
)
from models.errors import EngineError
from sessions.conversation import Message, MessageStatus, ModelRef, ReasoningPolicy, model_ref
from sessions.errors import BadRequest
from sessions.history import prompt_of
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


LONGEST_CHARS = 4_000_000
"""Longest message: several times what any context holds, and not yet a strain on the disk and the pipe."""


def checked(text: str, what: str = "message") -> str:
    """Return a question (or `what` it is) as it is stored: by the rule of `hygiene`, not empty. Raises `BadRequest`."""
    if len(text) > LONGEST_CHARS:
        raise BadRequest(
            f"The {what} has {len(text):,} characters, which no context holds: send a part of it, "
            f"at most {LONGEST_CHARS:,}."
        )
    text, _ = tidy(text)
    if not text.strip():
        raise BadRequest(f"The {what} is empty.")
    return text


async def answer(
    engine: Engine,
    prompt: Prompt,
    sampling: Sampling,
    *,
    asked_at: float,
    waited_s: float = 0.0,
    monotonic: Callable[[], float],
) -> AsyncGenerator[Event, None]:
    """Yield an engine's events.

    Adds `ttft_s` (from `asked_at` to the first text) to the final stats, and what of it was spent waiting for other
    requests, loading the model, and between the engine and here. Whatever happens, the last word is `Finished` (and
    what follows it) or `Failed`. A caller that goes away early cancels the engine.
    """
    begun_at = monotonic()
    ttft_s: float | None = None
    model_load_s: float | None = None
    transport_s: float | None = None
    is_over = False
    events = engine.generate(prompt, sampling)
    try:
        async for event in events:
            told: Event = event
            if isinstance(event, Piece):  # first, for there is one a token
                if ttft_s is None and event.text:
                    now = monotonic()
                    ttft_s = now - asked_at
                    transport_s = None if event.told_at is None else max(0.0, now - event.told_at)
            elif isinstance(event, Loaded):
                model_load_s = monotonic() - begun_at
            elif isinstance(event, Finished):
                is_over = True
                stats = replace(
                    event.stats,
                    ttft_s=ttft_s,
                    waited_s=waited_s,
                    model_load_s=model_load_s,
                    transport_s=transport_s,
                )
                told = replace(event, stats=stats)
            elif isinstance(event, Failed):
                is_over = True
            yield told
        if not is_over:
            is_over = True
            yield Failed("protocol", "The engine ended without an answer.")
    except EngineError as error:
        is_over = True
        yield Failed(error.kind, str(error))
    finally:
        # Of several that run at once, `cancel` could end another; closing its events ends this one.
        if not is_over and (engine.info is None or engine.info.n_parallel == 1):
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


async def close_events(events: AsyncIterator[object]) -> None:
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
        policy: ReasoningPolicy = "keep",
        continues: Message | None = None,
        head: int | None = None,
        monotonic: Callable[[], float],
    ) -> None:
        """The last of `messages` is the question; `continues` is its answer so far, if that is to go on.

        `head` is what the shown branch ended with, if the question was there before: should nothing be said, it ends
        with that again.
        """
        self._store = store
        self._engine = engine
        self._journal = journal
        self._messages = messages
        self._question = messages[-1]
        self._policy: ReasoningPolicy = policy
        self._continues = continues
        self._head = head
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

    async def events(
        self, sampling: Sampling, *, asked_at: float, waited_s: float = 0.0
    ) -> AsyncGenerator[Event, None]:
        """Yield the engine's events, each after the store or the journal knows what it says."""
        prompt = prompt_of(self._messages, self._policy, continues=self._continues)
        events = answer(self._engine, prompt, sampling, asked_at=asked_at, waited_s=waited_s, monotonic=self._monotonic)
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
                info = self._engine.info
                self._partial = Partial(
                    self.session_id,
                    self._question.id,
                    missing_runs(self._messages, event),
                    event.opening,
                    event.closing,
                    model_ref(info) if info else None,
                    continues=self._continues.id if self._continues else None,
                    reasoning=self._policy,
                )
                self._journal.begin(self._partial)
            case Piece():
                self._text.append(event.text)
                self._ids.extend(event.token_ids)
                self._journal.add(event.text, event.token_ids)
            case Finished():
                self._finish(event)
            case Stored() if self._answer:
                self._store.record_kv(self.session_id, self._answer.id, fingerprint=event.fingerprint, tip=event.tip)
                self._store.record_kv_bytes(self._answer.id, event.kv_bytes_written)
            case Failed() if not self.is_settled:
                self._fail(event)

    def _finish(self, event: Finished) -> None:
        # The process may be gone by now, and what it was with it.
        model = self._partial.model if self._partial else None
        run = event.run if event.run.ids else None
        self._add(event.text, STATUS_OF[event.reason], run, model, event.stats)

    def _fail(self, event: Failed) -> None:
        if self._ids or any(self._text):
            self._keep("interrupted")
        elif event.kind == "too_long" and self._head is None and self._continues is None:
            self._store.mark_failed(self._question.id)
            self._settle()
        else:
            self._keep("stopped" if event.kind == "cancelled" else "failed")

    def _abandon(self) -> None:
        if not self.is_settled:
            self._keep("stopped")

    def _keep(self, status: MessageStatus) -> None:
        """Store what was said so far."""
        text = "".join(self._text)
        partial = replace(self._partial, text=text, ids=tuple(self._ids)) if self._partial else None
        run, model = (partial.kept_run, partial.model) if partial else (None, None)
        self._add(text, status, run, model, None)

    def _add(
        self, text: str, status: MessageStatus, run: TokenRun | None, model: ModelRef | None, stats: TurnStats | None
    ) -> None:
        """Store the answer; one that went on takes the place of what it was, unless it is no longer than that."""
        runs = self._partial.runs if self._partial else {}
        before = self._continues
        if self._head is not None and not text and status != "complete":
            self._store.set_head(self.session_id, self._head)
        elif before is None:
            self._answer = self._store.add_answer(
                self._question, text, status, run=run, runs=runs, model=model, stats=stats
            )
        elif len(text) > len(before.text) or status == "complete":
            self._answer = self._store.extend_answer(before, text, status, run=run, runs=runs, model=model, stats=stats)
        self._settle()

    def _settle(self) -> None:
        self._journal.discard()
        self.is_settled = True


def missing_runs(messages: Sequence[Message], prepared: Prepared) -> Mapping[int, TokenRun]:
    """Return the token runs, by message id, of messages the store has none for; none where tokens are not known."""
    if not prepared.runs:
        return {}
    pairs = zip(messages, prepared.runs, strict=True)
    return {message.id: run for message, run in pairs if message.run is None}
