"""Why an answer was slow: its turn's numbers in sentences, in a window over the main one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from chatapp.safe import clean, clean_line
from chatapp.texts import tr, tr_later
from chatapp.tui import words
from chatapp.tui.timing import PARTS, floor_of, parts_of, ttft_bar
from chatapp.why import State, explain, measured_answer
from models.engine import TurnStats

if TYPE_CHECKING:
    from chatapp.tui.stage import Stage

_BAR = 60


class WhyScreen(ModalScreen[None]):
    """Shows one turn; Escape, Enter, Q or the key that opened it closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss", tr_later("Close")),
        Binding("f9", "dismiss", tr_later("Close"), show=False, id="why"),
    ]
    DEFAULT_CSS = """
    WhyScreen { align: center middle; background: $background 60%; }
    WhyScreen .window { height: auto; }
    WhyScreen #why-bar { margin: 0 0 1 0; }
    """

    def __init__(self, question: str, stats: TurnStats, state: State = "over") -> None:
        super().__init__()
        self._state: State = state
        self._question = clean_line(question, 60)
        self._stats = stats

    def compose(self) -> ComposeResult:
        """The time to the first text as a bar, the sentences, and what could be done."""
        with VerticalScroll(classes="window") as window:
            window.border_title = Content(tr("Why was this slow?"))
            window.border_subtitle = Content(tr("Escape closes"))
            if self._question:
                yield Static(Content.assemble((tr("asked") + " ", "$foreground 60%"), self._question), markup=False)
            if bar := bar_text(self._stats):
                yield Static(bar, markup=False, id="why-bar")
            yield Static(sentences_text(self._stats, self._state), markup=False, id="why-text")


def show_why(stage: Stage) -> None:
    """Show it of the marked answer, or the one to the marked question; else of the one being written, or the last."""
    messages, marked, live = stage.messages(), stage.transcript.marked, stage.talk.live.get(stage.current)
    if marked is None and live is not None:
        has_begun = stage.readings.first_piece_at is not None
        floor = floor_of(stage.readings, stage.talk.model.info)
        stats = replace(stage.readings.so_far(stage.monotonic()), tpot_floor_s=floor)
        stage.app.push_screen(WhyScreen(live.question, stats, "writing" if has_begun else "waiting"))
        return
    answer = measured_answer(messages, marked.id if marked else None)
    if answer is None or answer.stats is None:
        stage.tell(tr("There is no measured answer to explain: ask something first."))
        return
    question = next((message.text for message in messages if message.id == answer.parent_id), "")
    stage.app.push_screen(WhyScreen(question, answer.stats))


def bar_text(stats: TurnStats) -> Content | None:
    """The parts of the time to the first text: a bar, and below it what each took."""
    seconds = parts_of(stats)
    if seconds is None:
        return None
    named = [
        Content.assemble((mark, style), f" {tr(name)} ", (words.seconds(value), "bold"))
        for (name, mark, style), value in zip(PARTS, seconds, strict=True)
    ]
    return Content("\n").join([ttft_bar(seconds, _BAR), Content("   ").join(named)])


def sentences_text(stats: TurnStats, state: State = "over") -> Content:
    """A line for each sentence; what could be done stands apart."""
    why = explain(stats, state)
    lines = [Content(clean(sentence)) for sentence in why.sentences]
    if why.advice:
        lines += [Content(""), Content.assemble((clean(why.advice), "$accent"))]
    return Content("\n").join(lines)
