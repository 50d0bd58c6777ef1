"""One task per conversation: asks before a draft is sent that looks like another task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chatapp.safe import clean, clean_line
from chatapp.texts import tr
from chatapp.tui.messages import DraftSent
from chatapp.tui.stage import UNSAVED, Stage
from sessions.attachments import typed
from sessions.conversation import Draft
from sessions.errors import SessionError
from sessions.policy import Verdict

if TYPE_CHECKING:
    from chatapp.tui.dialogs import Way


class TaskCheck:
    """Judges drafts, and asks what is to be done with one of another task. Never sends or drops anything by itself."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._has_told = False
        self._warmed: str | None = None

    def is_wanted(self, session_id: str) -> bool:
        """True if drafts are judged, and this conversation has a task."""
        return session_id != UNSAVED and self._stage.manager.judging.policy != "off"

    def warm_up(self) -> None:
        """Start the judge while the user writes in a conversation: it takes a second."""
        if self._stage.current != self._warmed and self.is_wanted(self._stage.current):
            self._warmed = self._stage.current
            self._stage.work(self._stage.manager.judging.warm_up(), "judge")

    async def verdict(self, session_id: str, draft: Draft, *, edits: int | None = None) -> Verdict | None:
        """Judge a draft, and ask if need be; None if it is not to be sent here."""
        stage = self._stage
        try:
            verdict = await stage.manager.check(session_id, typed(draft), edits=edits)
        except SessionError as error:
            stage.warn(str(error))
            return None
        match stage.manager.judging.step(verdict):
            case "dialog":
                return verdict if await self._ask(session_id, draft, verdict) else None
            case "hint":
                way = stage.keys.fill(tr("{new} begins a new conversation."))
                stage.app.notify(f"{clean(verdict.reason)} {clean(way)}", timeout=6, markup=False)
        if verdict.kind == "unsure" and verdict.score is None and not self._has_told:
            self._has_told = True
            stage.app.notify(clean(verdict.reason), severity="warning", markup=False)
        return verdict

    async def _ask(self, session_id: str, draft: Draft, verdict: Verdict) -> bool:
        """Ask what becomes of a draft of another task; True if it is to be sent here."""
        from chatapp.tui.dialogs import WaysScreen

        stage = self._stage
        session = stage.ask(lambda: stage.manager.session(session_id))
        if session is None:
            return False
        task = tr("The task here: {task}").format(task=clean_line(session.task, 200))
        sentence = f"{verdict.reason}\n{task}"
        ways = list(_ways(may_keep=stage.manager.may_keep(session_id), has_system=session.system is not None))
        match await stage.app.push_screen_wait(WaysScreen(tr("Another task?"), sentence, ways)):
            case "keep":
                return True
            case "task":
                return await self._change_task(session_id, session.task)
            case "new":
                await self._take_to(UNSAVED, draft)
            case "fork":
                fork = stage.ask(lambda: stage.manager.fork(session_id, system_only=True))
                if fork is not None:
                    await self._take_to(fork.id, draft)
        return False

    async def _change_task(self, session_id: str, task: str) -> bool:
        from chatapp.tui.lines import LineScreen

        stage = self._stage
        hint = tr("What this conversation is for from now on, in one line")
        screen = LineScreen(tr("Task line"), task, hint=hint)
        changed = await stage.app.push_screen_wait(screen)
        if not changed or changed.strip() == task:
            return False
        return stage.did(lambda: stage.manager.set_task(session_id, changed))

    async def _take_to(self, session_id: str, draft: Draft) -> None:
        """Put the draft into the box of another conversation, and send it there."""
        stage = self._stage
        stage.composer.clear_draft()
        if session_id == UNSAVED:
            stage.talk.forget(UNSAVED)
        await stage.show(session_id)
        stage.composer.put_message(draft)
        stage.app.post_message(DraftSent(draft, stage.composer.text))


def _ways(*, may_keep: bool, has_system: bool) -> list[Way]:
    from chatapp.tui.dialogs import Way

    ways = [Way("new", tr("New conversation"), tr("Your message is sent there; this one stays what it is about."))]
    if has_system:
        sentence = tr("Nothing but the system prompt is taken.")
        ways.append(Way("fork", tr("New conversation with this system prompt"), sentence))
    if may_keep:
        ways.append(Way("keep", tr("Keep it here"), tr("Your message is sent in this conversation.")))
    else:
        sentence = tr("Then your message is sent here. The change is recorded.")
        ways.append(Way("task", tr("Change the task line"), sentence))
    return [*ways, Way("cancel", tr("Cancel"), tr("Your message stays in the box."))]
