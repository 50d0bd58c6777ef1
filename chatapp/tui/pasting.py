"""Reads what is pasted into a terminal in pieces, and as it is.

Textual's parser takes a paste character by character, 0.4 s of a core for 1 MB, and makes keys of the escape
sequences within, a line end behind one of them being Enter.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from textual import events
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.message import Message

_LEAST_HELD = 3
"""From so many characters on, the beginning of a paste's mark can be no key, and is held until the rest is there.

A read that ends with less of it leaves the paste to Textual's parser: the Escape key cannot wait for more."""


class PasteParser(XTermParser):
    """Textual's parser for all but pastes; a paste is collected as it is read."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._held = ""
        self._pasted: list[str] | None = None

    def feed(self, data: str) -> Iterable[Message]:
        """Yield what was read; an empty `data` is the end."""
        if not data:
            yield from super().feed(data)
            return
        data, self._held = self._held + data, ""
        while data:
            if self._pasted is None:
                before, mark, data = data.partition(BRACKETED_PASTE_START)
                if mark:
                    self._pasted = []
                else:
                    before, self._held = _without_beginning(before, BRACKETED_PASTE_START, _LEAST_HELD)
                if before:
                    yield from super().feed(before)
            else:
                text, mark, data = data.partition(BRACKETED_PASTE_END)
                if not mark:
                    text, self._held = _without_beginning(text, BRACKETED_PASTE_END, 1)
                self._pasted.append(text)
                if mark:
                    pasted, self._pasted = "".join(self._pasted), None
                    yield events.Paste(pasted.replace("\x00", ""))


def _without_beginning(text: str, mark: str, least: int) -> tuple[str, str]:
    """Divide a text before the beginning of a mark that it ends with, of at least so many characters."""
    for n in range(min(len(mark) - 1, len(text)), least - 1, -1):
        if text.endswith(mark[:n]):
            return text[:-n], text[-n:]
    return text, ""


def read_pastes_in_pieces() -> None:
    """Let Textual's driver use the parser; it makes its own by this name and takes no other."""
    if sys.platform != "win32":
        from textual.drivers import linux_driver

        vars(linux_driver)["XTermParser"] = PasteParser
