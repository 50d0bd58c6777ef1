"""`chatapp run`: one question, one answer on stdout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, closing
from dataclasses import dataclass, replace
from typing import Literal

import click

from chatapp.config import Settings
from chatapp.console import INTERRUPTED, Narrator, interrupts, lost_notice, print_json, print_text
from chatapp.engines import forget_kv, is_remote, kv_gives_way, make_engine, make_shelf, make_switch, model_path
from chatapp.objects import answer_object
from models.catalog import check_gguf
from models.encoder import Encoder
from models.engine import Engine, Event, Failed, Finished, Piece, Prepared, Progress, Sampling, Stored
from models.presets import SamplingChoice, recommended
from models.reasoning import Kind, Splitter, answer_of
from sessions.attachments import typed
from sessions.conversation import Attachment, Draft, MessageStatus, ModelRef, Session
from sessions.conversations import Conversations
from sessions.journal import recover
from sessions.loading import MODEL_GONE
from sessions.manager import UNFINISHED, SessionManager
from sessions.policy import Verdict
from sessions.store import Store
from sessions.turn import STATUS_OF, ask, checked, close_events

Verb = Literal["send", "regenerate", "continue"]
_CONTEXT_STEP = 256
"""llama.cpp rounds a context up to a multiple of it."""


@dataclass(frozen=True, slots=True)
class Question:
    """What `run` was asked. `session` is an id or the beginning of one, None starts a conversation.

    `names_model`: the settings' model was named with the command itself. `may_leave_task`: asked whatever the task
    policy says. `verb` is what is done with the conversation; only `send` has a text, which takes the place of the
    question `edits` if that is given.
    """

    text: str
    system: str | None
    session: str | None
    sampling: SamplingChoice
    is_ephemeral: bool
    as_json: bool
    names_model: bool = False
    may_leave_task: bool = False
    verb: Verb = "send"
    attachments: tuple[Attachment, ...] = ()
    edits: int | None = None


async def run(settings: Settings, question: Question) -> int:
    """Load the model, ask, print; return the exit code. Engines' failures are `ClickException`s."""
    if question.is_ephemeral:
        return await _run_ephemeral(settings, question)
    with closing(Store(settings.data_dir, make_room=kv_gives_way(settings))) as store:
        recover(store)
        session = store.find(question.session) if question.session is not None else None
        if session:
            Conversations(store).writable(session.id)
        if session and session.model and question.names_model:
            check_model(settings, session.model, session.id)
        if question.verb == "send":
            checked(question.text)
        engine = make_switch(settings)
        encoder = Encoder()
        manager = SessionManager(
            store,
            engine,
            forget_kv=forget_kv(settings),
            shelf=make_shelf(settings),
            reasoning=settings.reasoning,
            policy=settings.policy,
            score=encoder.scores,
        )
        if session and question.system:
            manager.set_system(session.id, question.system)
        judged: asyncio.Task[Verdict | None] | None = None
        try:
            # The judge starts while the model loads.
            if session and question.verb == "send":
                judged = asyncio.create_task(_judge(manager, session, question))
            own = session.sampling if session else None
            usual = await load(settings, engine, Narrator(), manager.load(session.id if session else None))
            verdict = await judged if judged else None
            sampling = question.sampling.over(own.over(usual) if own else usual)
            if session and question.edits is not None:
                await _check_room(manager, session.id, question)
            session = session or manager.new(system=question.system)
            events = _events(manager, session.id, question, sampling, verdict)
            return await _print(events, manager.stop, question, sampling, session.id, engine)
        finally:
            if judged:
                judged.cancel()
                await asyncio.wait([judged])
            await encoder.close()
            await engine.close()


def _events(
    manager: SessionManager, session_id: str, question: Question, sampling: Sampling, verdict: Verdict | None
) -> AsyncGenerator[Event, None]:
    match question.verb:
        case "regenerate":
            return manager.regenerate(session_id, sampling)
        case "continue":
            return manager.continue_answer(session_id, sampling)
        case "send":
            return manager.send(
                session_id,
                question.text,
                sampling,
                edits=question.edits,
                verdict=verdict,
                attachments=question.attachments,
            )


async def _judge(manager: SessionManager, session: Session, question: Question) -> Verdict | None:
    """Ask the task policy; raise `ClickException` for a question of another task that may not be asked here."""
    manager.writable(session.id)
    own = typed(Draft(question.text, question.attachments)) or question.text
    verdict = await manager.check(session.id, own, edits=question.edits)
    narrator = Narrator()
    match manager.judging.step(verdict):
        case "dialog" if not question.may_leave_task:
            raise click.ClickException(
                f"This looks like another task than {session.task!r}. {verdict.reason} Leave --session out for a new "
                "conversation, or say --allow-off-task."
            )
        case "dialog" if not manager.may_keep(session.id):
            raise click.ClickException(
                "This looks like another task, and the policy is strict: change the task line first "
                f"(`chatapp sessions task {session.id} TEXT`)."
            )
        case "hint":
            narrator.hint(verdict.reason)
    return verdict


