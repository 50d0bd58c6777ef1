"""Small windows over the main one: the keys, and a new title."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from chatapp.safe import clean_line
from chatapp.tui.keys import KEYS


class HelpScreen(ModalScreen[None]):
    """All keys; any of Escape, F1 or Enter closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,enter,q", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        """One block for each topic."""
        with VerticalScroll(classes="window") as window:
            window.border_title = "Keys"
            window.border_subtitle = "Escape closes"
            yield Static(help_text(), markup=False)


class RenameScreen(ModalScreen[str | None]):
    """Asks for a title; answers None when nothing is to be changed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._old_title = clean_line(title, 200)

    def compose(self) -> ComposeResult:
        """One line to write in."""
        with Vertical(classes="window small") as window:
            window.border_title = "Title"
            window.border_subtitle = "Enter keeps it · Escape does not"
            yield Input(self._old_title, max_length=200)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer with the new title."""
        self.dismiss(event.value.strip() or None)

    def action_cancel(self) -> None:
        """Answer that nothing changes."""
        self.dismiss(None)


def help_text() -> Content:
    """The keys as two columns."""
    lines: list[Content] = []
    for topic, keys in KEYS:
        lines.append(Content.assemble((topic, "bold $primary")))
        lines += [Content.assemble((f"  {key:<31}", "bold"), what) for key, what in keys]
        lines.append(Content(""))
    return Content("\n").join(lines[:-1])
