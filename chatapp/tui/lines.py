"""Modal windows that ask for one line: a title, which the model may suggest, a task, tags."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static
from textual.worker import Worker

from chatapp.safe import clean, clean_line
from chatapp.texts import tr, tr_later
from chatapp.tui import words
from chatapp.tui.fields import Field
from models.engine import Event, Failed, Finished, Piece, Progress
from sessions.titles import read_title

_BAR = 20
_PHASES = {
    "load": tr_later("loading the model"),
    "tune": tr_later("measuring this machine"),
    "check": tr_later("checking that KV comes back"),
    "restore": tr_later("reading KV from disk"),
    "prefill": tr_later("reading the conversation"),
}


class LineScreen(ModalScreen[str | None]):
    """Asks for one line; answers None when nothing is to be changed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", tr_later("Cancel"))]

    def __init__(self, title: str, line: str, *, hint: str = "", can_be_empty: bool = False) -> None:
        super().__init__()
        self._title = title
        self._old = line
        self._can_be_empty = can_be_empty
        self.line = Field(clean_line(line, 600), max_length=600)
        self.hint = Static(hint, markup=False)

    def compose(self) -> ComposeResult:
        """The line to write in, and a hint."""
        with Vertical(classes="window small") as window:
            window.border_title = Content(self._title)
            window.border_subtitle = Content(tr("Enter keeps it · Escape does not"))
            yield self.line
            yield self.hint

    def on_mount(self) -> None:
        """A hint takes a line only where there is one."""
        self.hint.display = bool(str(self.hint.content))

    def on_input_submitted(self, event: Input.Submitted, /) -> None:
        """Answer with the new line."""
        line = event.value.strip()
        self.dismiss(line if line or self._can_be_empty else None)

    def action_cancel(self) -> None:
        """Answer that nothing changes."""
        self.dismiss(None)


class TitleScreen(LineScreen):
    """Asks for a title. `begin` starts the events of the model's suggestion; a failure among them is a `Failed`."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+g", "suggest", tr_later("Suggest"), priority=True)]

    def __init__(self, title: str, begin: Callable[[], AsyncGenerator[Event, None]]) -> None:
        super().__init__(tr("Title"), title, hint=tr("Ctrl+G lets the model suggest one"))
        self._begin = begin
        self._worker: Worker[None] | None = None

    def action_suggest(self) -> None:
        """Let the model suggest a title, unless it is at it."""
        if not self._is_asking:
            self.hint.update(tr("starting · Escape stops"))
            self._worker = self.run_worker(self._suggest(), exit_on_error=False)

    @property
    def _is_asking(self) -> bool:
        return self._worker is not None and not self._worker.is_finished

    def action_cancel(self) -> None:
        """Stop the suggestion; without one, answer that nothing changes."""
        if self._is_asking and self._worker is not None:
            self._worker.cancel()
            self.hint.update(tr("Stopped · Ctrl+G asks again"))
        else:
            self.dismiss(None)

    def on_input_submitted(self, _: Input.Submitted, /) -> None:
        """A suggestion that is still to come is not waited for. Textual calls that of `LineScreen` too."""
        if self._worker is not None:
            self._worker.cancel()

    async def _suggest(self) -> None:
        async with aclosing(self._begin()) as events:
            async for event in events:
                match event:
                    case Progress():
                        share = event.done / event.total if event.total else 0.0
                        step = f"{tr(_PHASES.get(event.phase, event.phase))} {words.bar(share, _BAR)} {share:.0%}"
                        self.hint.update(tr("{step} · Escape stops").format(step=step))
                    case Piece():
                        self.hint.update(tr("writing… · Escape stops"))
                    case Finished():
                        self._take(clean_line(read_title(event.text), 80))
                        return  # behind it is only what it left on the disk: nothing
                    case Failed():
                        self.hint.update(clean(event.message))
                    case _:
                        pass

    def _take(self, title: str) -> None:
        if title:
            self.line.value = title
            self.line.action_end()
            self.hint.update(tr("Suggested by the model · Ctrl+G asks again"))
        else:
            self.hint.update(tr("The model suggested nothing · Ctrl+G asks again"))
