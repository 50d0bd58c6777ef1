"""The panel of the meters: what the engine is doing, how fast, and where the tokens of the prompt came from."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from chatapp.safe import clean
from chatapp.texts import tr, tr_later
from chatapp.tui import readouts
from chatapp.tui.live import ModelState, Readings
from chatapp.tui.readouts import WIDTH
from chatapp.tui.serverlines import server_text
from chatapp.tui.timing import floor_of, tpot_plot, tpot_text, ttft_text

_ROOMY, _WHOLE = 33, 27
"""Lines from which there are blank ones between the parts, and from which there is room for the model."""
_TITLES = {"context": tr_later("memory"), "reuse": tr_later("this turn's prompt"), "model": tr_later("model")}


class Meters(VerticalScroll, can_focus=False):
    """The panel on the right. `show` paints it without a new layout of the window."""

    def __init__(self) -> None:
        super().__init__(id="meters")
        names = ("phase", "ttft", "tpot", "plot", "context", "reuse", "resume", "model")
        self._blocks = {name: Static("", id=f"meter-{name}", markup=False) for name in names}
        self._contents: dict[str, Content] = {}  # what each shows

    def compose(self) -> ComposeResult:
        """One block for each question."""
        for name, block in self._blocks.items():
            if title := _TITLES.get(name):
                yield Static(clean(tr(title)), classes=f"meter-title -{name}", markup=False)
            yield block

    def on_resize(self) -> None:
        """Leave out in a low window what can be read elsewhere: blank lines, then the model (F1 has its facts)."""
        self.set_class(self.size.height < _ROOMY, "-compact")
        self.set_class(self.size.height < _WHOLE, "-short")

    def show(self, readings: Readings, model: ModelState, now: float) -> None:
        """Paint the numbers as they are at `now`, a monotonic time in seconds."""
        plot = self._blocks["plot"]
        asides = (
            readouts.resume_text(readings),
            server_text(readings, model.info, now),
            readouts.reasoning_text(readings.stats),
        )
        contents = {
            "phase": readouts.phase_text(readings, model, now),
            "ttft": ttft_text(readings, now, WIDTH),
            "tpot": tpot_text(readings, model.info),
            "plot": tpot_plot(readings.tpots, floor_of(readings, model.info), WIDTH, plot.size.height),
            "context": readouts.context_text(readings, model.info),
            "reuse": readouts.reuse_text(readings),
            "resume": Content("\n").join([text for text in asides if text.plain]),
            "model": readouts.model_text(model, self._blocks["model"].size.height),
        }
        for name, content in contents.items():
            if (shown := self._contents.get(name)) is None or not content.is_same(shown):
                self._contents[name] = content
                self._blocks[name].update(content, layout=False)
