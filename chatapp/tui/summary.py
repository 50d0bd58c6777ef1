"""The modal window that shows a summary being written."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from chatapp.safe import clean
from chatapp.texts import tr, tr_later
from chatapp.tui import words
from chatapp.tui.live import LiveAnswer
from models.engine import Event, Failed, Finished, Piece, Progress
from models.reasoning import answer_of

PAINT_S = 0.1
_BAR = 30
_TAIL_CHARS = 1_000
_PHASES = {
    "load": tr_later("loading the model"),
    "tune": tr_later("measuring this machine"),
    "check": tr_later("checking that KV comes back"),
    "restore": tr_later("reading KV from disk"),
    "prefill": tr_later("reading the conversation"),
}


class SummaryScreen(ModalScreen[str | None]):
    """Shows a summary while it is written; answers its text, None when it was stopped or failed.

    `begin` starts the events of the summary; a failure among them is a `Failed`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", tr_later("Stop"))]

    def __init__(self, begin: Callable[[], AsyncGenerator[Event, None]], monotonic: Callable[[], float]) -> None:
        super().__init__()
        self._begin = begin
        self._monotonic = monotonic
        self._live = LiveAnswer("", "", 0)
        self._step = tr("starting")
        self._failure: str | None = None
        self._line = Static(self._step, markup=False, classes="dialog-text")
        self._text = Static("", markup=False, classes="dialog-text")

    def compose(self) -> ComposeResult:
        """How far it is, the end of the text so far."""
        with Vertical(classes="window") as window:
            window.border_title = Content(tr("Summary"))
            window.border_subtitle = Content(tr("Escape stops"))
            yield self._line
            yield self._text

    def on_mount(self) -> None:
        """Begin."""
        self.set_interval(PAINT_S, self._paint)
        self.run_worker(self._run(), exit_on_error=False)

    def action_cancel(self) -> None:
        """Stop, and answer that there is none."""
        self.workers.cancel_node(self)
        self.dismiss(None)

    async def _run(self) -> None:
        async with aclosing(self._begin()) as events:
            async for event in events:
                match event:
                    case Progress():
                        share = event.done / event.total if event.total else 0.0
                        self._step = f"{tr(_PHASES.get(event.phase, event.phase))} {words.bar(share, _BAR)} {share:.0%}"
                    case Piece():
                        self._live.take(event, self._monotonic())
                        self._step = tr("writing")
                    case Finished():
                        summary = answer_of(event.text).strip()
                        if summary and event.reason != "cancelled":
                            self.dismiss(summary)
                            return
                        self._failure = tr("The model wrote no summary: leave out turns instead.")
                    case Failed():
                        self._failure = event.message
                    case _:
                        pass
        self._paint()

    def _paint(self) -> None:
        if self._failure is not None:
            self._line.update(Content.assemble((clean(self._failure), "$error")))
            self._text.update("")
            return
        is_thinking = not self._live.answer and self._live.thought is not None
        self._line.update(tr("thinking…") if is_thinking else self._step)
        self._text.update(clean(self._live.answer[-_TAIL_CHARS:]))
