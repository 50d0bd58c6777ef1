"""From the draft to the end of its answer: sending, stopping, and what is left on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from textual.worker import Worker

from chatapp.console import lost_notice
from chatapp.slash import as_message
from chatapp.texts import tr
from chatapp.tui.composer import LONGEST_DRAFT, too_long_notice
from chatapp.tui.limit import Limit
from chatapp.tui.live import SEND, LiveAnswer, Notice, Request
from chatapp.tui.stage import UNSAVED, Stage
from chatapp.tui.switching import Switching
from chatapp.tui.taskcheck import TaskCheck
from chatapp.tui.transcript import spoken
from models.engine import Event, Failed, Finished, Prepared
from models.errors import PromptTooLong
from sessions.conversation import Draft, Message
from sessions.policy import Verdict


class Sending:
    """Owner of the running turns' workers."""

    def __init__(self, stage: Stage, limit: Limit, tasks: TaskCheck, switching: Switching) -> None:
        self._stage = stage
        self._tasks = tasks
        self._limit = limit
        self._switching = switching
        self._workers: dict[str, Worker[None]] = {}

    async def send(self, draft: Draft, typed: str) -> None:
        """Send a draft, unless an answer is being written in this conversation or the context has no room for it.

        `typed` is what stands for it in the box: what is typed behind that from now on is the next one.
        """
        stage, text = self._stage, draft.text
        if not text.strip():
            return
        if len(text) > LONGEST_DRAFT:
            stage.warn(too_long_notice())
            return
        session = stage.session()
        if reason := stage.why_held(session):
            stage.warn(f"{reason.replace(' · ', '. ')}.")
            return
        if stage.current in stage.talk.live:
            stage.warn(tr("This conversation is being answered. Escape stops the answer."))
            return
        edited = stage.editing.question_id
        if self._tasks.is_wanted(stage.current):
            stage.converse(self._send_if_it_belongs(stage.current, draft, typed, edited))
        elif self._limit.may_be_short(stage.current, text, edited):
            stage.converse(self._send_if_it_fits(stage.current, draft, typed, edited))
        else:
            await self._begin(draft, typed, edits=edited)

    async def _send_if_it_belongs(self, session_id: str, draft: Draft, typed: str, edited: int | None) -> None:
        verdict = await self._tasks.verdict(session_id, draft, edits=edited)
        if verdict is None:
            return
        if self._limit.may_be_short(session_id, draft.text, edited):
            await self._send_if_it_fits(session_id, draft, typed, edited, verdict)
        elif self._is_unchanged(session_id, typed, edited):
            await self._begin(draft, typed, edits=edited, verdict=verdict)
        elif self._stage.is_standing:
            self._stage.warn(tr("Not sent: the message was changed while it was looked at. Enter sends it."))

    async def _send_if_it_fits(
        self, session_id: str, draft: Draft, typed: str, edited: int | None, verdict: Verdict | None = None
    ) -> None:
        if not await self._limit.fits(session_id, draft.text, edited):
            return
        if self._is_unchanged(session_id, typed, edited):
            await self._begin(draft, typed, edits=edited, verdict=verdict)
        elif self._stage.is_standing:
            self._stage.warn(tr("Not sent: the message was changed while its tokens were counted. Enter sends it."))

    async def _offer_and_send(self, session_id: str, draft: Draft, failed: Failed, edited: int | None) -> None:
        """The engine found a message too long that is in the box again."""
        composer = self._stage.composer
        typed = composer.text
        can_be_sent = await self._limit.offer_after_failure(session_id, draft.text, failed.message, edited)
        is_unchanged = self._is_unchanged(session_id, typed, edited)
        if can_be_sent and is_unchanged and as_message(composer.content, typed) == draft:
            await self._begin(draft, typed, edits=edited)

    async def _offer_and_go_on(self, live: LiveAnswer, failed: Failed) -> None:
        """The context has no room for more of an answer."""
        stage = self._stage
        if not await self._limit.offer_after_failure(live.session_id, "", failed.message):
            return
        messages = spoken(stage.messages())
        if stage.is_standing and stage.current == live.session_id and len(messages) > 1:
            question, answer = messages[-2:]
            await self.go_on(question, live.request, begun=answer)

    def _is_unchanged(self, session_id: str, typed: str, edited: int | None) -> bool:
        """True if the screen still shows the draft that was asked about; its conversation may have got a row."""
        stage = self._stage
        is_shown = (stage.current == session_id or session_id == UNSAVED) and stage.editing.question_id == edited
        return stage.is_standing and is_shown and stage.composer.text.startswith(typed)

    async def go_on(self, question: Message, request: Request, *, begun: Message | None = None) -> None:
        """Have a stored question answered once more, or let its answer (`begun`) go on."""
        stage = self._stage
        n_before = _n_before(spoken(stage.messages()), question.id)
        live = stage.talk.begin(stage.current, question.text, n_before, request)
        if begun is not None:
            live.begin_with(begun.text, begun.stats.reasoning_tokens if begun.stats else None)
        await self._start(live)

    async def _begin(
        self, draft: Draft, typed: str, *, edits: int | None = None, verdict: Verdict | None = None
    ) -> None:
        stage = self._stage
        if stage.current == UNSAVED:
            session = stage.ask(stage.manager.new)
            if session is None:
                return
            stage.talk.forget(UNSAVED)
            stage.drafts.keep(UNSAVED, Draft(""))
            stage.current = session.id
            stage.leasing.enter(session.id)
        if edits is None:  # until the question is stored, which may have to wait
            stage.drafts.keep(stage.current, stage.composer.content)
        n_before = _n_before(spoken(stage.messages()), edits)
        live = stage.talk.begin(stage.current, draft.text, n_before, Request(message_id=edits) if edits else SEND)
        live.attachments, live.verdict = draft.attachments, verdict
        stage.composer.take(typed)
        if edits is not None:
            stage.editing.end()
        await self._start(live)

    async def _start(self, live: LiveAnswer) -> None:
        stage = self._stage
        self._workers[live.session_id] = stage.work(stage.talk.turn(live), "turns", exclusive=False)
        await stage.transcript.add_question(live)
        stage.refresh_sidebar()
        stage.app.refresh_bindings()

    async def take(self, live: LiveAnswer, event: Event) -> None:
        """A turn went on, on the screen or behind it."""
        stage = self._stage
        is_first = not live.has_begun
        stage.talk.apply_turn(live, event)
        stage.needs_paint = True
        if is_first:
            stage.drafts.sent(live.session_id, live.question)
            stage.refresh_title(stage.session())
            stage.refresh_sidebar()
        if isinstance(event, Prepared) and event.lost_characters:
            stage.app.notify(lost_notice(event.lost_characters), severity="warning", markup=False)
        if isinstance(event, Finished):
            await self.end(live, None)

    async def end(self, live: LiveAnswer, failed: Failed | None) -> None:
        """The answer is complete, or there is none; told twice, once with the answer and once when KV is written."""
        stage = self._stage
        failure = failed.message if failed else None
        if not stage.talk.end(live, failure) or not stage.is_standing:
            return
        if live.session_id == stage.current:
            messages = spoken(stage.messages())
            await stage.transcript.settle(messages, Notice(failure) if failure else None)
            if failed and live.request.kind == "continue" and failed.kind == PromptTooLong.kind:
                stage.converse(self._offer_and_go_on(live, failed))
            elif failed and not _is_answered(live, messages):
                self._put_back(live, messages)
                self._offer_ways(live, failed)
        elif failure:
            if live.request == SEND:
                stage.drafts.offer(live.session_id, Draft(live.question, live.attachments))
            stage.warn(tr("In another conversation: {failure}").format(failure=failure))
        stage.composer.recount()
        stage.refresh()

    def _put_back(self, live: LiveAnswer, messages: Sequence[Message]) -> None:
        """Return what was written to the box; an edited question is edited again, if it is still there."""
        stage = self._stage
        edited = next((one for one in messages if one.id == live.request.message_id and one.role == "user"), None)
        if live.request.kind == "send" and edited is not None:
            stage.editing.begin(edited, Draft(live.question, live.attachments))
        elif live.request.kind == "send" and not stage.composer.text.strip():
            stage.composer.put_message(Draft(live.question, live.attachments))

    def _offer_ways(self, live: LiveAnswer, failed: Failed) -> None:
        """Some failures have ways out that the user chooses from."""
        if failed.kind == PromptTooLong.kind and live.request.kind == "send":
            draft = Draft(live.question, live.attachments)
            # An edit that was stored is no edit any more: the branch that is shown is its own.
            edited = self._stage.editing.question_id
            self._stage.converse(self._offer_and_send(live.session_id, draft, failed, edited))
        else:
            self._switching.offer_if_needed(live.session_id, failed)

    def stop(self) -> None:
        """Stop the answer, or the opening, of this conversation; a waiting message is taken back."""
        stage = self._stage
        live = stage.talk.live.get(stage.current)
        if live is not None and live.is_queued:
            self._workers[stage.current].cancel()
            return
        if live is not None:
            live.stop_asked = True
        stage.work(stage.talk.stop(), "stop")


def _is_answered(live: LiveAnswer, messages: Sequence[Message]) -> bool:
    """True if the branch that is shown ends in an answer to what was asked, whole or not."""
    if live.request.kind == "send" and any(message.id == live.request.message_id for message in messages):
        return False  # the edited question is still there: the new one was never stored
    last = messages[-1] if len(messages) > live.n_before else None
    return last is not None and last.role == "assistant" and last.status != "failed"


def _n_before(messages: Sequence[Message], question_id: int | None) -> int:
    """How many messages stand before a question; before a new one, all."""
    return next((at for at, message in enumerate(messages) if message.id == question_id), len(messages))
