"""`chatapp run`: one question, one answer on stdout."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, closing
from dataclasses import dataclass, replace

import click

from chatapp.config import Settings
from chatapp.console import INTERRUPTED, Narrator, interrupts, lost_notice, print_json, print_text
from chatapp.engines import forget_kv, kv_gives_way, make_engine
from chatapp.objects import answer_object
from models.engine import Engine, Event, Failed, Finished, Piece, Prepared, Progress, Sampling, Stored
from models.presets import SamplingChoice
from sessions.conversation import MessageStatus
from sessions.journal import recover
from sessions.manager import SessionManager
from sessions.store import Store
from sessions.turn import STATUS_OF, ask


@dataclass(frozen=True, slots=True)
class Question:
    """What `run` was asked. `session` is an id or the beginning of one, None starts a conversation."""

    text: str
    system: str | None
    session: str | None
    sampling: SamplingChoice
    is_ephemeral: bool
    as_json: bool


async def run(settings: Settings, question: Question) -> int:
    """Load the model, ask, print; return the exit code. Engines' failures are `ClickException`s."""
    if question.is_ephemeral:
        return await _run_ephemeral(settings, question)
    with closing(Store(settings.data_dir, make_room=kv_gives_way(settings))) as store:
        recover(store)
        session = store.find(question.session) if question.session else None
        engine = make_engine(settings)
        manager = SessionManager(store, engine, forget_kv=forget_kv(settings))
        if session and question.system:
            manager.set_system(session.id, question.system)
        try:
            sampling = question.sampling.over(await load(engine, Narrator()))
            session = session or manager.new(system=question.system)
            events = manager.send(session.id, question.text, sampling)
            return await _print(events, manager.stop, question, sampling, session.id, engine)
        finally:
            await engine.close()


async def _run_ephemeral(settings: Settings, question: Question) -> int:
    engine = make_engine(settings)
    try:
        sampling = question.sampling.over(await load(engine, Narrator()))
        events = ask(engine, question.text, sampling, system=question.system, monotonic=time.monotonic)
        return await _print(events, engine.cancel, question, sampling, None, engine)
    finally:
        await engine.close()


async def load(engine: Engine, narrator: Narrator) -> Sampling:
    """Load the model, with progress; return the sampling it recommends. Raises `ClickException`."""
    try:
        async for event in engine.load():
            if isinstance(event, Progress):
                narrator.progress(event)
            if isinstance(event, Failed):
                raise click.ClickException(event.message)
    finally:
        narrator.clear()
    return engine.info.sampling if engine.info else Sampling()


async def _print(
    events: AsyncGenerator[Event, None],
    stop: Callable[[], Awaitable[None]],
    question: Question,
    sampling: Sampling,
    session_id: str | None,
    engine: Engine,
) -> int:
    narrator = Narrator()
    printed = _Printed(question, sampling, narrator)
    with interrupts(stop) as was_interrupted:
        async with aclosing(events):
            async for event in events:
                printed.take(event)
        narrator.clear()
        info = engine.info
        printed.finish(session_id, info.name if info else None)
        for note in printed.notes():
            narrator.hint(note)
        if printed.failed:
            raise click.ClickException(printed.failed.message)
        if session_id and not question.as_json:
            narrator.hint(f"Saved: chatapp run --session {session_id} goes on with it.")
        return INTERRUPTED if was_interrupted() else 0


class _Printed:
    """The answer so far, printed as it comes unless one JSON object is wanted at the end."""

    def __init__(self, question: Question, sampling: Sampling, narrator: Narrator) -> None:
        self._question = question
        self._sampling = sampling
        self._narrator = narrator
        self._text: list[str] = []
        self._ids: list[int] = []
        self._finished: Finished | None = None
        self.failed: Failed | None = None
        self.kv_note: str | None = None

    def take(self, event: Event) -> None:
        """Print or remember an event."""
        match event:
            case Progress():
                self._narrator.progress(event)
            case Prepared(lost_characters=n) if n:
                self._narrator.notice(lost_notice(n))
            case Piece(text=text, token_ids=ids):
                self._text.append(text)
                self._ids.extend(ids)
                if text and not self._question.as_json:
                    self._narrator.clear()
                    print_text(text)
            case Finished():
                self._finished = event
            case Stored() if self._finished:
                stats = replace(self._finished.stats, kv_bytes_written=event.kv_bytes_written)
                self._finished = replace(self._finished, stats=stats)
                self.kv_note = event.note
            case Failed() if not self._finished:
                self.failed = event

    def notes(self) -> list[str]:
        """What to say about stored KV, if it was not used or not kept."""
        reason = self._finished.stats.miss_reason if self._finished else None
        notes = [f"Not from disk: {reason}."] if reason and self._question.session else []
        return notes + ([f"{self.kv_note}."] if self.kv_note else [])

    def finish(self, session_id: str | None, model: str | None) -> None:
        """Print what is still to be printed; nothing when there is no answer at all."""
        text = self._finished.text if self._finished else "".join(self._text)
        if not self._question.as_json:
            if text and not text.endswith("\n"):
                print_text("\n")
        elif self._finished or text:
            status: MessageStatus = STATUS_OF[self._finished.reason] if self._finished else "interrupted"
            print_json(
                answer_object(
                    session=session_id,
                    text=text,
                    token_ids=self._finished.run.body if self._finished else self._ids,
                    status=status,
                    model=model,
                    sampling=self._sampling,
                    stats=self._finished.stats if self._finished else None,
                )
            )
