"""The welcome as a screen of three steps: the models on this machine, what the meters say, three things to try."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from chatapp.modellist import ModelChoice
from chatapp.safe import clean, clean_line
from chatapp.texts import tr
from chatapp.tui.dialogs import MUTED
from chatapp.tui.keymap import Keymap
from chatapp.tui.switching import Models
from chatapp.tui.welcometexts import Line, meter_lines, things_to_try

_ROOMY = 32
"""Lines of a window in which the meters' topics can be set apart."""


class WelcomeScreen(ModalScreen[None]):
    """Three steps: Enter goes on and uses the highlighted model in the first, Escape leaves at any time.

    `models` reads files and is asked in a thread; None leaves the first step out. `choose` gets the chosen model, and
    whether it is in use already.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close"),
        Binding("enter", "next", "Next"),
        Binding("right", "step(1)", "Next", priority=True),
        Binding("left,backspace", "step(-1)", "Back", priority=True),
    ]
    DEFAULT_CSS = """
    WelcomeScreen { align: center middle; background: $background 60%; }
    WelcomeScreen .step { height: auto; }
    WelcomeScreen #welcome-more { margin: 1 0 0 0; color: $foreground 70%; }
    WelcomeScreen Horizontal { height: auto; }
    WelcomeScreen .mark { width: 18; }
    WelcomeScreen .told { width: 1fr; }
    WelcomeScreen #welcome-tries .mark { width: 4; }
    WelcomeScreen #welcome-tries Horizontal { margin: 0 0 1 0; }
    WelcomeScreen.-tall.-roomy .-begins { margin: 1 0 0 0; }
    WelcomeScreen.-low #welcome-more { margin: 0; }
    """

    def __init__(
        self,
        models: Models | None,
        keys: Keymap,
        *,
        choose: Callable[[ModelChoice, bool], object],
        loaded: Callable[[], Path | None],
        guard_s: float = 0.0,
    ) -> None:
        super().__init__()
        self._ask = models
        self._keys = keys
        self._choose = choose
        self._loaded = loaded
        self._guard_s = guard_s
        self._is_ready = not guard_s
        self._models: list[ModelChoice] = []
        self._used: int | None = None
        self._window = VerticalScroll(classes="window")
        self._line = Static(clean(tr("Looking for models…")), markup=False, classes="dialog-text")
        self._list = OptionList(markup=False)
        self._more = Static("", markup=False, id="welcome-more")
        self._step = 0
        self._steps = [
            *([Vertical(classes="step", id="welcome-models")] if models else []),
            Vertical(classes="step", id="welcome-meters"),
            Vertical(classes="step", id="welcome-tries"),
        ]

    def compose(self) -> ComposeResult:
        """The steps, one of which is shown."""
        *first, meters, tries = self._steps
        with self._window:
            for models in first:
                with models:
                    about = tr("You chat with models on this machine; what you write stays here.")
                    yield Static(clean(about), markup=False)
                    yield self._line
                    yield self._list
                    yield self._more
            with meters:
                intro = tr("The meters, on the right or as one line ({meters} changes that), say:")
                yield Static(clean(self._keys.fill(intro)), markup=False, classes="dialog-text")
                yield from map(_row, meter_lines(self._keys))
            with tries:
                yield Static(clean(tr("Three things to try:")), markup=False, classes="dialog-text")
                yield from map(_row, things_to_try(self._keys))
                again = tr("/welcome shows this again. Close it with Enter and write.")
                yield Static(clean(again), markup=False)

    def on_mount(self) -> None:
        """Show the first step, and begin to look for models."""
        self._list.display = self._more.display = False
        self._show()
        if self._guard_s:
            self.set_timer(self._guard_s, self._be_ready)
        if self._ask is not None:
            self.run_worker(self._fill(self._ask), exit_on_error=False)

    def on_resize(self) -> None:
        """Set topics apart where there is room for it."""
        self.set_class(self.size.height >= _ROOMY, "-roomy")

    def _be_ready(self) -> None:
        self._is_ready = True
        self._show_keys()

    # --- the models ---

    async def _fill(self, ask: Models) -> None:
        try:
            self._models, self._used = await asyncio.to_thread(_read, ask, self._loaded())
        except Exception as error:  # noqa: BLE001 - the top of a worker
            problem = tr("The models cannot be listed ({problem}).")
            self._line.update(clean(problem.format(problem=f"{type(error).__name__}: {error}")))
            return
        how = tr("`chatapp models pull OWNER/NAME` fetches a model, `chatapp models add PATH.gguf` adds a file.")
        if not self._models:
            self._line.update(clean(tr("There is no model on this machine yet.")))
        else:
            self._line.update(clean(tr("Choose the one for new conversations, from now on:")))
            self._list_models(self._used or 0)
            self._list.display = True
        self._more.update(clean(how))
        self._more.display = True
        if self._steps[self._step].id == "welcome-models":
            self._show()

    def _list_models(self, highlighted: int) -> None:
        self._list.set_options([Option(_model(one, is_used=at == self._used)) for at, one in enumerate(self._models)])
        self._list.highlighted = highlighted

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Use this model, and go on."""
        if not self._is_ready:
            return
        at = event.option_index
        self._choose(self._models[at], at == self._used)
        self._used = at
        self._list_models(at)
        self.action_step(1)

    # --- the steps ---

    def action_next(self) -> None:
        """Go on; behind the last step, close."""
        if not self._is_ready:
            return
        if self._step == len(self._steps) - 1:
            self.dismiss(None)
        else:
            self.action_step(1)

    def action_step(self, n: int) -> None:
        """Show the next or the previous step, if there is one."""
        step = min(max(self._step + n, 0), len(self._steps) - 1)
        if step != self._step:
            self._step = step
            self._show()

    def _show(self) -> None:
        for at, step in enumerate(self._steps):
            step.display = at == self._step
        title = tr("Welcome to chatapp · {step} of {n}").format(step=self._step + 1, n=len(self._steps))
        self._window.border_title = Content(clean(title))
        self._window.scroll_home(animate=False)
        (self._list if self._chooses else self._window).focus()
        self._show_keys()

    @property
    def _chooses(self) -> bool:
        """True while Enter uses a model."""
        return self._steps[self._step].id == "welcome-models" and bool(self._list.display)

    def _show_keys(self) -> None:
        if not self._is_ready:
            keys = tr("Escape: chat now")
        elif self._chooses:
            keys = tr("Enter: use it · Right: next · Escape: chat now")
        elif self._step == 0:
            keys = tr("Enter: next · Escape: chat now")
        elif self._step < len(self._steps) - 1:
            keys = tr("Enter: next · Left: back · Escape: chat now")
        else:
            keys = tr("Enter: chat now · Left: back")
        self._window.border_subtitle = Content(clean(keys))


def _read(ask: Models, loaded: Path | None) -> tuple[list[ModelChoice], int | None]:
    """Return the models, and which of them is in use: the loaded one, else the usual one."""
    models = ask()
    if loaded is None:
        return models, next((at for at, one in enumerate(models) if one.is_usual), None)
    file = os.path.realpath(loaded)
    return models, next((at for at, one in enumerate(models) if os.path.realpath(one.path) == file), None)


def _row(line: Line) -> Horizontal:
    return Horizontal(
        Static(line.mark, markup=False, classes="mark"),
        Static(clean(line.sentence), markup=False, classes="told"),
        classes="-begins" if line.begins else "",
    )


def _model(one: ModelChoice, *, is_used: bool) -> Content:
    used = ((" · ", MUTED), (clean(tr("in use")), "$success")) if is_used else ()
    lack = () if one.fits else ((" · ", MUTED), (clean(tr("does not fit into memory")), "$warning"))
    return Content.assemble(
        (clean_line(one.name, 60), "bold"), *used, *lack, ("\n  " + clean_line(one.detail, 100), MUTED)
    )
