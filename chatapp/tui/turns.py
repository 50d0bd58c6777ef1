"""The widgets of one turn: the question, the stored or growing answer, how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from markdown_it import MarkdownIt
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Markdown, Static

from chatapp.safe import clean
from chatapp.tui.attached import Folded
from chatapp.tui.blocks import OpenBlock
from chatapp.tui.chips import ChipLine
from chatapp.tui.live import LiveAnswer
from chatapp.tui.messages import PartAsked
from chatapp.tui.thinking import LIVE, Folds, Thought, ThoughtBlock
from models.reasoning import answer_of, reasoning_of
from sessions.attachments import spans_in
from sessions.conversation import Attachment, Message, MessageStatus, Version

STATUS_WORDS: dict[MessageStatus, str] = {
    "stopped": "stopped by you",
    "cut": "cut: the token limit or the context was reached",
    "interrupted": "interrupted: the program or the engine ended here",
    "failed": "failed · send the message again",
}


GO_ON = "Alt+Up, then C lets the answer go on"
"""Below an answer that can go on, while nothing follows it."""


def parser() -> MarkdownIt:
    """Markdown without HTML, so that tags stay visible as text."""
    return MarkdownIt("gfm-like", {"html": False})


def shown(text: str) -> str:
    """A stored text as it may reach the terminal, with the line ends that Markdown knows."""
    return clean(text)


def version_words(version: Version | None) -> str:
    """`2/3`, and how the others are shown; nothing for a message that has one version."""
    return f"{version.number}/{len(version.ids)} · ← → other versions" if version else ""


def status_line(message: Message, version: Version | None) -> str:
    """How an answer ended, if it is not whole, and which version it is."""
    return " · ".join(part for part in (version_words(version), STATUS_WORDS.get(message.status, "")) if part)


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
                ("\nnot answered", "italic $text-error") if self._is_failed else "",
                ("\n" + line, "italic $foreground 60%") if line else "",
            )
        )


class SystemLine(UserText):
    """The system prompt as one folded line above the first message."""

    def __init__(self, text: str) -> None:
        super().__init__(text, attachments=spans_in(text, [("system prompt", 0, len(text))]))
        self.set_classes("system")


class Answer(Vertical):
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
        yield Markdown(shown(answer_of(self._message.text)), parser_factory=parser, open_links=False)
        if line := status_line(self._message, self._version):
            yield Static(line, markup=False, classes="status")


class GrowingAnswer(Vertical):
    """The answer that is being written; `paint` brings it up to date, `finish` draws the stored text once."""

    def __init__(self, live: LiveAnswer, folds: Folds) -> None:
        super().__init__(classes="answer")
        self.live = live
        self._folds = folds
        self._blocks = OpenBlock()
        self._n_rendered = 0
        self._n_shown = -1
        self._n_thought = -1
        self._said: str | None = None
        self._thought = ThoughtBlock(folds, LIVE)
        self._settled = Markdown(parser_factory=parser, open_links=False)
        self._open = Static("", markup=False, classes="open-block")
        self._status = Static("", markup=False, classes="status")

    def compose(self) -> ComposeResult:
        """The reasoning, the settled part, the open part, the status."""
        yield self._thought
        yield self._settled
        yield self._open
        yield self._status

    async def paint(self) -> None:
        """Bring the screen up to the text so far."""
        self._paint_thought()
        text = shown(self.live.answer)
        if len(text) == self._n_shown:
            self._say_waiting()
            return
        self._n_shown = len(text)
        settled = self._blocks.feed(text)
        if settled > self._n_rendered:
            await self._settled.append(text[self._n_rendered : settled])
            self._n_rendered = settled
        rest = text[self._n_rendered :].strip("\n")
        self._open.update(rest)
        self._open.display = bool(rest)
        self._say_waiting()

    def _paint_thought(self) -> None:
        thought = self.live.thought
        if thought is None:
            return
        state = len(thought.text) * 2 + thought.is_open
        if state != self._n_thought:
            self._n_thought = state
            self._thought.tell(thought)

    async def finish(self, message: Message, version: Version | None) -> None:
        """Draw the whole stored text and say how it ended, and which version it is."""
        thought = self.live.thought
        self._folds.settle(message.id, thought.seconds if thought else None)
        self._thought.settle(message.id, stored_thought(message, self._folds))
        await self._settled.update(shown(answer_of(message.text)))
        self._open.display = False
        line = status_line(message, version)
        self._status.update(line)
        self._status.display = bool(line)

    def _say_waiting(self) -> None:
        words = ""
        if self.live.stop_asked:
            words = "stopping…"
        elif self.live.is_queued:
            words = "queued: starts when the running answer is complete"
        elif self.live.note:
            words = self.live.note
        elif not self.live.has_text:
            words = "…"
        elif self.live.request.kind == "continue" and not self.live.has_begun:
            words = "goes on…"
        if self._said != words:
            self._said = words
            self._status.update(words)
            self._status.display = bool(words)


class Edge(Static):
    """A line at the border of the mounted window; a click mounts more."""

    def __init__(self, name: str) -> None:
        super().__init__("", markup=False, id=name, classes="edge")
        self.display = False

    def tell(self, n_hidden: int, words: str) -> None:
        """Show how many messages are hidden beyond this border."""
        self.display = n_hidden > 0
        if n_hidden:
            self.update(f"{n_hidden} {words}")


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
