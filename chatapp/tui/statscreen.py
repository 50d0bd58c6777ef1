"""Figures over all conversations: how fast answers came, what of their prompts was reused, by model and by day."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import DataTable, Sparkline, Static

from chatapp.safe import clean, clean_line
from chatapp.texts import tr, tr_later, tr_n
from chatapp.tui import words
from sessions.errors import SessionError
from sessions.statistics import Figures, Group, Percentiles, Statistics

SHOWN_DAYS = 60
Ask = Callable[[], Awaitable[tuple[Statistics, Statistics]]]
"""Returns the figures by model, and by day."""


class StatisticsScreen(ModalScreen[None]):
    """Shows the figures as soon as they are counted."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", tr_later("Close"))]

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self._ask = ask
        self._line = Static(tr("counting…"), markup=False, classes="dialog-text")
        self._plots = [(name, Sparkline([])) for name in (tr("first text after"), tr("tokens/s"), tr("reused"))]
        self._table: DataTable[Text] = DataTable(cursor_type="row", zebra_stripes=True)

    def compose(self) -> ComposeResult:
        """A line on all, a plot by day for each figure, the tables."""
        with Vertical(classes="window tall") as window:
            window.border_title = Content(tr("Statistics"))
            window.border_subtitle = Content(tr("Escape closes"))
            yield self._line
            for name, plot in self._plots:
                with Horizontal(classes="plot"):
                    yield Static(clean(name), markup=False)
                    yield plot
            yield self._table

    def on_mount(self) -> None:
        """Begin to count."""
        self._table.display = False
        self.run_worker(self._fill(), exit_on_error=False)

    async def _fill(self) -> None:
        try:
            by_model, by_day = await self._ask()
        except (SessionError, OSError) as error:
            self._line.update(clean(tr("The figures cannot be read: {error}").format(error=error)))
            return
        if not by_model.total.n_turns:
            self._line.update(tr("There is no measured turn yet."))
            return
        self._line.update(summary(by_model.total))
        days = by_day.groups[-SHOWN_DAYS:]
        values = (
            [group.figures.ttft_s.p50 if group.figures.ttft_s else 0.0 for group in days],
            [group.figures.tokens_per_s.p50 if group.figures.tokens_per_s else 0.0 for group in days],
            [group.figures.reuse_share or 0.0 for group in days],
        )
        for (_, plot), data in zip(self._plots, values, strict=True):
            plot.data = data
        first, each = tr("first text (19 of 20)"), tr("each token (19 of 20)")
        for heading in ("", tr("turns"), first, each, tr("reused")):
            self._table.add_column(heading)
        for group in (*by_model.groups, *reversed(days)):
            self._table.add_row(*row(group))
        self._table.display = True
        self._table.focus()


def summary(total: Figures) -> Content:
    """All turns in a line."""
    n_turns = tr_n("{n} turn", "{n} turns", total.n_turns).format(n=words.count(total.n_turns))
    figures = [n_turns, tr("first text after {time}").format(time=_both(total.ttft_s))]
    if total.tokens_per_s:
        figures.append(tr("{n} tokens/s").format(n=f"{total.tokens_per_s.p50:.1f}"))
    if total.reuse_share is not None:
        figures.append(tr("{share} of the prompts' tokens were reused").format(share=f"{total.reuse_share:.0%}"))
    return Content(tr("{figures}. Newest day right.").format(figures=", ".join(figures)))


def row(group: Group) -> list[Text]:
    """A row of the table: a model, or a day."""
    figures = group.figures
    name = clean_line(group.model or tr("not known"), 30) if group.day is None else group.day.isoformat()
    return [
        Text(name, "bold" if group.day is None else ""),
        Text(f"{words.count(figures.n_turns):>6}"),
        Text(_both(figures.ttft_s)),
        Text(_both(figures.tpot_s)),
        Text(f"{figures.reuse_share:>5.0%}" if figures.reuse_share is not None else "-"),
    ]


def _both(found: Percentiles | None) -> str:
    """The usual value, and what 19 of 20 turns stay within."""
    return f"{words.seconds(found.p50)} ({words.seconds(found.p95)})" if found else "-"
