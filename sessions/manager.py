"""The one orchestrator: new, open, send, stop, done, trash. Front ends reach conversations through it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING

from models.engine import Engine, Event, Failed, Finished, Prepared, Prompt, Sampling, Stored
from models.errors import EngineError
from sessions.conversation import Message, Session, SessionSummary
from sessions.errors import BadRequest, SessionClosed
from sessions.history import entries, open_question, prompt_messages, title_of
from sessions.journal import Journal, recover_one, settle
from sessions.purge import ForgetKV, delete_forever, forget_dead, forget_nothing
from sessions.turn import Turn, checked, close_events, missing_runs

if TYPE_CHECKING:
    from sessions.store import Store  # at run time it would load the database library for everybody


class SessionManager:
    """Owns the order of events of a turn; the store owns rows, the engine owns the KV cache.

    One turn runs at a time, more wait in line. All its methods belong to one event loop and one thread.
    """

    def __init__(
        self,
        store: Store,
        engine: Engine,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        forget_kv: ForgetKV = forget_nothing,
    ) -> None:
        self._store = store
        self._engine = engine
        self._monotonic = monotonic
        self._forget_kv = forget_kv
        self._lock = asyncio.Lock()
        self._n_waiting = 0
        self._is_opening = False
        self._turn: Turn | None = None

    @property
    def running(self) -> str | None:
        """The conversation being answered now; None again once the answer is stored."""
        return self._turn.session_id if self._turn and not self._turn.is_settled else None

    # --- conversations (synchronous, milliseconds) ---

    def sessions(self, *, limit: int = 200, trash: bool = False) -> list[SessionSummary]:
        """Return conversations, last used first: those in the trash, or those that are not."""
        return self._store.summaries(limit=limit, trash=trash)

    def session(self, session_id: str) -> Session:
        """Return one conversation. Raises `SessionNotFound`."""
        return self._store.session(session_id)

    def messages(self, session_id: str) -> list[Message]:
        """Return a conversation's messages, oldest first; the system prompt, if any, is the first."""
        return self._store.messages(session_id)

    def new(self, *, system: str | None = None) -> Session:
        """Start a conversation. Raises `BadRequest` for a system prompt without text."""
        return self._store.create_session(system=None if system is None else checked(system))

    def set_system(self, session_id: str, text: str) -> Session:
        """Give a conversation without messages its system prompt. Raises `BadRequest`, `SessionClosed`."""
        session = self._writable(session_id)
        if session.system is not None:
            raise BadRequest("This conversation already has a system prompt: start a new one for another.")
        if self._store.messages(session_id):
            raise BadRequest("A system prompt comes before the first message: start a new conversation for it.")
        return self._store.set_system(session_id, checked(text))

    def rename(self, session_id: str, title: str) -> Session:
        """Give a conversation another title. Raises `BadRequest` for an empty one."""
        return self._store.rename(session_id, title_of(checked(title)))

    def mark_done(self, session_id: str) -> Session:
        """Close a conversation: it takes no message until it is reopened."""
        return self._store.set_state(session_id, "done")

    def reopen(self, session_id: str) -> Session:
        """Let a closed conversation take messages again."""
        return self._store.set_state(session_id, "open")

    def trash(self, session_id: str) -> Session:
        """Move a conversation to the trash."""
        return self._store.set_trashed(session_id, trashed=True)

    def restore(self, session_id: str) -> Session:
        """Take a conversation out of the trash."""
        return self._store.set_trashed(session_id, trashed=False)

    def delete_forever(self, session_id: str) -> None:
        """Delete a conversation's text and the KV only it reaches. `BadRequest` while it is answered."""
        delete_forever(self._store, session_id, self._forget_kv)

    # --- the engine ---

    async def load(self) -> AsyncGenerator[Event, None]:
        """Load the model ahead of `open` and `send`: `Progress`*, then `Loaded` or `Failed`."""
        try:
            async for event in self._engine.load():
                yield event
        except EngineError as error:
            yield Failed(error.kind, str(error))

    async def open(self, session_id: str) -> AsyncGenerator[Event, None]:
        """Make a conversation's history resident: `Progress`*, then `Prepared` or `Failed`.

        No event for one without history or that takes no message. It ends early (after a `Failed` of kind
        'cancelled', or without a word) when a later `open` or `send` wants the engine. Raises
        `SessionNotFound`.
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
            self._is_opening = True
            held.callback(self._end_opening)
            async with aclosing(self._prepare(session_id, history)) as events:
                async for event in events:
                    if isinstance(event, Prepared):
                        # Only KV is still to be written: the next message does not wait for that.
                        await held.aclose()
                    yield event

    async def send(self, session_id: str, text: str, sampling: Sampling) -> AsyncGenerator[Event, None]:
        """Ask and answer: the events of `Engine.generate`, each passed on after the store knows what it says.

        The question is on disk before the engine sees it, the answer before `Finished` is passed on. A model
        that is not loaded yet is loaded first. A caller that goes away stops the answer; what was said by
        then is kept. Raises `BadRequest`, `SessionClosed`, `SessionNotFound`, `StoreError`; what the engine
        cannot do is `Failed`.
        """
        asked_at = self._monotonic()
        text = checked(text)
        self._writable(session_id)
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._exclusive())
            self._writable(session_id)  # it may have been closed while this one waited
            journal = held.enter_context(Journal(self._store.journal_dir, session_id, monotonic=self._monotonic))
            history = self._history(session_id, journal)
            question = self._store.add_question(session_id, text, title=title_of(text))
            turn = Turn(self._store, self._engine, journal, [*history, question], monotonic=self._monotonic)
            self._turn = turn
            held.callback(self._end_turn)
            async with aclosing(turn.events(sampling, asked_at=asked_at)) as events:
                async for event in events:
                    yield event
                    if isinstance(event, Finished):
                        # Only KV is still to be written: the next message does not wait for that.
                        await held.aclose()
                    elif isinstance(event, Stored):
                        self._forget_if_deleted(session_id)

    async def stop(self) -> None:
        """End the running answer (what was said is kept) or the running `open`."""
        if self.running or self._is_opening:
            await self._engine.cancel()

    # --- inside ---

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

    def _writable(self, session_id: str) -> Session:
        session = self._store.session(session_id)
        if session.trashed_at is not None:
            raise SessionClosed("This conversation is in the trash: restore it to go on.")
        if session.state == "done":
            raise SessionClosed("This conversation is done: reopen it to go on.")
        return session

    def _history(self, session_id: str, journal: Journal) -> list[Message]:
        """Return what the prompt begins with; a question whose answer never came gets an empty one first."""
        settle(self._store, journal)
        messages = self._store.messages(session_id)
        if open_question(messages):
            messages.append(self._store.add_answer(session_id, "", "interrupted", run=None))
        return prompt_messages(messages)

    async def _prepare(self, session_id: str, history: list[Message]) -> AsyncGenerator[Event, None]:
        prepared = self._engine.prepare(Prompt(entries(history)))
        is_over = False
        try:
            async for event in prepared:
                # Behind `Prepared` only `Stored` is to come, and a cancel would meet whoever is next.
                is_over = isinstance(event, Prepared | Stored | Failed)
                if isinstance(event, Stored):
                    self._store.record_kv(session_id, fingerprint=event.fingerprint, tip=event.tip)
                    self._forget_if_deleted(session_id)
                    return
                if isinstance(event, Prepared) and (runs := missing_runs(history, event)):
                    self._store.add_runs(runs)
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
