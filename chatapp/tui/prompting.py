"""Gives conversations their system prompt: an empty one at once, one with messages in a fork."""

from __future__ import annotations

from chatapp.safe import clean_line
from chatapp.texts import tr
from chatapp.tui.stage import UNSAVED, Stage
from sessions.conversation import Draft, Session


class Prompting:
    """Asks for the prompt of the conversation on the screen, and shows the conversation that has it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def ask(self, given: str) -> None:
        """Take a text or `@NAME` as the prompt; without one, ask."""
        if self._stage.current in self._stage.talk.live:
            self._stage.warn(tr("This conversation is being answered. Escape stops the answer."))
        else:
            self._stage.converse(self._ask(given))

    async def _ask(self, given: str) -> None:
        from chatapp.tui.systemscreen import SystemChoice, SystemScreen
        from sessions.lint import find_volatile

        stage = self._stage
        session = stage.session()
        is_fork = any(message.role != "system" for message in stage.messages())
        if given:
            text = stage.ask(lambda: stage.manager.prompts.resolve(given))
            if text is None:
                return
            choice: SystemChoice | None = SystemChoice(text, "")
        else:
            prompts = stage.ask(stage.manager.prompts.all) or []
            own = (session.system if session else None) or ""
            choice = await stage.app.push_screen_wait(SystemScreen(own, prompts, is_fork=is_fork))
        if choice is None or not stage.is_standing:
            return
        text = choice.text
        changed = stage.ask(lambda: self._given(session, text))
        if changed is None or (session is not None and changed.id == session.id and session.system == text):
            return
        await self._show(session, changed, choice.moved, is_fork=is_fork)
        if given and (found := find_volatile(text)):  # the screen says so while the text is written
            sentence = tr(
                "{reason}: {text}. It changes from run to run, so that nothing of the conversation can be reused: "
                "/system without a text moves it out."
            )
            reason = clean_line(found[0].reason, 80).capitalize()
            stage.app.notify(
                sentence.format(reason=reason, text=clean_line(found[0].text, 40)),
                severity="warning",
                timeout=10,
                markup=False,
            )

    def _given(self, session: Session | None, text: str) -> Session:
        manager = self._stage.manager
        if session is None:
            return manager.new(system=text)
        return manager.change_system(session.id, text)

    async def _show(self, before: Session | None, now: Session, moved: str, *, is_fork: bool) -> None:
        stage = self._stage
        draft = stage.composer.content
        if before is not None and before.id != now.id and not is_fork:
            stage.ask(lambda: stage.manager.delete_forever(before.id))  # it held another prompt and nothing else
        if before is None:
            stage.talk.forget(UNSAVED)
            stage.drafts.keep(UNSAVED, Draft(""))
        if now.id != stage.current:
            stage.composer.clear_draft()
            stage.drafts.keep(now.id, draft)
            stage.current = now.id if before is None else stage.current
            await stage.show(now.id)
        else:
            await stage.show_messages()
        if moved:
            stage.composer.move_cursor((0, 0))
            stage.composer.insert_text(moved + "\n\n")
        if before is None:
            stage.tell(tr("This conversation has the system prompt; it is shown above the first message."))
        if is_fork:
            stage.tell(tr("This is the fork with the new system prompt; the old conversation is in the list."))
