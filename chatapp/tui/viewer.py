"""A window over the main one that shows a text as it is, however long."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Log

from chatapp.safe import clean, clean_line
from chatapp.texts import tr, tr_later

_MIN_WIDTH = 20


class ViewerScreen(ModalScreen[None]):
    """Shows a text; Escape, Enter or Q closes it. Lines are broken at the border, without regard to words."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "dismiss", tr_later("Close"))]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._log = Log(auto_scroll=False)
        self._width = 0

    def compose(self) -> ComposeResult:
        """The text."""
        with Vertical(classes="window tall") as window:
            window.border_title = Content(clean_line(self._title, 200))
            window.border_subtitle = Content(tr("Escape closes"))
            yield self._log

    def on_mount(self) -> None:
        """Let the arrow keys scroll."""
        self._log.focus()

    def on_resize(self) -> None:
        """Break the lines anew."""
        self.call_after_refresh(self._fill)

    def _fill(self) -> None:
        width = max(_MIN_WIDTH, self._log.scrollable_content_region.width - 1)
        if width != self._width:
            self._width = width
            self._log.clear()
            self._log.write_lines(broken(clean(self._text), width))
            self._log.scroll_home(animate=False)


def broken(text: str, width: int) -> list[str]:
    """Return the lines of a text, each no wider than `width` cells; no character is wider than two."""
    lines: list[str] = []
    for line in text.expandtabs(4).split("\n"):
        n = width if line.isascii() else width // 2
        lines += [line[at : at + n] for at in range(0, len(line), n)] if len(line) > n else [line]
    return lines
