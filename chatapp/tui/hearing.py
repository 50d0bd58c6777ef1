"""What is heard of the model and of openings: a load, a history made resident, the counter of the box."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from chatapp.texts import tr
from chatapp.tui.composer import Count
from chatapp.tui.limit import Limit
from chatapp.tui.live import Notice
from chatapp.tui.messages import CountAsked
from chatapp.tui.stage import Stage
from chatapp.tui.switching import Switching
from models.engine import Event, Failed, Loaded, ModelInfo

MakeCounter = Callable[[ModelInfo], Count | None]
"""Makes what counts a model's tokens, which blocks for a moment; None if only its engine can."""


class Hearing:
    """Takes the events of the workers that load and open, and brings the window up to them."""

    def __init__(self, stage: Stage, switching: Switching, limit: Limit, make_counter: MakeCounter | None) -> None:
        self._stage = stage
        self._switching = switching
        self._limit = limit
        self._make_counter = make_counter

    def model(self, event: Event) -> None:
        """Loading went on, succeeded or failed."""
        stage = self._stage
        stage.talk.apply_load(event)
        self.follow_model(event)
        if isinstance(event, Failed):
            self._tell_load_failure(event)
        stage.needs_paint = True
        stage.refresh_title(stage.session())

    def _tell_load_failure(self, failed: Failed) -> None:
        stage = self._stage
        if self._switching.offer_if_needed(stage.current, failed):
            # The opening that waits for the model would find out the same, and ask again.
            stage.app.workers.cancel_group(stage.app, "open")
            stage.talk.apply_open(stage.current, None)
        else:
            sentence = tr("The model cannot be used. {reason}").format(reason=failed.message)
            stage.app.call_next(stage.transcript.say, Notice(sentence))

    def opening(self, session_id: str, event: Event) -> None:
        """A history is being made resident."""
        self._stage.talk.apply_open(session_id, event)
        self.follow_model(event)
        self._stage.needs_paint = True

    async def opened(self, session_id: str, failed: Failed | None) -> None:
        """A history is resident, or not: the next message then computes it."""
        stage = self._stage
        stage.talk.apply_open(session_id, None)
        if not stage.is_standing:
            return
        stage.needs_paint = True
        stage.app.refresh_bindings()
        stage.composer.recount()
        if failed is None or stage.current != session_id:
            return
        if not self._switching.offer_if_needed(session_id, failed) and stage.talk.model.failure is None:
            sentence = tr("{reason} The conversation is readable; a message tries again.").format(reason=failed.message)
            await stage.transcript.say(Notice(sentence))

    def follow_model(self, event: Event) -> None:
        """Another model may be there: its name and its counter."""
        if not isinstance(event, Loaded):
            return
        self._stage.refresh_title(self._stage.session())
        if self._make_counter:
            self._stage.work(self._count_with(self._make_counter, event.info), "counter")

    async def _count_with(self, make_counter: MakeCounter, info: ModelInfo) -> None:
        """Let the box count; reading a vocabulary takes a moment that no key should wait for."""
        self._stage.composer.count_with(await asyncio.to_thread(make_counter, info))

    def count(self, asked: CountAsked) -> None:
        """Count a draft that no key can wait for, while nothing else goes on."""
        stage = self._stage
        if not stage.talk.live and stage.readings.activity in ("idle", "failed"):
            stage.work(self._count_draft(asked), "count")

    async def _count_draft(self, asked: CountAsked) -> None:
        n_tokens = await self._limit.n_tokens(asked.text)
        if n_tokens is not None and self._stage.is_standing:
            self._stage.composer.counted(asked.change, n_tokens)
