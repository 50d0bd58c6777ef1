"""Modal windows that ask for one thing: one of a few ways, one of the models, some of the turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from chatapp.modellist import ModelChoice
from chatapp.safe import clean, clean_line
from chatapp.texts import tr, tr_later, tr_n
from chatapp.tui import words

MUTED = "$foreground 70%"
GUARD_S = 0.3
"""How long a dialog that came unasked takes no answer, in seconds."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way on: its name in the program, what it is called, what it means."""

    name: str
    label: str
    detail: str


class WaysScreen(ModalScreen[str | None]):
    """Says what is the matter and offers ways on; answers the name of one, None for Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", tr_later("Cancel"))]

    def __init__(self, title: str, sentence: str, ways: Sequence[Way]) -> None:
        super().__init__()
        self._title = title
        self._sentence = clean(sentence)
        self._ways = ways
        self._is_ready = False
        self._window = Vertical(classes="window")

    def compose(self) -> ComposeResult:
        """The sentence, the ways."""
        with self._window:
            self._window.border_title = Content(self._title)
            self._window.border_subtitle = Content(tr("Escape cancels"))
            yield Static(self._sentence, markup=False, classes="dialog-text")
            yield OptionList(*(Option(_way(way), id=way.name) for way in self._ways), markup=False)

    def on_mount(self) -> None:
        """Keys that were pressed before anybody could read this are for what was there before."""
        self.set_timer(GUARD_S, self._be_ready)

    def _be_ready(self) -> None:
        self._is_ready = True
        self._window.border_subtitle = Content(tr("Enter chooses · Escape cancels"))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Answer with the chosen way."""
        if self._is_ready:
            self.dismiss(event.option_id)

    def action_cancel(self) -> None:
        """Answer that nothing is to be done."""
        self.dismiss(None)


class ModelsScreen(ModalScreen[ModelChoice | None]):
    """Lists the models on this machine; answers the chosen one, None for Escape.

    `models` reads files and is asked in a thread.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", tr_later("Cancel"))]

    def __init__(self, title: str, models: Callable[[], list[ModelChoice]]) -> None:
        super().__init__()
        self._title = title
        self._ask = models
        self._models: list[ModelChoice] = []
        self._line = Static(tr("reading what models there are…"), markup=False, classes="dialog-text")
        self._list = OptionList(markup=False)

    def compose(self) -> ComposeResult:
        """A line on how it stands, the models."""
        with Vertical(classes="window") as window:
            window.border_title = Content(self._title)
            window.border_subtitle = Content(tr("Enter chooses · Escape cancels"))
            yield self._line
            yield self._list

    def on_mount(self) -> None:
        """Begin to read."""
        self._list.display = False
        self.run_worker(self._fill(), exit_on_error=False)

    async def _fill(self) -> None:
        try:
            self._models = await asyncio.to_thread(self._ask)
        except Exception as error:  # noqa: BLE001 - the top of a worker
            told = f"{type(error).__name__}: {error}"
            self._line.update(clean(tr("The models cannot be listed ({error}).").format(error=told)))
            return
        if not self._models:
            self._line.update(tr("There is no other model on this machine: `chatapp models add PATH.gguf` adds one."))
            return
        self._line.display = False
        self._list.set_options([Option(_model(one), id=str(at)) for at, one in enumerate(self._models)])
        self._list.highlighted = 0
        self._list.display = True
        self._list.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Answer with the chosen model."""
        self.dismiss(self._models[event.option_index])

    def action_cancel(self) -> None:
        """Answer that nothing is to be done."""
        self.dismiss(None)


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A turn as the list shows it: the id and the first line of its question, the tokens it takes."""

    question_id: int
    title: str
    n_tokens: int


class TurnsScreen(ModalScreen[frozenset[int] | None]):
    """Lists turns to be left out; answers the ids of their questions, None for Escape.

    `n_over` tokens have to go; the answer may free fewer, which the screen says.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", tr_later("Cancel")),
        Binding("space", "mark", tr_later("Mark"), priority=True),
    ]

    def __init__(self, turns: Sequence[TurnRow], n_over: int) -> None:
        super().__init__()
        self._turns = turns
        self._n_over = n_over
        self._marked: set[int] = set()
        self._line = Static("", markup=False, classes="dialog-text")
        self._list = OptionList(markup=False)

    def compose(self) -> ComposeResult:
        """What would be freed, the turns."""
        with Vertical(classes="window") as window:
            window.border_title = Content(tr("Remove turns"))
            window.border_subtitle = Content(tr("Space marks · Enter continues without them · Escape cancels"))
            yield self._line
            yield self._list

    def on_mount(self) -> None:
        """Show all turns, none of them marked."""
        self._show()
        self._list.highlighted = 0
        self._list.focus()

    def action_mark(self) -> None:
        """Mark the turn under the cursor, or take the mark away; go on to the next."""
        at = self._list.highlighted
        if at is None:
            return
        self._marked ^= {self._turns[at].question_id}
        self._show()
        self._list.highlighted = min(at + 1, len(self._turns) - 1)

    def on_option_list_option_selected(self) -> None:
        """Answer with the marked turns; with none, wait for a mark."""
        if self._marked:
            self.dismiss(frozenset(self._marked))
        else:
            self._line.update(tr("Mark at least one turn with the space bar."))

    def action_cancel(self) -> None:
        """Answer that nothing is to be done."""
        self.dismiss(None)

    def _show(self) -> None:
        self._list.set_options(
            [Option(_turn(turn, is_marked=turn.question_id in self._marked)) for turn in self._turns]
        )
        freed = sum(turn.n_tokens for turn in self._turns if turn.question_id in self._marked)
        missing = self._n_over - freed
        if missing <= 0:
            told = tr(
                "The rest goes on in a new conversation; this one stays. {freed} tokens are freed: it fits then."
            ).format(freed=words.count(freed))
        else:
            told = tr(
                "The rest goes on in a new conversation; this one stays. "
                "{freed} tokens are freed: {missing} more have to go."
            ).format(freed=words.count(freed), missing=words.count(missing))
        self._line.update(told)


def _way(way: Way) -> Content:
    return Content.assemble((clean(way.label), "bold"), *([("\n  " + clean(way.detail), MUTED)] if way.detail else []))


def _model(one: ModelChoice) -> Content:
    lack = () if one.fits else ((" · " + tr("does not fit into memory"), "$warning"),)
    return Content.assemble((clean_line(one.name, 60), "bold"), ("\n  " + clean_line(one.detail, 100), MUTED), *lack)


def _turn(turn: TurnRow, *, is_marked: bool) -> Content:
    n_tokens = tr_n("{n} token", "{n} tokens", turn.n_tokens).format(n=words.count(turn.n_tokens))
    return Content.assemble(
        ("[x] " if is_marked else "[ ] ", "bold $accent"), clean_line(turn.title, 44), ("  " + n_tokens, MUTED)
    )


def turn_rows(turns: Iterable[tuple[int, str, int]]) -> list[TurnRow]:
    """Rows from ids, questions and tokens; a question without a line that says something is named so."""
    return [TurnRow(number, clean_line(text, 80) or tr("(blank)"), n_tokens) for number, text, n_tokens in turns]
