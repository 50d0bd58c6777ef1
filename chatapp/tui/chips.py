"""Chips: big pastes and files stand in the box as a few words, and below each other in lines above it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.widgets import Static

from chatapp.safe import clean_line
from chatapp.texts import tr, tr_later, tr_n
from chatapp.tui import words
from sessions.attachments import Part, n_lines

MUTED = "$foreground 70%"
_REMOVE = " ✕"
PASTED = tr_later("pasted")
"""The name of what was pasted, as it is stored."""
_LEAST_NAME = 12
_LONGEST_NOTE = 60


@dataclass(frozen=True, slots=True)
class Chip:
    """What a few words in the box stand for; `n_tokens` is None until it is counted, `note` what else is to be said.

    `too_big_for` is the context in tokens that cannot hold it, None where it can.
    """

    part: Part
    n_lines: int
    n_tokens: int | None = None
    note: str = ""
    too_big_for: int | None = None


class Chips:
    """The chips of a draft, by the words that stand for them in its text. Those whose words are gone may come back."""

    def __init__(self) -> None:
        self._chips: dict[str, Chip] = {}
        self._n_made = 0

    def add(self, part: Part, label: str, note: str = "") -> str:
        """Take a part and return the words that stand for it."""
        self._n_made += 1
        mark = f"[{label} #{self._n_made}]"
        self._chips[mark] = Chip(part, n_lines(part), note=note)
        return mark

    def clear(self) -> None:
        """Forget them all; numbers go on."""
        self._chips.clear()

    def bring_back(self, chips: Mapping[str, Chip]) -> None:
        """Know chips again that `shown` gave."""
        self._chips.update(chips)

    def counted(self, mark: str, n_tokens: int, n_ctx: int | None = None) -> None:
        """Note how many tokens a chip has, and whether that is more than a context of `n_ctx` holds."""
        if mark in self._chips:
            too_big_for = n_ctx if n_ctx is not None and n_tokens >= n_ctx else None
            self._chips[mark] = replace(self._chips[mark], n_tokens=n_tokens, too_big_for=too_big_for)

    def forget_counts(self) -> None:
        """Have all of them counted again."""
        self._chips = {mark: replace(chip, n_tokens=None, too_big_for=None) for mark, chip in self._chips.items()}

    def shown(self, text: str) -> dict[str, Chip]:
        """Return those whose words are in a text, in its order."""
        found = sorted((text.find(mark), mark) for mark in self._chips)
        return {mark: self._chips[mark] for at, mark in found if at >= 0}

    def pieces(self, text: str) -> list[str | Part]:
        """Return a text taken apart: what was typed, and the parts in their places, each once."""
        chips = self.shown(text)
        if not chips:
            return [text]
        left: dict[str, Chip] = dict(chips)
        split = re.split("(" + "|".join(map(re.escape, chips)) + ")", text)
        return [left.pop(piece).part if piece in left else piece for piece in split]

    def n_more_characters(self, text: str) -> int:
        """Characters that a text has in full beyond those of its words."""
        return sum(len(chip.part.text) - len(mark) for mark, chip in self.shown(text).items())

    def mark_before(self, text: str) -> str:
        """Return the words of a chip that a text ends with, or nothing."""
        return next((mark for mark in self._chips if text.endswith(mark)), "")


class ChipLine(Static, can_focus=True):
    """One chip: Enter or a click shows what it stands for, Delete or a click on its end removes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "view", tr_later("Show")),
        Binding("delete,backspace", "remove", tr_later("Remove")),
    ]

    @dataclass
    class Viewed(Message):
        """The user wants to see what a chip stands for."""

        chip: Chip

    @dataclass
    class Removed(Message):
        """The user does not want a chip."""

        mark: str

    def __init__(self, mark: str, chip: Chip) -> None:
        super().__init__("", markup=False, classes="chip")
        self.mark = mark
        self.chip = chip

    def tell(self, chip: Chip) -> None:
        """Say what is known by now."""
        if chip != self.chip:
            self.chip = chip
            self.on_resize()

    def on_resize(self) -> None:
        """Cut the name to the width."""
        self.update(chip_text(self.chip, self.size.width), layout=False)

    def action_view(self) -> None:
        """Ask for the text."""
        self.post_message(self.Viewed(self.chip))

    def action_remove(self) -> None:
        """Ask to be removed."""
        self.post_message(self.Removed(self.mark))

    def on_click(self, event: Click) -> None:
        """Show, or at the end of the line remove."""
        event.stop()
        if event.x >= chip_text(self.chip, self.size.width).cell_length - 1:
            self.action_remove()
        else:
            self.action_view()


class ChipBar(VerticalScroll, can_focus=False):
    """The lines of a draft's chips, between the conversation and the box; not there without one."""

    def __init__(self) -> None:
        super().__init__(id="chips")
        self._lines: dict[str, ChipLine] = {}
        self.display = False

    def show(self, chips: Mapping[str, Chip]) -> None:
        """Have one line for each chip."""
        if list(chips) != list(self._lines):
            for mark in [mark for mark in self._lines if mark not in chips]:
                self._lines.pop(mark).remove()
            for mark, chip in chips.items():
                if mark not in self._lines:
                    self._lines[mark] = ChipLine(mark, chip)
                    if self.is_attached:
                        self.mount(self._lines[mark])
            self.display = bool(chips)
        for mark, chip in chips.items():
            self._lines[mark].tell(chip)


def chip_text(chip: Chip, width: int) -> Content:
    """`▸ report.txt, 412 lines, 3,120 tokens ✕`, in at most so many cells as far as the name can be cut."""
    return Content.assemble(("▸ ", "$accent"), described(chip, width - len(_REMOVE) - 2), (_REMOVE, MUTED))


def described(chip: Chip, width: int = 100) -> Content:
    """Name, lines and tokens, and what else is known."""
    lines = ", " + tr_n("{n} line", "{n} lines", chip.n_lines).format(n=words.count(chip.n_lines))
    tokens = _tokens(chip)
    note = f", {clean_line(chip.note, _LONGEST_NOTE)}" if chip.note else ""
    facts = lines + tokens + note
    if tokens and cell_len(facts) + _LEAST_NAME > width:
        facts = tokens
    style = MUTED if chip.too_big_for is None else "$warning"
    name = clean_line(shown_name(chip.part), max(_LEAST_NAME, width - cell_len(facts)))
    return Content.assemble(name, (facts, style))


def shown_name(part: Part) -> str:
    """What a part is called on the screen."""
    return tr(PASTED) if part.name == PASTED else part.name


def _tokens(chip: Chip) -> str:
    if chip.n_tokens is None:
        return ""
    n_tokens = words.count(chip.n_tokens)
    if chip.too_big_for is None:
        return ", " + tr_n("{n} token", "{n} tokens", chip.n_tokens).format(n=n_tokens)
    sentence = tr("{n} tokens, more than the context of {n_ctx} holds")
    return ", " + sentence.format(n=n_tokens, n_ctx=words.count(chip.too_big_for))
