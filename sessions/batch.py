"""Many independent questions: rows in, answers out, as many at once as the engine serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from models.engine import (
    GAVE_UP,
    Engine,
    Entry,
    Event,
    Failed,
    Finished,
    FinishReason,
    Piece,
    Prepared,
    Prompt,
    Reasoning,
    Sampling,
    Stored,
    TokenRun,
    TurnStats,
)
from models.errors import EngineError
from sessions.batch_rows import Row
from sessions.conversation import MessageStatus
from sessions.turn import STATUS_OF, answer

ROW_FAILURES = ("too_long", "grammar", "cancelled", GAVE_UP)
"""Kinds of failures that say something about a row; the others say something about the engine."""
PATIENCE = 5
"""So many rows in a row may fail by the engine before the batch is given up."""


class EngineGone(EngineError):
    """The engine failed row after row: the rows that are left would fail like that too."""

    kind = "died"


@dataclass(frozen=True, slots=True)
class Shared:
    """What all rows begin with, a system prompt or a conversation, and the sampling of rows that ask for no other."""

    entries: tuple[Entry, ...] = ()
    sampling: Sampling = Sampling()  # noqa: RUF009 - frozen
    reasoning: Reasoning = "keep"


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to one row; `error` is None unless the status is `failed`.

    A row that failed in mid-answer keeps what it had. `n_lost` characters of it cannot be spelt with the model's
    vocabulary. `runs` are the tokens of its prompt's messages, `run` those of the answer, as far as they are known.
    """

    row: Row
    text: str = ""
    token_ids: tuple[int, ...] = ()
    status: MessageStatus = "failed"
    error: str | None = None
    stats: TurnStats | None = None
    reason: FinishReason | None = None
    n_lost: int = 0
    runs: tuple[TokenRun, ...] = ()
    run: TokenRun | None = None
    is_engines_fault: bool = False


async def prepare(engine: Engine, shared: Shared) -> tuple[Shared, Prepared | None]:
    """Make what all rows begin with resident, and keep its KV: the rows branch from there, a later run restores it.

    Returns it with its tokens. Raises `EngineError` where it is impossible, as rows behind it would be.
    """
    prepared: Prepared | None = None
    if not shared.entries:
        return shared, None
    async for event in engine.prepare(Prompt(shared.entries, reasoning=shared.reasoning)):
        if isinstance(event, Prepared):
            prepared = event
        elif isinstance(event, Failed):
            raise EngineError(event.message)
    if prepared is None:
        return shared, None
    pairs = zip(shared.entries, prepared.runs, strict=True)
    return replace(shared, entries=tuple(replace(entry, run=run) for entry, run in pairs)), prepared


async def answer_row(
    engine: Engine, row: Row, shared: Shared, *, timeout_s: float | None = None, monotonic: Callable[[], float]
) -> Answered:
    """Answer one row behind what all share; a row that cannot be answered is one with an error. No KV is stored.

    A system prompt of the row's own takes the place of the shared one.
    """
    answered = Answered(row, error=row.error)
    if row.error is not None:
        return answered
    before = () if row.entries[0].role == "system" else shared.entries
    prompt = Prompt((*before, *row.entries), store_kv=False, reasoning=shared.reasoning)
    sampling = replace(shared.sampling, **row.given) if row.given else shared.sampling
    events = answer(engine, prompt, sampling, asked_at=monotonic(), monotonic=monotonic)
    text: list[str] = []
    ids: list[int] = []
    try:
        async with asyncio.timeout(timeout_s), aclosing(events):
            async for event in events:
                if isinstance(event, Piece):
                    text.append(event.text)
                    ids.extend(event.token_ids)
                else:
                    answered = _after(answered, event)
    except TimeoutError:
        answered = replace(answered, error=f"The row took longer than its time, {timeout_s:g} s.")
    if answered.reason is None:
        return replace(answered, text="".join(text), token_ids=tuple(ids))
    return answered


def _after(answered: Answered, event: Event) -> Answered:
    match event:
        case Prepared(lost_characters=n, runs=runs):
            return replace(answered, n_lost=n, runs=runs)
        case Finished(text=text, run=run, stats=stats, reason=reason):
            return replace(
                answered,
                text=text,
                token_ids=run.body,
                status=STATUS_OF[reason],
                stats=stats,
                reason=reason,
                run=run if run.ids else None,
            )
        case Stored() if answered.stats:
            return replace(answered, stats=replace(answered.stats, kv_bytes_written=event.kv_bytes_written))
        case Failed() if answered.reason is None:
            return replace(answered, error=event.message, is_engines_fault=event.kind not in ROW_FAILURES)
        case _:
            return answered


async def answer_rows(
    rows: AsyncIterator[Row],
    ask: Callable[[Row], Awaitable[Answered]],
    deliver: Callable[[Answered], None],
    *,
    n_at_once: int = 1,
) -> None:
    """Take rows, at most so many at once, and deliver each as soon as it is answered.

    A row beside which others were asked is asked once more when the engine fails: any of them may be the reason.
    An error of `rows`, `ask` or `deliver` ends the others. Raises `EngineGone` when the engine fails row after row.
    """
    taking = asyncio.Lock()
    asking_again = asyncio.Lock()
    n_faults = 0

    async def work() -> None:
        nonlocal n_faults
        while True:
            async with taking:
                row = await anext(rows, None)
            if row is None:
                return
            answered = await ask(row)
            if answered.is_engines_fault and n_at_once > 1:
                async with asking_again:
                    answered = await ask(row)
            deliver(answered)
            n_faults = n_faults + 1 if answered.is_engines_fault else 0
            if n_faults == PATIENCE:
                raise EngineGone(
                    f"The engine failed {PATIENCE} rows one after another, so the batch was given up: {answered.error}"
                )

    workers = [asyncio.create_task(work()) for _ in range(n_at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


class InTurn:
    """Hands answers on in the order of the input, and holds back those that come early."""

    def __init__(self, deliver: Callable[[Answered], None], *, most: int) -> None:
        """At most `most` rows may be under way or held back: `admitted` waits for that."""
        self._deliver = deliver
        self._held: dict[int, Answered] = {}
        self._room = asyncio.Semaphore(most)
        self._next = 0

    async def admitted(self, rows: AsyncIterator[Row]) -> AsyncGenerator[Row, None]:
        """Yield rows, each when there is room for it."""
        await self._room.acquire()
        async for row in rows:
            yield row
            await self._room.acquire()

    def take(self, answered: Answered) -> None:
        """Hand on an answer and those that waited for it, or hold it back."""
        self._held[answered.row.place] = answered
        while (ready := self._held.pop(self._next, None)) is not None:
            self._next += 1
            self._room.release()
            self._deliver(ready)
