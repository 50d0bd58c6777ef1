"""The links of a message: shown whole, and opened by key only, in the browser of whoever sits at the window."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import urlsplit

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from chatapp.clipboard import Terminal
from chatapp.safe import clean_line
from chatapp.texts import tr, tr_later
from chatapp.tui.markdown_blocks import parser

MUTED = "$foreground 70%"
_LONGEST = 4000


def links_of(text: str) -> list[str]:
    """Return the addresses that a Markdown text links to, each once, in their order."""
    found: dict[str, None] = {}
    for token in parser().parse(text):
        for child in token.children or ():
            if address := str(child.attrs.get("href", "") or child.attrs.get("src", "")):
                found.setdefault(address)
    return list(found)


def why_not(address: str) -> str:
    """Say why an address is not opened; empty if it may be."""
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:
        return tr("this is no address")
    if parts.scheme not in ("http", "https"):
        return tr("only http and https are opened")
    if not host or len(address) > _LONGEST or not address.isprintable() or " " in address:
        return tr("this is no address")
    return tr("a name and a password stand in front of the host") if parts.username is not None else ""


def has_browser(terminal: Terminal) -> bool:
    """Return False where a browser would have no screen of its own: it would draw over the window."""
    has_screen = terminal.system in ("darwin", "win32", "wsl") or terminal.has_x11 or terminal.has_wayland
    return has_screen and not terminal.is_remote


def open_link(address: str) -> bool:
    """Open an address in the browser; return False if there is none."""
    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False


class LinkScreen(ModalScreen[str | None]):
    """Shows addresses in full; answers the chosen one, None for Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", tr_later("Cancel"))]

    def __init__(self, addresses: Sequence[str], way: str) -> None:
        """`way` says what Enter does with an address."""
        super().__init__()
        self._addresses = addresses
        self._way = way
        self._list = OptionList(*map(_row, addresses), markup=False)

    def compose(self) -> ComposeResult:
        """The addresses, a line on what to look at."""
        with Vertical(classes="window") as window:
            window.border_title = Content(tr("Links"))
            window.border_subtitle = Content(self._way)
            yield Static(tr("A model wrote these addresses: look at the host."), markup=False, classes="dialog-text")
            yield self._list

    def on_mount(self) -> None:
        """The first that can be chosen."""
        self._list.focus()
        self._list.action_first()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Answer with the chosen address."""
        self.dismiss(self._addresses[event.option_index])

    def action_cancel(self) -> None:
        """Answer that nothing is to be opened."""
        self.dismiss(None)


def _row(address: str) -> Option:
    reason = why_not(address)
    shown = clean_line(address, _LONGEST)
    if reason:
        return Option(Content.assemble((shown, MUTED), (f"\n  {reason}", "$warning")), disabled=True)
    # The parser gives hosts as they are on the wire: one in another script cannot pass for one that it is not.
    return Option(Content.assemble((clean_line(urlsplit(address).hostname or "", 300), "bold"), "\n  ", shown))
