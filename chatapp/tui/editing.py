"""A question that is being edited: its text is in the box, and the draft that was there waits."""

from __future__ import annotations

from textual.widgets import Static

from chatapp.texts import tr, tr_later
from chatapp.tui.composer import Composer
from sessions.conversation import Draft, Message

HINT = tr_later("editing: Enter makes another version, Escape gives up")


class Editing:
    """Owner of the hint above the box."""

    def __init__(self, composer: Composer) -> None:
        self.hint = Static(tr(HINT), id="editing", markup=False)
        self.hint.display = False
        self._composer = composer
        self._question: Message | None = None
        self._draft = Draft("")

    @property
    def question_id(self) -> int | None:
        """The question that is edited now."""
        return self._question.id if self._question else None

    def begin(self, question: Message, text: Draft) -> None:
        """Put a text into the box, to be sent in the place of a question's."""
        if self._question is None:
            self._draft = self._composer.content
        self._question = question
        self.hint.display = True
        self._composer.put_message(text)
        self._composer.focus()

    def give_up(self) -> None:
        """Put the draft back that waited; nothing happens where nothing is edited."""
        if self._question is not None:
            self._composer.clear_draft()
            self.end()

    def end(self) -> None:
        """The edited text was taken out of the box: the draft comes back."""
        draft, self._draft, self._question = self._draft, Draft(""), None
        self.hint.display = False
        self._composer.put_back(draft)
