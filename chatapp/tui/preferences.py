"""What a conversation has chosen for itself: its sampling, and what later prompts keep of the reasoning."""

from __future__ import annotations

from chatapp.texts import tr
from chatapp.tui.stage import Stage
from models.reasoning import answer_of
from sessions.conversation import ReasoningPolicy, Session


class Preferences:
    """Writes choices of the conversation on the screen; one without a message gets a row for them."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def choose_sampling(self, preset: str | None) -> None:
        """Answer this conversation by a preset; None: by what its model recommends."""
        stage = self._stage
        session = self._session()
        if session and stage.ask(lambda: stage.manager.choose_sampling(session.id, preset)):
            chosen = tr("The next answers are sampled as the model recommends.")
            if preset:
                chosen = tr("The next answers are sampled by {preset!r}.").format(preset=preset)
            if stage.talk.has_sampling:
                chosen += " " + tr("The sampling given on the command line still wins.")
            stage.tell(chosen)

    def set_reasoning(self, policy: ReasoningPolicy) -> None:
        """Choose whether later prompts contain the reasoning of the answers to come."""
        stage = self._stage
        session = self._session()
        if session and stage.ask(lambda: stage.manager.set_reasoning(session.id, policy)):
            if policy == "keep":
                stage.tell(tr("Later prompts keep the reasoning of the answers to come."))
            else:
                stage.tell(tr("Later prompts leave out the reasoning of the answers to come."))

    def copy_answer(self) -> None:
        """Copy the last answer, without its reasoning."""
        stage = self._stage
        answers = [answer_of(message.text) for message in stage.messages() if message.role == "assistant"]
        if answers and answers[-1].strip():
            stage.app.copy_to_clipboard(answers[-1])
        else:
            stage.warn(tr("There is no answer to copy yet."))

    def _session(self) -> Session | None:
        stage = self._stage
        if session := stage.session():
            return session
        session = stage.ask(stage.manager.new)
        if session is not None:
            stage.adopt(session.id)
        return session
