"""What is offered when a message does not fit into the context: more context, a summary, fewer turns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from chatapp.texts import tr
from chatapp.tui import words
from chatapp.tui.stage import UNSAVED, Stage
from chatapp.tui.talk import told
from sessions.history import prompt_messages
from sessions.room import Room, tokens_of

if TYPE_CHECKING:
    from chatapp.tui.dialogs import Way

_GLUE_BYTES = 16
"""What a vocabulary may add to a text before it cuts it, in bytes."""


class Limit:
    """Looks whether messages fit, and asks what is to be done if one does not. Never drops anything by itself."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def may_be_short(self, session_id: str, text: str, edits: int | None = None) -> bool:
        """True if the draft might not fit, judged from its bytes: no token spells less than one of them.

        Here and below, `edits` is the question whose place the draft is to take.
        """
        return self._is_short(session_id, len(text.encode("utf-8", "replace")) + _GLUE_BYTES, edits)

    async def n_tokens(self, text: str) -> int | None:
        """Tokens of a draft, None if nobody can count now."""
        count = self._stage.composer.counter
        return await asyncio.to_thread(count, text) if count else await self._stage.manager.count(text)

    async def fits(self, session_id: str, text: str, edits: int | None = None) -> bool:
        """True if the draft can be sent; what nobody can count now is left to the engine."""
        n_tokens = await self.n_tokens(text)
        if n_tokens is None or not self._is_short(session_id, n_tokens, edits):
            return True
        return await self.offer(session_id, text, n_tokens, edits=edits)

    async def offer_after_failure(self, session_id: str, text: str, sentence: str, edits: int | None = None) -> bool:
        """The engine found the draft too long, in this sentence; True if it can be sent now."""
        room = self._room(session_id, 0, edits)
        if room is None:
            return False
        n_tokens = await self.n_tokens(text) or 0
        # What the engine says is true, however few tokens were counted here.
        return await self.offer(session_id, text, max(n_tokens, room.n_ctx - room.n_kept + 1), sentence, edits=edits)

    async def offer(
        self, session_id: str, text: str, n_tokens: int, sentence: str | None = None, *, edits: int | None = None
    ) -> bool:
        """Ask what is to be done with a draft that does not fit; True if it can be sent now.

        `sentence` says why; None: with the numbers counted here.
        """
        stage = self._stage
        room = self._room(session_id, n_tokens, edits)
        if room is None:
            return False
        from chatapp.tui.dialogs import WaysScreen

        while True:
            # A summary would hold what follows the edited question, which the new branch is to be without.
            may_sum_up = bool(session_id) and edits is None
            can_summarize = may_sum_up and bool(stage.ask(lambda: stage.manager.can_summarize(session_id)))
            ways = list(self._ways(room, can_summarize=can_summarize, is_edit=edits is not None))
            screen = WaysScreen(tr("The context is full"), sentence or _sentence(room), ways)
            match await stage.app.push_screen_wait(screen):
                case "larger":
                    return self._enlarge(session_id, n_tokens, edits)
                case "summary" if not await self._go_on_with_summary(session_id, text):
                    continue
                case "remove" if not await self._go_on_without_turns(session_id, room, edits):
                    continue
            return False

    def _room(self, session_id: str, n_tokens: int, edits: int | None) -> Room | None:
        return self._stage.ask(lambda: self._stage.manager.room(session_id or None, n_tokens, edits=edits))

    def _is_short(self, session_id: str, n_tokens: int, edits: int | None) -> bool:
        session = self._stage.ask(lambda: self._stage.manager.session(session_id)) if session_id else None
        info = self._stage.talk.model.info
        if session and info:
            is_other = session.model is not None and session.model.weights != info.weights
            if is_other or (session.n_ctx or 0) > info.n_ctx:
                return False  # another model, or a larger context, is loaded before the message is read
        room = self._room(session_id, n_tokens, edits)
        return room is not None and room.is_short

    def _ways(self, room: Room, *, can_summarize: bool, is_edit: bool) -> Iterable[Way]:
        from chatapp.tui.dialogs import Way

        if room.n_ctx_max > room.n_ctx:
            yield Way(
                "larger",
                tr("Larger context ({n} tokens, needs {size} more)").format(
                    n=words.count(room.n_ctx_max), size=words.size(room.more_bytes)
                ),
                tr("The model is loaded again, then the message is sent."),
            )
        if room.n_kept and can_summarize:
            yield Way(
                "summary",
                tr("New conversation with a summary"),
                tr("The model sums up this one; the summary and your message wait in the box, for you to edit."),
            )
        if room.n_kept and is_edit:
            yield Way(
                "remove",
                tr("Remove turns"),
                tr("A copy up to this message without the turns you choose, and the edited text."),
            )
        elif room.n_kept:
            yield Way(
                "remove",
                tr("Remove turns"),
                tr("A copy of this conversation without the turns you choose, and your message."),
            )
        edit_stays = tr("The edited text stays in the box; nothing is changed.")
        yield Way("cancel", tr("Cancel"), edit_stays if is_edit else tr("Your message stays in the box."))

    def _enlarge(self, session_id: str, n_tokens: int, edits: int | None) -> bool:
        stage = self._stage
        if session_id == UNSAVED:
            session = stage.ask(stage.manager.new)
            if session is None:
                return False
            stage.adopt(session.id)
            session_id = session.id
        return stage.ask(lambda: stage.manager.enlarge(session_id, n_tokens, edits=edits)) is not None

    async def _go_on_with_summary(self, session_id: str, text: str) -> bool:
        from chatapp.tui.summary import SummaryScreen

        stage = self._stage
        summary = await stage.app.push_screen_wait(
            SummaryScreen(lambda: told(stage.manager.summarize(session_id)), stage.monotonic)
        )
        if summary is None:
            return False
        opening = stage.ask(lambda: stage.manager.continuation(session_id, summary))
        if opening is None:
            return False
        stage.talk.forget(UNSAVED)
        stage.composer.clear_draft()
        # A draft that waits for a new conversation already is kept, behind this one.
        waiting = stage.drafts.take(UNSAVED)
        await stage.show(UNSAVED)
        stage.composer.begin_with(opening, text, *([waiting] if waiting else []))
        return True

    async def _go_on_without_turns(self, session_id: str, room: Room, edits: int | None) -> bool:
        from chatapp.tui.dialogs import TurnsScreen, turn_rows

        stage = self._stage
        shown = [message for message in stage.messages() if edits is None or message.id < edits]
        messages = [m for m in prompt_messages(shown) if m.role != "system"]
        turns = [
            (question.id, question.text, tokens_of(question) + tokens_of(answer))
            for question, answer in pairwise(messages)
            if question.role == "user"
        ]
        without = await stage.app.push_screen_wait(TurnsScreen(turn_rows(turns), room.n_needed - room.n_ctx))
        if without is None:
            return False
        through = None if edits is None else shown[-1].id
        fork = stage.ask(lambda: stage.manager.fork(session_id, through=through, without=without))
        if fork is None:
            return False
        draft = stage.composer.content
        if edits is None:
            stage.composer.clear_draft()
        else:
            stage.editing.give_up()  # the draft that waited behind the edit stays with its conversation
        stage.drafts.keep(fork.id, draft)
        await stage.show(fork.id)
        return True


def _sentence(room: Room) -> str:
    if not room.n_kept:
        return tr(
            "The message and an answer need {needed} tokens, the context has {context}. "
            "Nothing was sent: a shorter message fits."
        ).format(needed=words.count(room.n_needed), context=words.count(room.n_ctx))
    return tr(
        "The conversation takes {kept} tokens; with your message and an answer it needs {needed}, "
        "the context has {context}. Nothing was sent."
    ).format(kept=words.count(room.n_kept), needed=words.count(room.n_needed), context=words.count(room.n_ctx))
