"""What the engine does for the window: it runs beside the widgets, keeps the state and posts messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from textual.message import Message as WindowMessage

from chatapp.texts import tr
from chatapp.tui.live import SEND, LiveAnswer, ModelState, Notice, Readings, Request
from chatapp.tui.messages import ModelEvent, OpenEnded, OpenEvent, Trouble, TurnEnded, TurnEvent
from models.engine import Event, Failed, Loaded, ModelInfo, Piece, Sampling
from models.errors import EngineError
from sessions.conversation import Message
from sessions.errors import SessionError
from sessions.history import prompt_messages
from sessions.manager import SessionManager


class Talk:
    """Owner of the running answers, the model's state and each conversation's readings.

    `load`, `open`, `turn` and `stop` are bodies of workers: they touch no widget and end in a message, whatever
    happens. The window hands each event back through `apply_*`, in the order of the messages.
    """

    def __init__(
        self,
        manager: SessionManager,
        sampling: Sampling | None,
        *,
        recommend: Callable[[ModelInfo], Sampling],
        post: Callable[[WindowMessage], object],
        monotonic: Callable[[], float],
    ) -> None:
        self.model = ModelState()
        self.live: dict[str, LiveAnswer] = {}
        self.notices: dict[str, Notice] = {}
        self.all_over = asyncio.Event()
        self._manager = manager
        self._sampling = sampling
        self._recommend = recommend
        self._post = post
        self._monotonic = monotonic
        self._readings: dict[str, Readings] = {}
        self._load_over = asyncio.Event()

    @property
    def has_sampling(self) -> bool:
        """True if the sampling was chosen for the program, which wins over all else."""
        return self._sampling is not None

    def readings(self, session_id: str) -> Readings:
        """The live numbers of a conversation."""
        return self._readings.setdefault(session_id, Readings())

    def forget(self, session_id: str) -> None:
        """Begin a conversation's numbers anew."""
        self._readings.pop(session_id, None)

    def remember(self, session_id: str, messages: list[Message]) -> None:
        """Show the stored numbers of a conversation's last turn."""
        stats = next((m.stats for m in reversed(messages) if m.stats), None)
        if stats is not None:
            n_tokens = sum(len(message.run.ids) for message in prompt_messages(messages) if message.run)
            self.readings(session_id).remembered(stats, n_tokens)

    def begin(self, session_id: str, question: str, n_before: int, request: Request = SEND) -> LiveAnswer:
        """Note that a turn is about to begin."""
        is_queued = bool(self.live)
        live = LiveAnswer(session_id, question, n_before, is_queued=is_queued, request=request)
        self.live[session_id] = live
        self.all_over.clear()
        self.notices.pop(session_id, None)
        self.readings(session_id).sending(self._monotonic(), queued=is_queued, is_first=n_before == 0)
        return live

    def end(self, live: LiveAnswer, failure: str | None) -> bool:
        """Note that a turn is over; False when that is known already."""
        if self.live.get(live.session_id) is not live:
            return False
        del self.live[live.session_id]
        if not self.live:
            self.all_over.set()
        self.readings(live.session_id).settle(self._monotonic())
        if failure:
            self.notices[live.session_id] = Notice(failure)
        return True

    def apply_load(self, event: Event) -> None:
        """Take an event of the loading model."""
        self.model.progress.apply(event, self._monotonic())
        if isinstance(event, Loaded):
            self.model.info, self.model.failure = event.info, None
        elif isinstance(event, Failed):
            self.model.failure = event.message

    def apply_open(self, session_id: str, event: Event | None) -> None:
        """Take an event of a history becoming resident; None ends it."""
        readings = self.readings(session_id)
        if isinstance(event, Loaded):
            self.apply_load(event)
        if event is not None:
            readings.apply(event, self._monotonic())
        elif session_id not in self.live:
            readings.settle(self._monotonic())

    def apply_turn(self, live: LiveAnswer, event: Event) -> None:
        """Take an event of a turn."""
        self.readings(live.session_id).apply(event, self._monotonic())
        live.has_begun, live.is_queued = True, False
        if isinstance(event, Loaded):
            self.apply_load(event)
        elif isinstance(event, Piece):
            live.take(event, self._monotonic())

    async def load(self, session_id: str | None) -> None:
        """Load the model: that of a conversation, else the usual one."""
        async with aclosing(told(self._manager.load(session_id))) as events:
            async for event in events:
                self._post(ModelEvent(event))
        self._load_over.set()

    async def open(self, session_id: str, *, force: bool = False) -> None:
        """Make a conversation's history resident, once a model is loaded; `force` skips the look at the memory."""
        failed: Failed | None = None
        await self._load_over.wait()
        async with aclosing(told(self._manager.open(session_id, force=force))) as events:
            async for event in events:
                if not isinstance(event, Failed):
                    self._post(OpenEvent(session_id, event))
                elif event.kind != "cancelled":  # a message or another conversation came first
                    failed = _with_way_out(event)
        self._post(OpenEnded(session_id, failed))

    async def turn(self, live: LiveAnswer) -> None:
        """Ask what the answer was begun for, and take it."""
        failed: Failed | None = None
        try:
            async with aclosing(told(self._asked(live))) as events:
                async for event in events:
                    self._post(TurnEvent(live, event))
                    if isinstance(event, Failed):
                        failed = _with_way_out(event)
        except asyncio.CancelledError:
            failed = Failed("cancelled", tr("Not sent: it was taken back while it waited."))
            raise
        finally:
            self._post(TurnEnded(live, failed))

    def _asked(self, live: LiveAnswer) -> AsyncGenerator[Event, None]:
        session_id, request = live.session_id, live.request
        sampling = self._chosen_sampling(session_id)
        if request.kind == "regenerate":
            return self._manager.regenerate(session_id, sampling, answer_id=request.message_id)
        if request.kind == "continue":
            return self._manager.continue_answer(session_id, sampling)
        return self._manager.send(
            session_id,
            live.question,
            sampling,
            edits=request.message_id,
            verdict=live.verdict,
            attachments=live.attachments,
        )

    def _chosen_sampling(self, session_id: str) -> Sampling:
        """What was chosen for the program; else for the conversation, over what is usual for the model."""
        if self._sampling is not None:
            return self._sampling
        usual = self._recommend(self.model.info) if self.model.info else Sampling()
        try:
            own = self._manager.session(session_id).sampling
        except SessionError:  # sending tells
            return usual
        return own.over(usual) if own else usual

    async def stop(self) -> None:
        """Stop the running answer or opening."""
        try:
            await self._manager.stop()
        except Exception as error:  # noqa: BLE001 - the top of a worker
            self._post(Trouble(tr("The answer could not be stopped: {error}").format(error=error)))


def _with_way_out(failed: Failed) -> Failed:
    """What to tell about a failure, with the way out."""
    if failed.kind == "died":
        way = tr("The next message starts the engine again.")
        return Failed(failed.kind, f"{failed.message} {way}")
    return failed


async def told(events: AsyncIterator[Event]) -> AsyncGenerator[Event, None]:
    """Events as they come; an exception becomes a `Failed`, because each failure must reach the user."""
    try:
        try:
            async for event in events:
                yield event
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()
    except (SessionError, EngineError) as error:
        yield Failed("refused", str(error))
    except Exception as error:  # noqa: BLE001 - the top of a worker
        told = f"{type(error).__name__}: {error}"
        yield Failed("bug", tr("Something went wrong in the program ({error}).").format(error=told))
