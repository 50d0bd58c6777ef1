"""The one orchestrator of turns: load, open, send, regenerate, stop. Front ends reach conversations through it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from models.engine import Ahead, Engine, Entry, Event, Failed, Finished, Loaded, Prepared, Role, Sampling, Stored
from models.errors import EngineError
from models.fit import available_memory
from models.switch import Choice
from sessions import summary, titles
from sessions.anticipation import prompt_ahead
from sessions.attachments import typed
from sessions.conversation import Attachment, Draft, Message, ReasoningPolicy, Session, model_ref
from sessions.conversations import Conversations
from sessions.errors import BadRequest
from sessions.history import open_question, prompt_messages, prompt_of, title_of
from sessions.journal import Journal, recover_one, settle
from sessions.judging import Judging, Score
from sessions.loading import Loading, Shelf
from sessions.policy import TaskPolicy, Verdict, recorded
from sessions.purge import ForgetKV, forget_dead, forget_nothing
from sessions.room import Room, room
from sessions.turn import Turn, answer, checked, close_events, missing_runs

if TYPE_CHECKING:
    from sessions.store import Store  # at run time it would load the database library for everybody


@dataclass(frozen=True, slots=True)
class Asked:
    """What a turn is about: the messages of its prompt, the question last.

    `continues` is the answer that is to go on; `head` what the shown branch ended with, if the question is not new.
    """

    messages: Sequence[Message]
    continues: Message | None = None
    head: int | None = None


UNFINISHED = ("stopped", "cut", "interrupted")
"""The status of answers that can go on."""


class SessionManager(Conversations):
    """Conversations that an engine answers: owns the order of events of a turn.

    The store owns rows, the engine owns the KV cache, `shelf` knows where models are. One turn runs at a time, more
    wait in line. All its methods belong to one event loop and one thread.
    """

    def __init__(
        self,
        store: Store,
        engine: Engine,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        forget_kv: ForgetKV = forget_nothing,
        shelf: Shelf = Shelf(),  # noqa: B008 - frozen
        reasoning: ReasoningPolicy = "keep",
        policy: TaskPolicy = "off",
        score: Score | None = None,
    ) -> None:
        super().__init__(store, forget_kv=forget_kv, reasoning=reasoning)
        self.judging = Judging(policy, score)
        """The judge of the task policy; `check` asks it."""
        self._engine = engine
        self._loading = Loading(engine, shelf)
        self._monotonic = monotonic
        self._lock = asyncio.Lock()
        self._n_waiting = 0
        self._is_opening = False
        self._is_aside = False
        self._is_choosing = self._is_stop_wanted = False
        self._turn: Turn | None = None

    @property
    def running(self) -> str | None:
        """The conversation being answered now; None again once the answer is stored."""
        return self._turn.session_id if self._turn and not self._turn.is_settled else None

    # --- the engine ---

    async def load(self, session_id: str | None = None) -> AsyncGenerator[Event, None]:
        """Load the model ahead of `open` and `send`: `Progress`*, then `Loaded` or `Failed`.

        It is the model of the conversation, if one is given and it has one.
        """
        if session_id:
            async with self._exclusive():
                failed = await self._loading.choose(self._store.session(session_id))
            if failed:
                yield failed
                return
        # Not under the lock: a message that is sent meanwhile is on disk before the model is there.
        choice = self._loading.choice
        async for event in self._load():
            if isinstance(event, Failed) and self._loading.choice != choice:
                return  # another model is wanted by now, and whoever wants it is told how that goes
            yield event

    async def open(self, session_id: str, *, force: bool = False) -> AsyncGenerator[Event, None]:
        """Make a conversation's history resident: `Progress`*, `Loaded` if need be, then `Prepared` or `Failed`.

        The conversation's own model is loaded first, in place of another; `force` skips the look at the memory. No
        event for one without history or that takes no message. It ends early (after a `Failed` of kind 'cancelled',
        or without a word) when a later `open` or `send` wants the engine. Raises `SessionNotFound`.
        """
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._exclusive())
            session = self._store.session(session_id)
            if self._n_waiting or session.state == "done" or session.trashed_at is not None:
                return
            recover_one(self._store, session_id)
            history = prompt_messages(self._store.messages(session_id))
            if not history:
                return
            if failed := await self._choose(session, force=force):
                yield failed
                return
            self._is_opening = True
            held.callback(self._end_opening)
            async with aclosing(self._prepare(session, history)) as events:
                async for event in events:
                    if isinstance(event, Prepared):
                        # Only KV is still to be written: the next message does not wait for that.
                        await held.aclose()
                    yield event

    async def check(self, session_id: str, draft: str, *, edits: int | None = None) -> Verdict:
        """Judge whether a draft belongs to the conversation's task; `judging.step` says what follows.

        `edits` is the question whose place it is to take. Raises `SessionNotFound`.
        """
        messages = prompt_messages(self._store.messages(session_id))
        if edits is not None:
            messages = [message for message in messages if message.id < edits]
        return await self.judging.verdict(self._store.session(session_id), messages, draft)

    def may_keep(self, session_id: str) -> bool:
        """True if a draft of another task may be sent here.

        Under the policy `strict` that is so once the task line was changed behind the last message.
        """
        if self.judging.policy != "strict":
            return True
        changes, messages = self._store.task_changes(session_id), self._store.messages(session_id)
        return bool(changes) and (not messages or changes[-1][0] > messages[-1].created_at)

    async def send(
        self,
        session_id: str,
        text: str,
        sampling: Sampling,
        *,
        edits: int | None = None,
        verdict: Verdict | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> AsyncGenerator[Event, None]:
        """Ask and answer: the events of `Engine.generate`, each passed on after the store knows what it says.

        The question is on disk before the engine sees it, the answer before `Finished` is passed on. A model
        that is not loaded yet is loaded first. A caller that goes away stops the answer; what was said by
        then is kept. `edits` is a question of the branch that is shown, which this one takes the place of: both are
        kept, as versions. `verdict` is that of `check`, and is kept with the question. Raises `BadRequest`,
        `SessionClosed`, `SessionNotFound`, `StoreError`; what the engine cannot do is `Failed`, and before the question
        is stored where its model is not there. `attachments` are parts of the text; if the rule of `hygiene` changes
        that, they are not known any more.
        """
        given, text = text, checked(text)
        spans = tuple(attachments) if text == given else ()
        title = title_of(typed(Draft(text, spans))) or title_of(text).removesuffix(":")

        def question(journal: Journal) -> Asked:
            settle(self._store, journal)
            edited = None if edits is None else self._shown(session_id, edits, "user")
            said = recorded(verdict) if verdict else None
            history = self._history(session_id, before=edited)
            asked = self._store.add_question(
                session_id, text, title=title, version_of=edited, verdict=said, attachments=spans
            )
            return Asked([*history, asked])

        async with aclosing(self._turn_events(session_id, sampling, question)) as events:
            async for event in events:
                yield event

    async def regenerate(
        self, session_id: str, sampling: Sampling, *, answer_id: int | None = None
    ) -> AsyncGenerator[Event, None]:
        """Answer a question once more; the answers are kept, as versions. None means the last question.

        Events and errors are those of `send`.
        """

        def question(journal: Journal) -> Asked:
            settle(self._store, journal)
            head = self._store.messages(session_id)[-1:]
            asked = self._question(session_id, answer_id)
            history = self._history(session_id, before=asked)
            self._store.set_head(session_id, asked.id)
            return Asked([*history, asked], head=head[0].id)

        async with aclosing(self._turn_events(session_id, sampling, question)) as events:
            async for event in events:
                yield event

    async def continue_answer(self, session_id: str, sampling: Sampling) -> AsyncGenerator[Event, None]:
        """Let the last answer go on where it was stopped or cut: pieces and final text begin with what is there.

        Events are those of `send`. Raises `BadRequest` for a conversation that does not end in an answer that can go
        on, and what `send` raises.
        """

        def question(journal: Journal) -> Asked:
            settle(self._store, journal)
            messages = self._store.messages(session_id)
            last = messages[-1] if messages else None
            is_unfinished = last is not None and last.role == "assistant" and last.status in UNFINISHED
            if last is None or not is_unfinished or not last.text or len(messages) < 2 or messages[-2].role != "user":
                raise BadRequest("There is no answer that was stopped or cut, and could go on.")
            return Asked([*prompt_messages(messages[:-2]), messages[-2]], continues=last)

        async with aclosing(self._turn_events(session_id, sampling, question)) as events:
            async for event in events:
                yield event

    async def switch_model(
        self, session_id: str | None, path: Path, *, force: bool = False
    ) -> AsyncGenerator[Event, None]:
        """Load another model, for a conversation or (None) for new ones: `Progress`*, then `Loaded` or `Failed`.

        The conversation's text stays, its KV starts anew. Raises `SessionNotFound`.
        """
        if session_id:
            self._store.session(session_id)
        async with self._exclusive():
            before = self._loading.choice
            failed = await self._loading.use(Choice(path), force=force)
            is_loaded = False
            try:
                if failed is None:
                    async with aclosing(self._load()) as events:
                        async for event in events:
                            is_loaded = is_loaded or isinstance(event, Loaded)
                            if isinstance(event, Loaded) and session_id:
                                self._store.set_model(session_id, model_ref(event.info))
                            yield event
            finally:
                if not is_loaded:
                    await self._loading.use(before, force=True)
        if failed:
            yield failed

    # --- the context's limit ---

    def room(self, session_id: str | None, n_draft: int, *, edits: int | None = None) -> Room | None:
        """Return whether a draft of so many tokens fits; None before a model is loaded that could tell.

        `edits` is the question whose place it is to take: what follows that does not count.
        """
        info = self._engine.info
        if info is None:
            return None
        session = self._store.session(session_id) if session_id else None
        messages = self._store.messages(session_id) if session_id else []
        history = prompt_messages([message for message in messages if edits is None or message.id < edits])
        if session and session.n_ctx and session.n_ctx > info.n_ctx:
            info = replace(info, n_ctx=min(session.n_ctx, info.n_ctx_train))  # the next request loads it so
        return room(info, history, n_draft, available_memory())

    def can_summarize(self, session_id: str) -> bool:
        """True if the context has room to ask for a summary behind at least one turn."""
        info = self._engine.info
        return info is not None and bool(
            summary.split(prompt_messages(self._store.messages(session_id)), info.n_ctx)[0]
        )

    def enlarge(self, session_id: str, n_draft: int = 0, *, edits: int | None = None) -> Session:
        """Let a conversation have the larger context that `room` offers, from the next request on.

        Raises `BadRequest` when the model or the memory allows none.
        """
        found = self.room(session_id, n_draft, edits=edits)
        if found is None or found.n_ctx_max <= found.n_ctx:
            raise BadRequest("A larger context is not possible: start a new conversation, or leave out turns.")
        return self._store.set_context(session_id, found.n_ctx_max)

    async def summarize(self, session_id: str) -> AsyncGenerator[Event, None]:
        """Let the model summarize a conversation: the events of `Engine.generate`; nothing of it is stored.

        Raises `BadRequest` for a conversation without a whole turn that leaves room for a summary.
        """
        async with aclosing(self._aside(session_id, summary.QUESTION, summary.split, summary.summary_tokens)) as events:
            async for event in events:
                yield event

    async def suggest_title(self, session_id: str) -> AsyncGenerator[Event, None]:
        """Let the model make a title: the events of `Engine.generate`; `titles.read_title` reads the answer.

        Nothing is stored, and what was resident of the conversation stays so; a memory that cannot rewind comes back
        from its last stored point. Raises as `summarize` does.
        """
        async with aclosing(
            self._aside(session_id, titles.QUESTION, titles.split, lambda _: titles.TITLE_TOKENS)
        ) as events:
            async for event in events:
                yield event

    def continuation(self, session_id: str, summary_text: str) -> str:
        """Return what a new conversation begins with that goes on from this one. Raises `BadRequest`."""
        info = self._engine.info
        if info is None:
            raise BadRequest("No model is loaded that could have made a summary.")
        _, quoted = summary.split(prompt_messages(self._store.messages(session_id)), info.n_ctx)
        return summary.continuation(summary_text, [message for message in quoted if message.role != "system"])

    async def count(self, text: str) -> int | None:
        """Tokens of a text by the engine; None while it has no model or does something else."""
        if self._engine.info is None or self._lock.locked():
            return None
        try:
            return await self._engine.count(text)
        except EngineError:
            return None

    async def anticipate(self, session_id: str | None, draft: str) -> AsyncGenerator[Ahead, None]:
        """Let the engine read ahead what is being written, if nothing else is asked of it: the events of `anticipate`.

        `session_id` None is a conversation without a message. Nothing is stored; whatever is asked next does not wait
        for it. Raises `SessionNotFound`.
        """
        info = self._engine.info
        if info is None or self._lock.locked() or self._n_waiting:
            return
        session = self._store.session(session_id) if session_id else None
        messages = self._store.messages(session_id) if session_id else []
        prompt = prompt_ahead(session, messages, draft, info)
        if prompt is None:
            return
        events = self._engine.anticipate(prompt)
        try:
            async for ahead in events:
                yield ahead
        except EngineError:
            pass  # whatever is asked next finds out the same, and tells
        finally:
            await close_events(events)

    async def stop(self) -> None:
        """End the running answer (what was said is kept) or the running `open`."""
        self._is_stop_wanted = self._is_choosing
        if self.running or self._is_opening or self._is_aside:
            await self._engine.cancel()

    # --- inside ---

    async def _choose(self, session: Session, *, force: bool = False) -> Failed | None:
        """Let the next request load the conversation's model; a `stop` meanwhile is kept until that is decided."""
        self._is_choosing = True
        try:
            failed = await self._loading.choose(session, force=force)
            if failed is None and self._is_stop_wanted:
                failed = Failed("cancelled", "Stopped.")
            return failed
        finally:
            self._is_choosing = self._is_stop_wanted = False

    def _end_opening(self) -> None:
        self._is_opening = False

    def _end_turn(self) -> None:
        self._turn = None

    def _forget_if_deleted(self, session_id: str) -> None:
        """Delete the KV of a conversation that was deleted while it was being written."""
        if not self._store.has_session(session_id):
            forget_dead(self._store, self._forget_kv)

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """Wait until no other request is under way; a running `open` gives way."""
        self._n_waiting += 1
        try:
            if self._is_opening:
                await self._engine.cancel()
            await self._lock.acquire()
        finally:
            self._n_waiting -= 1
        try:
            yield
        finally:
            self._lock.release()

    async def _aside(
        self,
        session_id: str,
        question: str,
        split: Callable[[Sequence[Message], int], tuple[list[Message], list[Message]]],
        max_tokens: Callable[[int], int],
    ) -> AsyncGenerator[Event, None]:
        """Ask something about a conversation behind its first turns, those that `split` finds room for.

        Nothing is stored. The turns are a prefix of what is resident, and stay so.
        """
        async with self._exclusive():
            session = self._store.session(session_id)
            if failed := await self._choose(session):
                yield failed
                return
            async with aclosing(self._load()) as events:
                async for event in events:
                    yield event
            info = self._engine.info
            if info is None:
                return
            turns, _ = split(prompt_messages(self._store.messages(session_id)), info.n_ctx)
            if not turns:
                raise BadRequest(
                    "The context has no room to ask that about this conversation: leave out turns instead."
                )
            prompt = prompt_of(turns, session.reasoning)
            entries = (*prompt.entries, Entry("user", question))
            asked = replace(prompt, entries=entries, store_kv=False, may_reason=False)
            sampling = replace(info.sampling, max_tokens=max_tokens(info.n_ctx))
            self._is_aside = True
            try:
                events = answer(self._engine, asked, sampling, asked_at=self._monotonic(), monotonic=self._monotonic)
                async with aclosing(events):
                    async for event in events:
                        yield event
            finally:
                self._is_aside = False

    async def _load(self) -> AsyncGenerator[Event, None]:
        try:
            async for event in self._engine.load():
                yield event
        except EngineError as error:
            yield Failed(error.kind, str(error))

    async def _turn_events(
        self, session_id: str, sampling: Sampling, question: Callable[[Journal], Asked]
    ) -> AsyncGenerator[Event, None]:
        """One turn under the journal's lock, once the model is there that `question` is for."""
        asked_at = self._monotonic()
        self.writable(session_id)
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._exclusive())
            waited_s = self._monotonic() - asked_at
            session = self.writable(session_id)  # it may have been closed while this one waited
            journal = held.enter_context(Journal(self._store.journal_dir, session_id, monotonic=self._monotonic))
            if failed := await self._choose(session):
                yield failed
                return
            asked = question(journal)
            turn = Turn(
                self._store,
                self._engine,
                journal,
                asked.messages,
                policy=session.reasoning,
                continues=asked.continues,
                head=asked.head,
                monotonic=self._monotonic,
            )
            self._turn = turn
            held.callback(self._end_turn)
            async with aclosing(turn.events(sampling, asked_at=asked_at, waited_s=waited_s)) as events:
                async for event in events:
                    yield event
                    if isinstance(event, Finished):
                        # Only KV is still to be written: the next message does not wait for that.
                        await held.aclose()
                    elif isinstance(event, Stored):
                        self._forget_if_deleted(session_id)

    def _history(self, session_id: str, *, before: Message | None = None) -> list[Message]:
        """Return what the prompt begins with; a question whose answer never came gets an empty one first."""
        messages = self._store.messages(session_id)
        if before:
            return prompt_messages([message for message in messages if message.id < before.id])
        asked = open_question(messages)
        if asked and self._store.is_answered(asked.id):  # it was to be answered once more, and nothing came of it
            self._store.show_branch(session_id, asked.id)
            return self._history(session_id)
        if asked:
            messages.append(self._store.add_answer(asked, "", "interrupted", run=None))
        return prompt_messages(messages)

    def _shown(self, session_id: str, message_id: int | None, role: Role) -> Message:
        """Return a message of the branch that is shown. Raises `BadRequest`."""
        for message in self._store.messages(session_id):
            if message.id == message_id and message.role == role:
                return message
        raise BadRequest("The conversation shows no such message.")

    def _question(self, session_id: str, answer_id: int | None) -> Message:
        """Return what an answer of the branch that is shown was given to, or the last question. Raises `BadRequest`."""
        if answer_id is not None:
            parent_id = self._shown(session_id, answer_id, "assistant").parent_id
            return self._shown(session_id, parent_id, "user")
        questions = [m for m in self._store.messages(session_id) if m.role == "user" and m.status != "failed"]
        if not questions:
            raise BadRequest("There is no question to answer.")
        return questions[-1]

    async def _prepare(self, session: Session, history: list[Message]) -> AsyncGenerator[Event, None]:
        prepared = self._engine.prepare(prompt_of(history, session.reasoning))
        session_id = session.id
        is_over = False
        try:
            async for event in prepared:
                # Behind `Prepared` only `Stored` is to come, and a cancel would meet whoever is next.
                is_over = isinstance(event, Prepared | Stored | Failed)
                if isinstance(event, Stored):
                    self._store.record_kv(session_id, history[-1].id, fingerprint=event.fingerprint, tip=event.tip)
                    self._forget_if_deleted(session_id)
                    return
                if isinstance(event, Prepared) and (runs := missing_runs(history, event)):
                    info = self._engine.info
                    self._store.add_runs(session_id, runs, model_ref(info) if info else None)
                yield event
                if self._n_waiting and not is_over:
                    return
        except EngineError as error:
            is_over = True
            yield Failed(error.kind, str(error))
        finally:
            if not is_over:
                await self._engine.cancel()
            await close_events(prepared)
