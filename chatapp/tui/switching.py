"""Which model a conversation goes on with, when its own cannot be had or the user wants another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

from chatapp.modellist import MOST_STAND_INS, ModelChoice, stand_ins
from chatapp.safe import clean_line
from chatapp.texts import tr
from chatapp.tui.live import Notice
from chatapp.tui.messages import OpenEnded, OpenEvent
from chatapp.tui.stage import UNSAVED, Stage
from chatapp.tui.talk import told
from models.engine import Event, Failed, Loaded
from sessions.loading import MODEL_GONE, NO_MEMORY, SERVER_GONE

Models = Callable[[], list[ModelChoice]]
"""Lists the models on this machine; reads files, so it is called in a thread."""


class Switching:
    """Asks, and exchanges the model. `models` None offers none."""

    def __init__(self, stage: Stage, models: Models | None) -> None:
        self._stage = stage
        self._models = models

    @property
    def can_choose(self) -> bool:
        """True if there is a list of models to choose from."""
        return self._models is not None

    def offer_if_needed(self, session_id: str, failed: Failed) -> bool:
        """Offer ways on if a conversation's own model cannot be had; False if that is not what went wrong."""
        if failed.kind not in (MODEL_GONE, NO_MEMORY, *SERVER_GONE) or session_id != self._stage.current:
            return False
        self._stage.converse(self._offer(session_id, failed))
        return True

    @property
    def models(self) -> Models | None:
        """What lists the models on this machine."""
        return self._models

    def use_for_new(self, choice: ModelChoice, then: Callable[[], object]) -> None:
        """Let new conversations use a model; `then` is called once it is loaded, failures are told."""
        self._stage.work(self._use(UNSAVED, choice, then=then), "switch", exclusive=False)

    def choose(self) -> None:
        """Let the user choose another model for the conversation on the screen."""
        stage = self._stage
        if stage.current in stage.talk.live:
            stage.warn(tr("This conversation is being answered. Escape stops the answer."))
        elif self._models is not None:
            stage.converse(self._choose(stage.current))

    async def _offer(self, session_id: str, failed: Failed) -> None:
        from chatapp.tui.dialogs import Way, WaysScreen

        stage = self._stage
        ways = [Way("read", tr("Read only"), tr("The conversation can be read; nothing is loaded."))]
        if self._models is not None:
            sentence = tr("The text stays; the new model reads it all once.")
            ways.append(Way("other", tr("Use another model"), sentence))
        if failed.kind == NO_MEMORY:
            ways.append(Way("anyway", tr("Load anyway"), tr("This may be slow, or end other programs.")))
        in_place: dict[str, ModelChoice] = {}
        if failed.kind in SERVER_GONE:
            ways.append(Way("anyway", tr("Try again"), tr("The server may be there by now.")))
            in_place = {f"in place {n}": choice for n, choice in enumerate(await self._stand_ins())}
            for name, choice in in_place.items():
                label = tr("Let {model} go on").format(model=clean_line(choice.name, 60))
                ways.append(Way(name, label, tr("The text stays; the new model reads it all once.")))
        while True:
            title = tr("The model does not fit") if failed.kind == NO_MEMORY else tr("The model is gone")
            if failed.kind in SERVER_GONE:
                title = tr("The server cannot be used")
            chosen = await stage.app.push_screen_wait(WaysScreen(title, failed.message, ways))
            if chosen == "other":
                if await self._choose(session_id):
                    return
                continue
            if chosen in in_place:
                self._stage.work(self._use(session_id, in_place[chosen]), "switch", exclusive=False)
            elif chosen == "anyway":
                stage.release(session_id)
                stage.make_resident(session_id, force=True)
            elif chosen == "read":
                way = stage.keys.fill(tr("Read only: its model is not loaded · {palette} uses another one"))
                stage.hold(session_id, way)
            return

    async def _stand_ins(self) -> list[ModelChoice]:
        """What can go on in place of the server that the conversation on the screen belongs to."""
        if self._models is None:
            return []
        session = self._stage.session()
        own = Path(session.model.path) if session and session.model else None
        return stand_ins(await asyncio.to_thread(self._models), own)[:MOST_STAND_INS]

    async def _choose(self, session_id: str) -> bool:
        """Show the models and use the chosen one; False if none was chosen."""
        from chatapp.tui.dialogs import ModelsScreen

        assert self._models is not None, "offered only where there is a list"
        title = tr("Model of this conversation") if session_id else tr("Model of new conversations")
        choice = await self._stage.app.push_screen_wait(ModelsScreen(title, self._models))
        if choice is None:
            return False
        # Not among the openings: these end when another conversation is shown.
        self._stage.work(self._use(session_id, choice), "switch", exclusive=False)
        return True

    async def _use(
        self,
        session_id: str,
        choice: ModelChoice,
        *,
        force: bool = False,
        then: Callable[[], object] = lambda: None,
    ) -> None:
        stage = self._stage
        stage.talk.readings(session_id).opening(stage.monotonic(), queued=bool(stage.talk.live))
        loaded: Loaded | None = None
        failed: Failed | None = None
        async with aclosing(self._switched(session_id, choice, force=force)) as events:
            async for event in events:
                if isinstance(event, Failed):
                    failed = event
                    continue
                loaded = event if isinstance(event, Loaded) else loaded
                stage.app.post_message(OpenEvent(session_id, event))
        stage.app.post_message(OpenEnded(session_id, None))
        if failed is not None and failed.kind == NO_MEMORY and await self._is_wanted_anyway(failed):
            await self._use(session_id, choice, force=True, then=then)
        elif failed is not None:
            unchanged = tr("Nothing was changed.")
            stage.warn(f"{failed.message} {unchanged}")
        elif loaded is not None:
            await self._changed(session_id, loaded)
            then()

    def _switched(self, session_id: str, choice: ModelChoice, *, force: bool) -> AsyncGenerator[Event, None]:
        return told(self._stage.manager.switch_model(session_id or None, choice.path, force=force))

    async def _is_wanted_anyway(self, failed: Failed) -> bool:
        from chatapp.tui.dialogs import Way, WaysScreen

        ways = [
            Way("cancel", tr("Cancel"), tr("The model stays as it is.")),
            Way("anyway", tr("Load anyway"), tr("This may be slow, or end other programs.")),
        ]
        screen = WaysScreen(tr("The model does not fit"), failed.message, ways)
        return await self._stage.app.push_screen_wait(screen) == "anyway"

    async def _changed(self, session_id: str, loaded: Loaded) -> None:
        stage = self._stage
        name = clean_line(loaded.info.name, 60)
        if session_id == UNSAVED:
            stage.tell(tr("New conversations use {model}.").format(model=name))
            return
        stage.release(session_id)
        sentence = tr("This conversation now uses {model}: its text stays, its KV starts anew.")
        notice = Notice(sentence.format(model=name), is_failure=False)
        stage.talk.notices[session_id] = notice
        if stage.current == session_id:
            await stage.transcript.say(notice)
            stage.make_resident(session_id)
        stage.refresh()
