"""`chatapp batch`: rows of a file answered into another, from where an earlier run stopped."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, aclosing, closing
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import IO, BinaryIO

import click

from chatapp.bulk_progress import Meter
from chatapp.bulk_records import record_of
from chatapp.bulk_rows import Batch, is_kept, rows_of
from chatapp.bulk_session import Judge, load_for
from chatapp.config import Settings
from chatapp.console import INTERRUPTED, Narrator, interrupts, print_text
from chatapp.engines import kv_gives_way, make_engine, make_switch
from chatapp.oneshot import load
from models.encoder import Encoder
from models.engine import Engine, Entry
from sessions.batch import Answered, InTurn, Shared, answer_row, answer_rows, prepare
from sessions.batch_input import lines_of
from sessions.batch_keeping import Keeper
from sessions.batch_plan import Plan
from sessions.batch_results import Results
from sessions.batch_rows import Reading, Row
from sessions.conversation import Message, Session
from sessions.history import prompt_messages, prompt_of
from sessions.journal import recover
from sessions.store import Store
from sessions.turn import checked

SOME_FAILED = 3
_HELD_BACK = 64
"""Rows held back for their turn on stdout, for each that is answered at once."""
_SYNC_S = 1.0
"""What a power cut may take at most: the results of so many seconds."""


def check_rows(source: BinaryIO, batch: Batch) -> int:
    """Print each row that cannot be asked, without a model; return the exit code."""
    n_rows = n_bad = 0
    reading = Reading(is_text=batch.is_text, goes_on=batch.session is not None)
    for row, _ in Plan(None).open_rows(lines_of(source), reading, limit=batch.limit):
        n_rows += 1
        if row.error is not None:
            n_bad += 1
            print_text(f"line {row.line}: {row.error}\n")
    Narrator().notice(f"{n_rows:,} row{'s' if n_rows != 1 else ''}, {n_bad:,} that cannot be asked.")
    return SOME_FAILED if n_bad else 0


async def run_batch(settings: Settings, source: BinaryIO, batch: Batch) -> int:
    """Answer the rows of `source`; return the exit code.

    Raises `ClickException`, `SessionError` and `EngineError` where the batch cannot be run.
    """
    with ExitStack() as held:
        run = _Run(settings, batch, held)
        return await run.answer(source)


class _Run:
    """One run of a batch, from its files to its summary."""

    def __init__(self, settings: Settings, batch: Batch, held: ExitStack) -> None:
        self._settings = settings
        self._batch = batch
        self._held = held
        self._narrator = Narrator()
        self._results = held.enter_context(closing(Results(Path(batch.output)))) if is_kept(batch.output) else None
        self._stream: IO[str] | None = None
        if self._results is None:
            self._stream = held.enter_context(click.open_file(batch.output, "w", encoding="utf-8"))
        self._system = None if batch.system is None else checked(batch.system, "system prompt")
        self._store: Store | None = None
        if batch.session is not None or batch.saves:
            self._store = held.enter_context(closing(Store(settings.data_dir, make_room=kv_gives_way(settings))))
            recover(self._store)
        self._session: Session | None = None
        self._history: list[Message] = []
        if self._store and batch.session is not None:
            self._session = self._store.find(batch.session)
            self._history = prompt_messages(self._store.messages(self._session.id))
        self._keeper: Keeper | None = None
        if self._store and batch.saves:
            self._keeper = Keeper(
                self._store, self._shared().entries, origin=self._session, reasoning=settings.reasoning
            )
        self._meter = Meter(self._narrator, time.monotonic)
        missed = self._keeper.missed if self._keeper else lambda _row, _record: None
        self._plan = Plan(self._results, retries=batch.retries, missed=missed)

    def _shared(self) -> Shared:
        if self._session:
            prompt = prompt_of(self._history, self._session.reasoning)
            return Shared(prompt.entries, reasoning=prompt.reasoning)
        return Shared((Entry("system", self._system),) if self._system is not None else ())

    def _reading(self) -> Reading:
        """How rows are read; their keys change with all that decides what is asked but the sampling."""
        shared = [[entry.role, entry.text] for entry in self._shared().entries]
        common = json.dumps([shared, self._batch.sampling.given.get("grammar")]).encode()
        salt = blake2b(common, digest_size=32).digest()
        return Reading(salt, self._batch.is_text, self._session is not None)

    async def answer(self, source: BinaryIO) -> int:
        """Answer what is still to be answered, put the output in order, and say how it went."""
        was_interrupted = False
        incoming = rows_of(source, self._reading(), self._plan, self._batch, self._meter)
        async with aclosing(incoming) as rows:
            # Nobody waits for a model that has nothing to answer.
            first = await anext(rows, None)
            if first is not None:
                try:
                    was_interrupted = await self._answer(first, rows)
                finally:
                    self._narrator.clear()
        self._meter.n_before = self._plan.n_done
        n_left = 0
        if self._results and not was_interrupted:
            n_left = self._plan.arrange(by_input=not self._batch.as_completed)
        n_failed = self._meter.n_failed + self._plan.n_failed
        self._meter.summarize(n_failed)
        if n_left:
            self._narrator.notice(
                f"{n_left:,} earlier answers belong to no row of the input any more; they are still in "
                f"{self._batch.output}."
            )
        if was_interrupted:
            self._narrator.hint("Stopped: the same command goes on from here.")
            return INTERRUPTED
        return SOME_FAILED if n_failed else 0

    # --- the engine ---

    async def _answer(self, first: Row, rows: AsyncGenerator[Row, None]) -> bool:
        """Answer the rows; True if Ctrl+C ended that."""
        engine = make_switch(self._settings) if self._session else make_engine(self._settings)
        encoder = Encoder()
        try:
            shared, judge = await self._load(engine, encoder)
            answering = asyncio.create_task(self._answer_all(engine, _behind(first, rows), shared, judge))

            async def stop() -> None:
                answering.cancel()

            with interrupts(stop) as was_pressed:
                try:
                    await answering
                except asyncio.CancelledError:
                    if not was_pressed():
                        raise
                    return True
            return False
        finally:
            await encoder.close()
            await engine.close()

    async def _load(self, engine: Engine, encoder: Encoder) -> tuple[Shared, Judge | None]:
        """Load the model; return what all rows share, and what says whether a row may be asked."""
        shared = self._shared()
        if self._session is None or self._store is None:
            usual = await load(self._settings, engine, self._narrator)
            return replace(shared, sampling=self._batch.sampling.over(usual)), None
        usual, judge = await load_for(
            self._session, self._history, self._settings, self._store, engine, encoder, self._narrator, self._batch
        )
        return replace(shared, sampling=self._batch.sampling.over(usual)), judge

    async def _answer_all(
        self, engine: Engine, rows: AsyncGenerator[Row, None], shared: Shared, judge: Judge | None
    ) -> None:
        batch = self._batch
        self._meter.start()
        shared, prepared = await prepare(engine, shared)
        if prepared:
            self._meter.count_prefix(prepared)

        async def ask(row: Row) -> Answered:
            if judge and row.error is None:
                row = replace(row, error=await judge(row))
            return await answer_row(engine, row, shared, timeout_s=batch.timeout_s, monotonic=time.monotonic)

        n_at_once = self._n_at_once(engine)
        deliver: Callable[[Answered], None] = partial(self._deliver, engine)
        if self._stream and not batch.as_completed:
            in_order = InTurn(deliver, most=_HELD_BACK * n_at_once)
            rows, deliver = in_order.admitted(rows), in_order.take
        tasks = [
            asyncio.create_task(answer_rows(rows, ask, deliver, n_at_once=n_at_once)),
            asyncio.create_task(self._keep_synced()),
        ]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                await task  # raises what ended it
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_synced(self) -> None:
        """Once a second, let what was written survive a power cut."""
        while True:
            await asyncio.sleep(_SYNC_S)
            if self._results:
                await asyncio.to_thread(self._results.sync)

    def _n_at_once(self, engine: Engine) -> int:
        most = engine.info.n_parallel if engine.info else 1
        wanted = self._batch.parallel or most
        if wanted > most == 1:
            self._narrator.notice("This engine serves one request at a time: rows are answered one after another.")
        elif wanted > most:
            self._narrator.notice(f"This engine serves {most} requests at a time, so that many rows are under way.")
        return min(wanted, most)

    # --- answers out ---

    def _deliver(self, engine: Engine, answered: Answered) -> None:
        """Write an answer, at once."""
        session_id = self._keeper.new_id(answered) if self._keeper else None
        info = engine.info
        record = record_of(answered, session=session_id, model=info.name if info else None, at=time.time())
        line = json.dumps(record)
        if self._results:
            self._plan.wrote(answered.row, self._results.append(line.encode()))
        if self._keeper and session_id:
            self._keeper.keep(session_id, answered, info)
        self._meter.n_before = self._plan.n_done
        if self._stream:
            self._narrator.clear()
            self._stream.write(line + "\n")
            self._stream.flush()
        self._meter.count(answered)


async def _behind(first: Row, rows: AsyncGenerator[Row, None]) -> AsyncGenerator[Row, None]:
    yield first
    async for row in rows:
        yield row
