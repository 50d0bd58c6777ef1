"""The box the user writes in."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.timer import Timer

from chatapp.console import replaced_notice
from chatapp.safe import clean, clean_line, scrub
from chatapp.slash import MARK
from chatapp.texts import tr, tr_later, tr_n
from chatapp.tui import words
from chatapp.tui.chips import PASTED, ChipBar, Chips
from chatapp.tui.fields import Area
from chatapp.tui.messages import CountAsked, DraftSent, PartAsked
from sessions.attachments import Part, joined, pieces_of
from sessions.conversation import Draft

if TYPE_CHECKING:
    from chatapp.tui.completing import Completing
    from chatapp.tui.recall import Recall

MAX_ROWS = 8
BIG_PASTE = 8_192
"""Characters from which a paste is kept beside the text and shown as `[pasted 412 KiB #1]`."""
LONG_LINE = 2_000
"""The same for one line: the text area lays out a long line anew at every key."""
LONGEST_READ = 100_000
LONGEST_READ_LINE = 20_000
"""Both limits for a text that the user is to read and edit: a key may take longer in it."""

_NEW_LINE = frozenset({"shift+enter", "alt+enter", "ctrl+enter", "ctrl+j"})


LONGEST_DRAFT = 2_000_000
"""Characters of a draft, several times what any context holds."""
COUNT_AFTER_S = 0.4
"""What cannot be counted between two keys is counted this long after the last one, in seconds."""

Count = Callable[[str], int]
"""Tokens of a text."""
_COUNTED_AT_ONCE = 100_000
"""Characters that are counted between two keys; more is estimated."""
_BYTES_A_TOKEN = 4


class Composer(Area):
    """Enter sends; Shift+Enter, Alt+Enter or Ctrl+J begins a new line. The draft stays until it is taken."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "app.scroll_transcript(-1)", tr_later("Scroll up"), show=False, id="box.up"),
        Binding("pagedown", "app.scroll_transcript(1)", tr_later("Scroll down"), show=False, id="box.down"),
        Binding("f6", "app.edit_draft", tr_later("Editor"), show=False, id="editor"),
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
        self.bar = ChipBar()
        """The lines of the chips, placed above the box by whoever places that."""
        self.completing: Completing | None = None
        self.recall: Recall | None = None
        self._chips = Chips()
        self._asked: set[str] = set()
        self.n_ctx: int | None = None
        """The context in tokens, None while it is not known."""
        self._count: Count | None = None
        self._is_counting = False
        self._n_changes = 0
        self._counting_later: Timer | None = None

    @property
    def counter(self) -> Count | None:
        """What counts tokens in this process; None if only the engine can."""
        return self._count

    def count_with(self, count: Count | None) -> None:
        """Show how many tokens the draft has: counted here, or where `count` is None, by whoever `CountAsked` asks."""
        self._count, self._is_counting = count, True
        self._chips.forget_counts()  # they are another model's
        self.recount()

    def counted(self, change: int, n_tokens: int) -> None:
        """Show what was counted, unless the draft was changed since."""
        if change == self._n_changes:
            self._say_count(n_tokens)

    def recount(self) -> None:
        """Show the count again, and ask for the exact ones where they are not known."""
        self._show_count()
        self._asked.clear()
        self._show_chips()

    def on_text_area_changed(self) -> None:
        """Keep the count, the lines of the chips and the completions true with each key."""
        self._n_changes += 1
        self._show_count()
        self._show_chips()
        if self.completing is not None:
            self.completing.follow()

    def on_text_area_selection_changed(self) -> None:
        """What can be completed stands at the cursor."""
        if self.completing is not None:
            self.completing.follow()

    def _show_chips(self) -> None:
        chips = self._chips.shown(self.text)
        self.bar.show(chips)
        for mark, chip in chips.items():
            if chip.n_tokens is None and mark not in self._asked:
                self._asked.add(mark)
                self.post_message(PartAsked(chip.part.text, partial(self.part_counted, mark)))

    def part_counted(self, mark: str, n_tokens: int) -> None:
        """Show how many tokens a chip has, and whether that is more than the context holds."""
        self._chips.counted(mark, n_tokens, self.n_ctx)
        self._show_chips()

    def _show_count(self) -> None:
        if self._counting_later is not None:
            self._counting_later.stop()
            self._counting_later = None
        if not self._is_counting or not self.text:
            self.border_subtitle = Content("")
        elif self._count and self.n_characters <= _COUNTED_AT_ONCE:
            self._say_count(self._count(self.draft))
        else:
            about = max(1, self._n_bytes() // _BYTES_A_TOKEN)
            said = tr_n("≈ {n} token", "≈ {n} tokens", about).format(n=words.count(about))
            self.border_subtitle = Content(clean(said))
            self._counting_later = self.set_timer(COUNT_AFTER_S, self._ask_count)

    def _say_count(self, n_tokens: int) -> None:
        said = tr_n("{n} token", "{n} tokens", n_tokens).format(n=words.count(n_tokens))
        self.border_subtitle = Content(clean(said))

    def _ask_count(self) -> None:
        self.post_message(CountAsked(self.draft, self._n_changes))

    def _n_bytes(self) -> int:
        """About so many bytes of UTF-8; big pastes are counted in characters, so that no key waits for them."""
        return len(self.text.encode("utf-8", "replace")) + self._chips.n_more_characters(self.text)

    @property
    def n_characters(self) -> int:
        """Characters of the draft, big pastes included."""
        return len(self.text) + self._chips.n_more_characters(self.text)

    def say_context(self, share: float) -> None:
        """Say on the border how full the context is, as soon as that matters."""
        level = words.fullness(share)
        said = tr("context {share}: nearly full") if level == "error" else tr("context {share}") if level else ""
        self.border_title = Content(said.format(share=f"{share:.0%}"))
        self.set_class(level == "warning", "-filling")
        self.set_class(level == "error", "-full")

    @property
    def draft(self) -> str:
        """The whole text as it would be sent, big pastes in their place."""
        return self.content.text

    @property
    def content(self) -> Draft:
        """The draft with what is attached."""
        return joined(self._chips.pieces(self.text))

    def clear_draft(self) -> None:
        """Empty the box after its text was taken."""
        self._chips.clear()
        self._asked.clear()
        if self.recall is not None:
            self.recall.end()
        self.load_text("")

    def take(self, typed: str) -> None:
        """Take a text out of the box that was typed there and is being sent; what was typed behind it since stays."""
        if not self.text.startswith(typed):
            return
        rest = self.text[len(typed) :]
        chips = self._chips.shown(rest)
        self.clear_draft()
        if rest:
            self._chips.bring_back(chips)
            self.insert(rest)

    def put_back(self, draft: str | Draft) -> None:
        """Return a text that could not be sent, unless something new was begun."""
        if not self.text.strip():
            self.replace_by(Draft(draft) if isinstance(draft, str) else draft)

    def put_message(self, message: Draft) -> None:
        """Put a message in the place of all that is there, to be read and edited; it means the same if it is sent."""
        self.clear_draft()
        self.replace_by(message, biggest=LONGEST_READ, longest_line=LONGEST_READ_LINE)
        if self.text.startswith(MARK):
            self.insert(MARK, (0, 0), maintain_selection_offset=True)

    def replace_by(self, draft: Draft, *, biggest: int = BIG_PASTE, longest_line: int = LONG_LINE) -> None:
        """Put a draft in the place of all that is there, its attachments as chips."""
        self.load_text("")
        for piece in pieces_of(draft):
            if isinstance(piece, Part):
                self._insert_part(piece)
            else:
                self._insert(piece, biggest=biggest, longest_line=longest_line)

    def begin_command(self, text: str) -> None:
        """Put the beginning of a command into the empty box; what is there stays."""
        if not self.text:
            self.insert(text)
        else:
            self.app.notify(tr("Send or remove what is in the box first."), severity="warning", markup=False)
        self.focus()

    def insert_text(self, text: str) -> None:
        """Put a text in at the cursor by the rules of a paste, but for the user to read and edit."""
        if self.read_only:
            return
        if len(text) + self.n_characters > LONGEST_DRAFT:
            self.app.notify(too_long_notice(), severity="error", markup=False)
            return
        self._insert(text, biggest=LONGEST_READ, longest_line=LONGEST_READ_LINE)
        self.focus()

    def rewrite(self, text: str) -> None:
        """Put a text in the place of the typed one; chips stay whose words stand in it."""
        if len(text) > LONGEST_DRAFT:
            self.app.notify(too_long_notice(), severity="error", markup=False)
            return
        self.select_all()
        self._insert(text, biggest=LONGEST_READ, longest_line=LONGEST_READ_LINE)

    def attach(self, part: Part, note: str = "", *, instead_of: str = "") -> bool:
        """Put a chip in the place of a word of the text, or at the cursor; False if there would be too much."""
        if len(part.text) + self.n_characters > LONGEST_DRAFT:
            self.app.notify(too_long_notice(), severity="error", markup=False)
            return False
        at = self.text.find(instead_of) if instead_of else -1
        if at >= 0:
            start = self._location(at)
            end = self._location(at + len(instead_of))
            self.move_cursor(end)
            self.replace("", start, end)
            self.move_cursor(start)
        self._insert_part(part, note)
        return True

    def _location(self, at: int) -> tuple[int, int]:
        before = self.text[:at]
        return before.count("\n"), len(before) - before.rfind("\n") - 1

    def _insert_part(self, part: Part, note: str = "") -> None:
        label = clean_line(part.name, 40).replace("[", "(").replace("]", ")")
        if part.name == PASTED:
            label = tr("pasted {size}").format(size=words.size(len(part.text.encode("utf-8", "replace"))))
        self._type(self._chips.add(part, label, note))

    def remove_chip(self, mark: str) -> None:
        """Take a chip out of the draft."""
        at = self.text.find(mark)
        if at >= 0 and not self.read_only:
            start = self._location(at)
            end = self._location(at + len(mark))
            self._delete_via_keyboard(start, end)
        self.focus()

    def begin_with(self, opening: str, *drafts: str) -> None:
        """Put a text that the user is to read and edit before what was written, in the place of all that is there."""
        self.clear_draft()
        self._insert(opening, biggest=LONGEST_READ, longest_line=LONGEST_READ_LINE)
        for at, draft in enumerate(drafts):
            self._insert("\n\n" + draft if at else draft)

    def hold(self, reason: str | None, *, takes_text: bool = False) -> None:
        """Take no text while there is a reason, or none that could be sent (`takes_text`); None takes it again."""
        self.read_only = reason is not None and not takes_text
        usual = tr("Message · Enter sends · Ctrl+J new line")
        later = tr("A draft, to be sent later")
        self.placeholder = Content(clean(later if reason and takes_text else reason or usual))
        self.set_class(reason is not None, "-held")

    def action_delete_left(self) -> None:
        """Delete to the left; a chip goes as a whole."""
        row, column = self.cursor_location
        mark = self._chips.mark_before(self.document.get_line(row)[:column]) if self.selection.is_empty else ""
        if mark and not self.read_only:
            self._delete_via_keyboard((row, column - len(mark)), (row, column))
        else:
            super().action_delete_left()

    def action_cursor_up(self, select: bool = False) -> None:
        """Go a line up, from the first one to the message before."""
        is_first = self.navigator.is_first_wrapped_line(self.cursor_location)
        if select or not is_first or self.read_only or self.recall is None or not self.recall.older():
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Go a line down, from the last one to the message behind."""
        is_last = self.navigator.is_last_wrapped_line(self.cursor_location)
        if select or not is_last or self.read_only or self.recall is None or not self.recall.newer():
            super().action_cursor_down(select)

    async def _on_key(self, event: events.Key) -> None:
        if self.completing is not None and self.completing.takes(event.key):
            event.stop()
            event.prevent_default()
        elif event.key == "enter":
            event.stop()
            event.prevent_default()
            self.post_message(DraftSent(self.content, self.text))
        elif event.key.startswith("alt+") and event.is_printable:
            event.prevent_default()  # a command that does not exist, and no letter
        elif event.key in _NEW_LINE and not self.read_only:
            event.stop()
            event.prevent_default()
            self._replace_via_keyboard("\n", *self.selection)

    def take_paste(self, text: str) -> None:
        """Put a pasted text in the place of what is selected, as a chip if it is big."""
        if self.read_only:
            return
        # Before anything reads the text: a paste may be larger than any message.
        if len(text) + self.n_characters > LONGEST_DRAFT:
            self.app.notify(too_long_notice(), severity="error", markup=False)
            return
        self._insert(text)
        self.focus()

    def _insert(self, raw: str, *, biggest: int = BIG_PASTE, longest_line: int = LONG_LINE) -> None:
        text, n_replaced = scrub(raw)
        text = unicodedata.normalize("NFC", text)
        is_big = len(text) >= biggest or any(len(line) > longest_line for line in text.split("\n"))
        shown = text if is_big else clean(text)
        n_replaced += shown.count("\ufffd") - text.count("\ufffd")
        if n_replaced:
            self.app.notify(replaced_notice(n_replaced), severity="warning", markup=False)
        if is_big:
            self._insert_part(Part(PASTED, text))
        else:
            self._type(shown)

    def _type(self, text: str) -> None:
        if result := self._replace_via_keyboard(text, *self.selection):
            self.move_cursor(result.end_location)


def too_long_notice() -> str:
    """What to say about a draft that is too long."""
    sentence = tr("A message has at most {n} characters: paste a part of the text.")
    return sentence.format(n=words.count(LONGEST_DRAFT))