async def _check_room(manager: SessionManager, session_id: str, question: Question) -> None:
    """Raise `ClickException` for an edit that the context cannot hold, before the shown branch is another one.

    What is near the limit is left to the engine, which knows it to the token.
    """
    n_tokens = await manager.count(question.text)
    room = manager.room(session_id, n_tokens or 0, edits=question.edits)
    if n_tokens is None or room is None or room.n_kept + n_tokens <= room.n_ctx:
        return
    larger = f"a larger context (`--ctx {room.n_ctx_max}`), " if room.n_ctx_max > room.n_ctx else ""
    fork = (
        f"a fork without some turns (`chatapp sessions fork {session_id} --without MESSAGE`), " if room.n_kept else ""
    )
    raise click.ClickException(
        f"The edited message and what comes before it need {room.n_kept + n_tokens:,} tokens, and the context holds "
        f"{room.n_ctx:,}; nothing was changed. Ways out: {larger}{fork}or a shorter text."
    )


def check_model(settings: Settings, model: ModelRef, session_id: str) -> None:
    """Raise `ClickException` if a model was named that is not the conversation's own, whatever the file is called."""
    from chatapp.shelf import is_model, is_place_of

    if is_remote(settings) or model.path.startswith("engine:"):
        if not is_place_of(settings, model):
            raise click.ClickException(
                f"This conversation belongs to {model.name}: leave --engine and --model out, or let another go on "
                f"with it: `chatapp sessions model {session_id} MODEL` (engine:NAME for a server)."
            )
        return
    if settings.engine.startswith("fake"):
        return
    path = model_path(settings)
    check_gguf(path)
    if not is_model(path, model, settings.cache_dir):
        raise click.ClickException(
            f"This conversation belongs to the model {model.name}: leave --model out, or let another go on "
            f"with it: `chatapp sessions model {session_id} MODEL`."
        )


async def _run_ephemeral(settings: Settings, question: Question) -> int:
    engine = make_engine(settings)
    try:
        sampling = question.sampling.over(await load(settings, engine, Narrator()))
        events = ask(engine, question.text, sampling, system=question.system, monotonic=time.monotonic)
        return await _print(events, engine.cancel, question, sampling, None, engine)
    finally:
        await engine.close()


async def load(
    settings: Settings, engine: Engine, narrator: Narrator, loading: AsyncIterator[Event] | None = None
) -> Sampling:
    """Load the model, with progress; return the sampling that is usual for it. Raises `ClickException`."""
    events = loading or engine.load()
    try:
        async for event in events:
            if isinstance(event, Progress):
                narrator.progress(event)
            if isinstance(event, Failed):
                way_out = " (`chatapp sessions model ID MODEL`)" if event.kind == MODEL_GONE else ""
                raise click.ClickException(event.message.removesuffix(".") + f"{way_out}.")
    finally:
        await close_events(events)
        narrator.clear()
    if engine.info and settings.n_ctx and settings.n_ctx < engine.info.n_ctx < settings.n_ctx + _CONTEXT_STEP:
        narrator.notice(
            f"The context has {engine.info.n_ctx:,} tokens, not {settings.n_ctx:,}: "
            f"it grows in steps of {_CONTEXT_STEP}."
        )
    return recommended(engine.info, settings.presets) if engine.info else Sampling()


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
            if session_id:
                narrator.hint(f"Kept: chatapp sessions show {session_id} shows it.")
            raise click.ClickException(printed.failed.message)
        if session_id and not question.as_json:
            how = " --continue" if printed.is_unfinished else ""
            narrator.hint(f"Saved: chatapp run --session {session_id}{how} goes on with it.")
        return INTERRUPTED if was_interrupted() else 0


class _Printed:
    """The answer so far, printed as it comes unless one JSON object is wanted at the end."""

    def __init__(self, question: Question, sampling: Sampling, narrator: Narrator) -> None:
        self._question = question
        self._sampling = sampling
        self._narrator = narrator
        self._text: list[str] = []
        self._splitter = Splitter()
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
                self._print(self._splitter.feed(text))
            case Finished():
                self._finished = event
            case Stored() if self._finished:
                stats = replace(self._finished.stats, kv_bytes_written=event.kv_bytes_written)
                self._finished = replace(self._finished, stats=stats)
                self.kv_note = event.note
            case Failed() if not self._finished:
                self.failed = event

    def _print(self, pieces: list[tuple[Kind, str]]) -> None:
        """Print what is the answer itself; reasoning is for those who ask for JSON or open the window."""
        if self._question.as_json:
            return
        for kind, text in pieces:
            if kind == "answer" and text:
                self._narrator.clear()
                print_text(text)
            elif text:
                self._narrator.line("reasoning…")

    @property
    def is_unfinished(self) -> bool:
        """True for an answer that was cut or stopped."""
        return self._finished is not None and STATUS_OF[self._finished.reason] in UNFINISHED

    def notes(self) -> list[str]:
        """What to say about the end of an answer, and about stored KV if it was not used or not kept."""
        reason = self._finished.stats.miss_reason if self._finished else None
        ends = {"length": "The answer was cut by --max-tokens.", "context": "The answer was cut: the context is full."}
        end = ends.get(self._finished.reason) if self._finished else None
        notes = [end] if end else []
        notes += [f"Not from disk: {reason}."] if reason and self._question.session else []
        return notes + ([f"{self.kv_note}."] if self.kv_note else [])

    def finish(self, session_id: str | None, model: str | None) -> None:
        """Print what is still to be printed; nothing when there is no answer at all."""
        text = self._finished.text if self._finished else "".join(self._text)
        if not self._question.as_json:
            self._print(self._splitter.finish())
            if answer_of(text) and not text.endswith("\n"):
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
