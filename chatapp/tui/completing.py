"""The list above the box: commands behind `/`, what they take, and files behind `@`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from chatapp.filefinder import FileFinder
from chatapp.safe import clean, clean_line
from chatapp.slash import MARK, is_command
from chatapp.tui import commands, words
from chatapp.tui.composer import Composer
from chatapp.verbs import Verb

if TYPE_CHECKING:
    from chatapp.tui.app import ChatApp

MUTED = "$foreground 70%"
FILE_MARK = "@"
MAX_OFFERS = 40
_USAGE_CELLS = 18
_FILE = re.compile(r"(?:^|\s)@(\S*)$")


@dataclass(frozen=True, slots=True)
class Word:
    """What is being typed: `text`, from character `start` of the line up to the cursor."""

    kind: str
    start: int
    text: str


@dataclass(frozen=True, slots=True)
class Offer:
    """What may stand in the place of a word, and what is shown of it; `is_whole` if nothing is typed behind it."""

    value: str
    shown: Content
    is_whole: bool = True


class CompletionList(OptionList, can_focus=False):
    """The offers; the box keeps the focus."""

    def __init__(self) -> None:
        super().__init__(id="completions", markup=False, compact=True)
        self.display = False


class Completing:
    """Follows the cursor and offers; Tab or Enter takes an offer, Up and Down choose, Escape hides until the next word.

    `attach` is given a file that was chosen and the word in the text that names it.
    """

    def __init__(
        self, app: ChatApp, composer: Composer, finder: FileFinder, attach: Callable[[str, str], object]
    ) -> None:
        self.widget = CompletionList()
        self._app = app
        self._composer = composer
        self._finder = finder
        self._attach = attach
        self._word: Word | None = None
        self._offers: Sequence[Offer] = ()
        self._offered_for: Word | None = None
        self._hidden: tuple[str, int] | None = None
        self._has_chosen = False

    @property
    def is_shown(self) -> bool:
        """True while there is something to choose from."""
        return self.widget.display

    def follow(self) -> None:
        """Offer what fits the word at the cursor."""
        word = self._at_cursor()
        if word == self._word:
            return
        self._word = word
        if word is None:
            self._hidden = None
        if word is None or self._hidden == (word.kind, word.start):
            self._show(())
        elif word.kind == "command":
            self._show(
                [
                    _verb_offer(verb, commands.with_key(self._app, verb))
                    for verb in commands.offered(self._app, word.text)
                ]
            )
        else:
            self._app.stage.work(self._look(word), "completions")

    def takes(self, key: str) -> bool:
        """Take a key if it is for the list."""
        if not self.is_shown:
            return False
        if key in ("tab", "enter"):
            self.follow()  # keys come faster than the news of them
            if self._offered_for != self._at_cursor():
                return key == "tab"  # what is shown was for another word: the text is meant as it stands
        if key in ("up", "down"):
            (self.widget.action_cursor_up if key == "up" else self.widget.action_cursor_down)()
            self._has_chosen = True
        elif key == "escape":
            self._hidden = (self._word.kind, self._word.start) if self._word else None
            self._show(())
        elif key in ("tab", "enter"):
            return self._accept(key)
        else:
            return False
        return True

    def _accept(self, key: str) -> bool:
        word, at = self._word, self.widget.highlighted
        if word is None or at is None or at >= len(self._offers):
            return False
        offer = self._offers[at]
        is_guess = word.kind not in ("command", "file") and not self._has_chosen
        if key == "enter" and (offer.value == word.text or is_guess):
            self._show(())
            return False  # there is nothing left to complete, or what is typed may be meant, such as a new file
        if word.kind == "file" and offer.is_whole:
            self._show(())
            self._attach(offer.value, FILE_MARK + word.text)
            return True
        row, column = self._composer.cursor_location
        self._hidden = (word.kind, word.start) if offer.is_whole else None
        end = "" if offer.is_whole else " " if word.kind == "command" else ""
        self._composer.replace(offer.value + end, (row, word.start), (row, column))
        if offer.is_whole:
            self._show(())
        return True

    def _at_cursor(self) -> Word | None:
        composer = self._composer
        if composer.read_only or not composer.selection.is_empty:
            return None
        row, column = composer.cursor_location
        line = composer.document.get_line(row)
        before = line[:column]
        if row == 0 and is_command(before) and composer.document.line_count == 1:
            name, space, argument = before.removeprefix(MARK).partition(" ")
            if not space:
                return Word("command", len(MARK), name)
            return Word(name.lower(), column - len(argument), argument)
        if found := _FILE.search(before):
            return Word("file", found.start(1), found[1])
        return None

    async def _look(self, word: Word) -> None:
        """Ask in a thread, because it may read folders, and show what came if it is still wanted."""
        offers = await asyncio.to_thread(self._offers_for, word)
        if self._word == word and self._app.stage.is_standing:
            self._show(offers)

    def _offers_for(self, word: Word) -> list[Offer]:
        if word.kind == "file":
            return [_path_offer(path) for path in self._finder.find(word.text)]
        verb = next((verb for verb in commands.offered(self._app, word.kind) if verb.name == word.kind), None)
        if verb is None:
            return []
        if (values := commands.completed(self._app, verb, word.text)) is not None:
            return [_path_offer(value) for value in values[:MAX_OFFERS]]
        return [
            Offer(
                choice.value, Content.assemble((f"{clean(choice.value):<10}", "bold"), " ", (clean(choice.told), MUTED))
            )
            for choice in verb.choices
            if choice.value.startswith(word.text.lower())
        ]

    def _show(self, offers: Sequence[Offer]) -> None:
        self._offers, self._offered_for = offers, self._word
        self._has_chosen = False
        self.widget.display = bool(offers)
        width = self._composer.size.width + 1  # the list has no size before it is shown
        self.widget.set_options([Option(offer.shown.truncate(width, ellipsis=True)) for offer in offers])
        if offers:
            self.widget.highlighted = 0


def _verb_offer(verb: Verb, sentence: str) -> Offer:
    shown = Content.assemble((words.left(clean(verb.usage), _USAGE_CELLS), "bold"), " ", (clean(sentence), MUTED))
    return Offer(verb.name, shown, is_whole=not verb.argument)


def _path_offer(path: str) -> Offer:
    return Offer(path, Content(clean_line(path, 200)), is_whole=not path.endswith("/"))
