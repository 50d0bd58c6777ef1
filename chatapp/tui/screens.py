"""The help: all keys by the place where they work, the commands of the box, and what is known of the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from chatapp.safe import clean
from chatapp.texts import tr, tr_later
from chatapp.tui import words
from chatapp.tui.commands import VERBS
from chatapp.tui.keymap import Keymap
from chatapp.tui.keys import KEYS
from chatapp.tui.readouts import settings_of
from models.engine import ModelInfo

_LEFT = 33
"""Cells of the left column."""
_NAME = 14
"""Cells of the names of a model's facts."""
_LEAST_TEXT = 30
"""Cells that the right column needs beside the left one; with fewer it goes below."""


class HelpScreen(ModalScreen[None]):
    """All keys, and what is known of the loaded model; Escape, Enter, Q or the key that opened it closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss", tr_later("Close")),
        Binding("f1", "dismiss", tr_later("Close"), id="help"),
    ]

    def __init__(self, info: ModelInfo | None, keys: Keymap) -> None:
        super().__init__()
        self._info = info
        self._keys = keys
        self._help = Static("", markup=False)

    def compose(self) -> ComposeResult:
        """The keys and commands, then the model."""
        with VerticalScroll(classes="window help") as window:
            window.border_title = Content(tr("Keys"))
            window.border_subtitle = Content(tr("Up, Down scroll · Escape closes"))
            yield self._help
            if self._info is not None:
                yield Static(model_facts(self._info), markup=False, id="help-model")

    def on_resize(self) -> None:
        """Lay the columns out for the width there is."""
        self.call_after_refresh(self._paint)

    def _paint(self) -> None:
        self._help.update(help_text(self._keys, self._help.size.width))


def help_text(keys: Keymap, width: int = 80) -> Content:
    """The keys and the commands as two columns in `width` cells; in few cells, one below the other."""
    lines: list[Content] = []
    for topic, rows in KEYS:
        lines.append(Content.styled(clean(tr(topic)), "bold $primary"))
        lines += _columns(((keys.fill(tr(key)), tr(what)) for key, what in rows), width)
        lines.append(Content(""))
    lines.append(Content.styled(tr("Commands in the box"), "bold $primary"))
    lines += _columns(((verb.usage, tr(verb.sentence)) for verb in VERBS), width)
    return Content("\n").join(lines)


def _columns(rows: Iterable[tuple[str, str]], width: int) -> list[Content]:
    """Rows of two columns, the right one wrapped inside itself."""
    is_stacked = width - _LEFT - 2 < _LEAST_TEXT
    indent = 4 if is_stacked else _LEFT + 2
    lines: list[Content] = []
    for key, what in rows:
        told = words.wrapped(what, max(10, width - indent))
        if is_stacked or cell_len(key) >= _LEFT:
            lines.append(Content.assemble("  ", (clean(key), "bold")))
        else:
            lines.append(Content.assemble("  ", (words.left(clean(key), _LEFT), "bold"), clean(told.pop(0))))
        lines += [Content(" " * indent + clean(line)) for line in told]
    return lines


def _facts(rows: Sequence[tuple[str, str]]) -> list[Content]:
    return [
        Content.assemble(("  " + words.left(clean(name), _NAME), "bold"), clean(value)) for name, value in rows if value
    ]


def model_facts(info: ModelInfo) -> Content:
    """All that is known of a model, the notes on its template in full."""
    context = tr("{n} tokens, trained for {n_train}")
    facts = [
        (tr("name"), info.name),
        (tr("file"), info.path),
        (tr("architecture"), info.architecture),
        (tr("parameters"), words.count(info.n_params) if info.n_params else ""),
        (tr("weights"), words.size(info.weights_bytes) if info.weights_bytes else ""),
        (tr("context"), context.format(n=words.count(info.n_ctx), n_train=words.count(info.n_ctx_train))),
        ("KV", tr("{size} a token").format(size=words.size(info.kv_bytes_per_token))),
        (tr("runs with"), ", ".join(settings_of(info))),
        (tr("KV on disk"), info.kv_note or ""),
    ]
    lines = [Content.styled(tr("The model"), "bold $primary"), *_facts(facts)]
    if info.notes:
        lines.append(Content.styled(tr("Notes on its template"), "bold $primary"))
        lines += [Content("  " + clean(note)) for note in info.notes]
    return Content("\n").join(lines)
