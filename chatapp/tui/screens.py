"""Small windows over the main one: the keys, and a new title."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from chatapp.safe import clean
from chatapp.tui import words
from chatapp.tui.commands import VERBS
from chatapp.tui.keys import KEYS
from chatapp.tui.meters import settings_of
from models.engine import ModelInfo


class HelpScreen(ModalScreen[None]):
    """All keys, and what is known of the loaded model; any of Escape, F1 or Enter closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,enter,q", "dismiss", "Close")]

    def __init__(self, info: ModelInfo | None) -> None:
        super().__init__()
        self._info = info

    def compose(self) -> ComposeResult:
        """One block for each topic."""
        with VerticalScroll(classes="window") as window:
            window.border_title = "Keys"
            window.border_subtitle = "Escape closes"
            yield Static(help_text(), markup=False)
            if self._info is not None:
                yield Static(model_facts(self._info), markup=False, id="help-model")


def help_text() -> Content:
    """The keys and the commands as two columns."""
    lines: list[Content] = []
    for topic, keys in KEYS:
        lines.append(Content.assemble((topic, "bold $primary")))
        lines += [Content.assemble((f"  {key:<31}", "bold"), what) for key, what in keys]
        lines.append(Content(""))
    lines.append(Content.assemble(("Commands in the box", "bold $primary")))
    lines += [Content.assemble((f"  {verb.usage:<31}", "bold"), verb.sentence) for verb in VERBS]
    return Content("\n").join(lines)


def model_facts(info: ModelInfo) -> Content:
    """All that is known of a model, the notes on its template in full."""
    facts = [
        ("name", info.name),
        ("file", info.path),
        ("architecture", info.architecture),
        ("parameters", words.count(info.n_params) if info.n_params else ""),
        ("weights", words.size(info.weights_bytes) if info.weights_bytes else ""),
        ("context", f"{words.count(info.n_ctx)} tokens, trained for {words.count(info.n_ctx_train)}"),
        ("KV", f"{words.size(info.kv_bytes_per_token)} a token"),
        ("runs with", ", ".join(settings_of(info))),
        ("KV on disk", info.kv_note or ""),
    ]
    lines = [Content.assemble(("The model", "bold $primary"))]
    lines += [Content.assemble((f"  {name:<14}", "bold"), clean(value)) for name, value in facts if value]
    if info.notes:
        lines.append(Content.assemble(("Notes on its template", "bold $primary")))
        lines += [Content("  " + clean(note)) for note in info.notes]
    return Content("\n").join(lines)
