"""The widgets of one turn: the question, the stored or growing answer, how it ended."""

from __future__ import annotations

from markdown_it import MarkdownIt
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Markdown, Static

from chatapp.safe import clean
from chatapp.tui.blocks import OpenBlock
from chatapp.tui.live import LiveAnswer
from sessions.conversation import Message, MessageStatus

STATUS_WORDS: dict[MessageStatus, str] = {
    "stopped": "stopped by you · the text so far is kept; send a message to go on",
    "cut": "cut: the token limit or the context was reached · send a message to go on",
    "interrupted": "interrupted: the program or the engine ended here · send a message to go on",
    "failed": "failed · send the message again",
}


def parser() -> MarkdownIt:
    """Markdown without HTML, so that tags stay visible as text."""
    return MarkdownIt("gfm-like", {"html": False})


def shown(text: str) -> str:
    """A stored text as it may reach the terminal, with the line ends that Markdown knows."""
    return clean(text)


class UserText(Static):
    """A message of the user, plain."""

    def __init__(self, text: str, *, is_failed: bool = False) -> None:
        content = Content.assemble(shown(text), ("\nnot answered", "italic $text-error") if is_failed else "")
        super().__init__(content, markup=False, classes="user")


class Answer(Vertical):
    """A stored answer, and a line on how it ended if it is not whole."""

    def __init__(self, text: str, status: MessageStatus | None) -> None:
        super().__init__(classes="answer")
        self._text = text
        self._status = status

    def compose(self) -> ComposeResult:
        """The text, the status."""
        yield Markdown(shown(self._text), parser_factory=parser, open_links=False)
        if line := self._status_line():
            yield Static(line, markup=False, classes="status")

    def _status_line(self) -> str:
        return STATUS_WORDS.get(self._status, "") if self._status else ""


class GrowingAnswer(Vertical):
    """The answer that is being written; `paint` brings it up to date, `finish` draws the stored text once."""

    def __init__(self, live: LiveAnswer) -> None:
        super().__init__(classes="answer")
        self.live = live
        self._blocks = OpenBlock()
        self._n_rendered = 0
        self._n_shown = -1
        self._said: str | None = None
        self._settled = Markdown(parser_factory=parser, open_links=False)
        self._open = Static("", markup=False, classes="open-block")
        self._status = Static("", markup=False, classes="status")

    def compose(self) -> ComposeResult:
        """The settled part, the open part, the status."""
        yield self._settled
        yield self._open
        yield self._status

    async def paint(self) -> None:
        """Bring the screen up to the text so far."""
        text = shown(self.live.text)
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

    async def finish(self, message: Message) -> None:
        """Draw the whole stored text and say how it ended."""
        await self._settled.update(shown(message.text))
        self._open.display = False
        line = STATUS_WORDS.get(message.status, "")
        self._status.update(line)
        self._status.display = bool(line)

    def _say_waiting(self) -> None:
        words = ""
        if self.live.stop_asked:
            words = "stopping…"
        elif self.live.is_queued:
            words = "queued: starts when the running answer is complete"
        elif not self.live.text:
            words = "…"
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


def turn_widget(message: Message) -> Widget:
    """The widget of a stored message."""
    if message.role == "assistant":
        return Answer(message.text, message.status)
    return UserText(message.text, is_failed=message.status == "failed")
