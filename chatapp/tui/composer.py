"""The box the user writes in."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import TextArea

from chatapp.console import replaced_notice
from chatapp.safe import clean, scrub
from chatapp.tui import words
from chatapp.tui.messages import DraftSent

MAX_ROWS = 8
BIG_PASTE = 8_192
"""Characters from which a paste is kept beside the text and shown as `[pasted 412 KiB #1]`."""
LONG_LINE = 2_000
"""The same for one line: the text area lays out a long line anew at every key."""

_NEW_LINE = frozenset({"shift+enter", "alt+enter", "ctrl+enter", "ctrl+j"})


Count = Callable[[str], int]
"""Tokens of a text."""
_COUNTED_AT_ONCE = 100_000
"""Characters that are counted between two keys; more is estimated."""
_BYTES_A_TOKEN = 4


class Composer(TextArea):
    """Enter sends; Shift+Enter, Alt+Enter or Ctrl+J begins a new line. The draft stays until it is taken."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "app.scroll_transcript(-1)", "Page up", show=False),
        Binding("pagedown", "app.scroll_transcript(1)", "Page down", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(
            id="composer",
            soft_wrap=True,
            compact=True,
            highlight_cursor_line=False,
            tab_behavior="focus",
            show_line_numbers=False,
            max_checkpoints=100,
        )
        self._pastes: dict[str, str] = {}
        self._n_pastes = 0
        self._count: Count | None = None
        self._is_counting = False

    def count_with(self, count: Count | None) -> None:
        """Show how many tokens the draft has: counted, or about so many where `count` is None."""
        self._count, self._is_counting = count, True
        self._show_count()

    def on_text_area_changed(self) -> None:
        """Keep the count true with each key."""
        self._show_count()

    def _show_count(self) -> None:
        draft = self.draft if self._is_counting else ""
        if not draft:
            self.border_subtitle = Content("")
        elif self._count and len(draft) <= _COUNTED_AT_ONCE:
            n = self._count(draft)
            self.border_subtitle = Content(f"{words.count(n)} token{'s' if n != 1 else ''}")
        else:
            n_bytes = len(draft.encode("utf-8", "replace"))
            self.border_subtitle = Content(f"≈ {words.count(max(1, n_bytes // _BYTES_A_TOKEN))} tokens")

    @property
    def draft(self) -> str:
        """The whole text as it would be sent, big pastes in their place."""
        text = self.text
        for chip, pasted in self._pastes.items():
            text = text.replace(chip, pasted, 1)
        return text

    def clear_draft(self) -> None:
        """Empty the box after its text was taken."""
        self._pastes.clear()
        self.load_text("")

    def put_back(self, text: str) -> None:
        """Return a text that could not be sent, unless something new was begun."""
        if self.text.strip():
            return
        self.load_text("")
        self._insert(text)

    def hold(self, reason: str | None) -> None:
        """Take no text while there is a reason; None takes it again."""
        self.read_only = reason is not None
        self.placeholder = reason or "Message · Enter sends · Ctrl+J new line"
        self.set_class(reason is not None, "-held")

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self.post_message(DraftSent(self.draft))
        elif event.key in _NEW_LINE and not self.read_only:
            event.stop()
            event.prevent_default()
            self._replace_via_keyboard("\n", *self.selection)

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        if not self.read_only:
            self._insert(event.text)
            self.focus()

    def _insert(self, raw: str) -> None:
        text, n_replaced = scrub(raw)
        text = unicodedata.normalize("NFC", text)
        if len(text) >= BIG_PASTE or any(len(line) > LONG_LINE for line in text.split("\n")):
            self._n_pastes += 1
            chip = f"[pasted {words.size(len(text.encode('utf-8', 'replace')))} #{self._n_pastes}]"
            self._pastes[chip] = text
            text = chip
        shown = clean(text)
        n_replaced += shown.count("\ufffd") - text.count("\ufffd")
        if n_replaced:
            self.app.notify(replaced_notice(n_replaced), severity="warning", markup=False)
        if result := self._replace_via_keyboard(shown, *self.selection):
            self.move_cursor(result.end_location)
