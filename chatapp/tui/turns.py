"""The widgets of one turn: the question, the stored or growing answer, how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from textual.app import ComposeResult
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from chatapp.safe import clean
from chatapp.texts import tr, tr_later
from chatapp.tui.attached import MAX_UNFOLDED, Folded
from chatapp.tui.chips import ChipLine
from chatapp.tui.column import Column
from chatapp.tui.live import LiveAnswer
from chatapp.tui.markdown_text import MarkdownText
from chatapp.tui.messages import PartAsked
from chatapp.tui.thinking import LIVE, Folds, Thought, ThoughtBlock
from models.reasoning import answer_of, reasoning_of
from sessions.attachments import spans_in
from sessions.conversation import Attachment, Message, MessageStatus, Version

STATUS_WORDS: dict[MessageStatus, str] = {
    "stopped": tr_later("stopped by you"),
    "cut": tr_later("cut: the token limit or the context was reached"),
    "interrupted": tr_later("interrupted: the program or the engine ended here"),
    "failed": tr_later("failed · send the message again"),
}


GO_ON = tr_later("{previous}, then {message.continue} lets the answer go on")
"""Below an answer that can go on, while nothing follows it."""


def shown(text: str) -> str:
    """A stored text as it may reach the terminal, with the line ends that Markdown knows."""
    return clean(text)


def version_words(version: Version | None) -> str:
    """`2/3`, and how the others are shown; nothing for a message that has one version."""
    if version is None:
        return ""
    return tr("{n}/{n_all} · ← → other versions").format(n=version.number, n_all=len(version.ids))


def status_line(message: Message, version: Version | None) -> str:
    """How an answer ended, if it is not whole, and which version it is."""
    return " · ".join(part for part in (version_words(version), tr(STATUS_WORDS.get(message.status, ""))) if part)


class UserText(Static):
    """A message of the user, plain."""

    def __init__(
        self,
        text: str,
        *,
        attachments: Sequence[Attachment] = (),
        is_failed: bool = False,
        version: Version | None = None,
    ) -> None:
        super().__init__("", markup=False, classes="user")
        if not attachments and len(text) > MAX_UNFOLDED:  # written elsewhere: by a command, or another program
            attachments = spans_in(text, [(tr("long message"), 0, len(text))])
        self._folded = Folded(text, attachments, "unfold")
        self._version = version
        self._is_failed = is_failed
        self.tell(version)

    def on_mount(self) -> None:
        """Have counted what is attached."""
        for number, part in enumerate(self._folded.parts):
            self.post_message(PartAsked(part.text, partial(self._counted, number)))

    def _counted(self, number: int, n_tokens: int) -> None:
        self._folded.counted(number, n_tokens)
        self.tell(self._version)

    @property
    def has_attachments(self) -> bool:
        """True if something can be unfolded."""
        return bool(self._folded.parts)

    def action_unfold(self, number: int) -> None:
        """Unfold an attachment or fold it; a large one is shown in a window of its own."""
        if self._folded.toggle(number):
            self.tell(self._version)
        else:
            self.post_message(ChipLine.Viewed(self._folded.chip(number)))

    def unfold_all(self) -> None:
        """Unfold what is attached, or fold it; if that is one thing, as a click does."""
        if len(self._folded.parts) == 1:
            self.action_unfold(0)
        else:
            self._folded.toggle_all()
            self.tell(self._version)

    def tell(self, version: Version | None) -> None:
        """Show which version of the question this is."""
        self._version = version
        line = version_words(version)
        self.update(
            Content.assemble(
                self._folded.content(),
                ("\n" + tr("not answered"), "italic $text-error") if self._is_failed else "",
                ("\n" + line, "italic $foreground 70%") if line else "",
            )
        )


class SystemLine(UserText):
    """The system prompt as one folded line above the first message."""

    def __init__(self, text: str) -> None:
        super().__init__(text, attachments=spans_in(text, [(tr("system prompt"), 0, len(text))]))
        self.set_classes("system")


class Answer(Column):
    """A stored answer: its reasoning, its text, and a line on how it ended if it is not whole."""

    def __init__(self, message: Message, folds: Folds, version: Version | None) -> None:
        super().__init__(classes="answer")
        self._message = message
        self._folds = folds
        self._version = version

    def compose(self) -> ComposeResult:
        """The reasoning, the text, the status."""
        if thought := stored_thought(self._message, self._folds):
            yield ThoughtBlock(self._folds, self._message.id, thought)
        yield MarkdownText(shown(answer_of(self._message.text)))
        if line := status_line(self._message, self._version):
            yield Static(line, markup=False, classes="status")


class GrowingAnswer(Column):
    """The answer that is being written; `paint` brings it up to date, `finish` draws the stored text once."""

    def __init__(self, live: LiveAnswer, folds: Folds) -> None:
        super().__init__(classes="answer")
        self.live = live
        self._folds = folds
        self._n_shown = -1
        self._n_thought = -1
        self._said: str | None = None
        self._thought = ThoughtBlock(folds, LIVE)
        self._text = MarkdownText()
        self._status = Static("", markup=False, classes="status")

    def compose(self) -> ComposeResult:
        """The reasoning, the text, the status."""
        yield self._thought
        yield self._text
        yield self._status

    def paint(self) -> bool:
        """Bring the screen up to the text so far; return whether there is more of it."""
        self._paint_thought()
        self._say_waiting()
        text = shown(self.live.answer)
        if len(text) == self._n_shown:
            return False
        self._n_shown = len(text)
        self._text.grow(text)
        return bool(text)

    def _paint_thought(self) -> None:
        thought = self.live.thought
        if thought is None:
            return
        state = len(thought.text) * 2 + thought.is_open
        if state != self._n_thought:
            self._n_thought = state
            self._thought.tell(thought)

    def finish(self, message: Message, version: Version | None) -> None:
        """Draw the whole stored text and say how it ended, and which version it is."""
        thought = self.live.thought
        self._folds.settle(message.id, thought.seconds if thought else None)
        self._thought.settle(message.id, stored_thought(message, self._folds))
        self._text.set(shown(answer_of(message.text)))
        line = status_line(message, version)
        self._status.update(line)
        self._status.display = bool(line)

    def _say_waiting(self) -> None:
        words = ""
        if self.live.stop_asked:
            words = tr("stopping…")
        elif self.live.is_queued:
            words = tr("queued: starts when the running answer is complete")
        elif self.live.note:
            words = self.live.note
        elif not self.live.has_text:
            words = "…"
        elif self.live.request.kind == "continue" and not self.live.has_begun:
            words = tr("goes on…")
        if self._said != words:
            self._said = words
            self._status.update(clean(words))
            self._status.display = bool(words)


class Edge(Static):
    """A line at the border of the mounted window; a click mounts more."""

    def __init__(self, name: str) -> None:
        super().__init__("", markup=False, id=name, classes="edge")
        self.display = False

    def tell(self, n_hidden: int, sentence: str) -> None:
        """Show how many messages are hidden beyond this border, for which there is a place `{n}` in the sentence."""
        self.display = n_hidden > 0
        if n_hidden:
            self.update(clean(sentence.format(n=n_hidden)))


def stored_thought(message: Message, folds: Folds) -> Thought | None:
    """The reasoning of a stored answer, None where it has none; an open end is the answer's end."""
    text = reasoning_of(message.text)
    if not text:
        return None
    n_tokens = message.stats.reasoning_tokens if message.stats else None
    return Thought(text, n_tokens or None, folds.seconds(message.id), is_open=False)


def turn_widget(message: Message, folds: Folds, version: Version | None) -> Widget:
    """The widget of a stored message."""
    if message.role == "assistant":
        return Answer(message, folds, version)
    return UserText(
        message.text, attachments=message.attachments, is_failed=message.status == "failed", version=version
    )
