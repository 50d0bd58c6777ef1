"""The code blocks of a message, and the small window that asks which of them is copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from chatapp.safe import clean_line
from chatapp.texts import tr, tr_later, tr_n
from chatapp.tui.markdown_blocks import parser

MUTED = "$foreground 70%"
_SHOWN_LINES = 2


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """What stands between two fences, or set in by four blanks, without these; `language` as the model named it."""

    language: str
    text: str


def code_blocks(text: str) -> list[CodeBlock]:
    """Return the code blocks of a Markdown text in their order, also those in lists and quotes, and one left open."""
    return [
        CodeBlock((token.info.split() or [""])[0], token.content)
        for token in parser().parse(text)
        if token.type in ("fence", "code_block")
    ]


class CodeScreen(ModalScreen[str | None]):
    """Lists the code blocks of a message; answers the text of the chosen one, None for Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", tr_later("Cancel"))]

    def __init__(self, blocks: Sequence[CodeBlock]) -> None:
        super().__init__()
        self._blocks = blocks
        self._list = OptionList(*(Option(_row(block)) for block in blocks), markup=False)

    def compose(self) -> ComposeResult:
        """The blocks by language, size and first lines."""
        with Vertical(classes="window") as window:
            window.border_title = Content(tr("Copy a code block"))
            window.border_subtitle = Content(tr("Enter copies · Escape cancels"))
            yield self._list

    def on_mount(self) -> None:
        """The last one is what the answer comes to, most times."""
        self._list.highlighted = len(self._blocks) - 1

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Answer with the chosen block."""
        self.dismiss(self._blocks[event.option_index].text)

    def action_cancel(self) -> None:
        """Answer that nothing is copied."""
        self.dismiss(None)


def _row(block: CodeBlock) -> Content:
    lines = [line for line in block.text.splitlines() if line.strip()]
    n_lines = len(block.text.splitlines())
    size = tr_n("{n} line", "{n} lines", n_lines).format(n=n_lines)
    head = Content.assemble((clean_line(block.language, 20) or "text", "bold"), (f"  {size}", MUTED))
    return Content("\n").join([head, *(Content("  " + clean_line(line, 70)) for line in lines[:_SHOWN_LINES])])
