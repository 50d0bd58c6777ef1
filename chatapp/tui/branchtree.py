"""All branches of a conversation as an indented tree; one of them can be shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from chatapp.safe import clean_line
from chatapp.texts import tr, tr_later
from models.engine import Role
from models.reasoning import answer_of
from sessions.conversation import Message, MessageStatus

MAX_INDENT = 12
"""Levels that are set in; deeper ones stand below each other."""
LINE_CELLS = 70
MUTED = "$foreground 70%"
_STATUS: Mapping[MessageStatus, str] = {
    "complete": "",
    "stopped": tr_later("stopped"),
    "cut": tr_later("cut"),
    "interrupted": tr_later("interrupted"),
    "failed": tr_later("failed"),
}


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A message: how many branchings lie before it, its first line, whether it is on the branch that is shown."""

    message_id: int
    depth: int
    role: Role
    line: str
    status: MessageStatus
    is_shown: bool


def tree_rows(messages: Sequence[Message], shown: Collection[int]) -> list[TreeRow]:
    """Return the messages of all branches, oldest first, each branch as a whole; system prompts are left out."""
    children: dict[int | None, list[Message]] = {}
    for message in messages:
        children.setdefault(message.parent_id, []).append(message)
    roots = [
        child
        for message in children.get(None, ())
        for child in (children.get(message.id, []) if message.role == "system" else [message])
    ]
    found: list[TreeRow] = []
    waiting = [(message, int(len(roots) > 1)) for message in reversed(roots)]
    while waiting:
        message, depth = waiting.pop()
        text = answer_of(message.text) if message.role == "assistant" else message.text
        line = clean_line(text, LINE_CELLS) or tr("(empty)")
        found.append(TreeRow(message.id, depth, message.role, line, message.status, message.id in shown))
        behind = children.get(message.id, [])
        waiting += [(child, depth + (len(behind) > 1)) for child in reversed(behind)]
    return found


class TreeScreen(ModalScreen[int | None]):
    """Shows the tree; answers the id of the message whose branch is to be shown, None for Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", tr_later("Cancel"))]

    def __init__(self, rows: Sequence[TreeRow]) -> None:
        super().__init__()
        self._rows = rows
        self._list = OptionList(*(Option(row_text(row)) for row in rows), markup=False)

    def compose(self) -> ComposeResult:
        """One row for each message."""
        with Vertical(classes="window tree") as window:
            window.border_title = Content(tr("Branches · ● is shown"))
            window.border_subtitle = Content(tr("Enter shows a branch · Escape closes"))
            yield self._list

    def on_mount(self) -> None:
        """Begin at the end of the branch that is shown."""
        self._list.highlighted = max((at for at, row in enumerate(self._rows) if row.is_shown), default=0)
        self._list.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Answer with the chosen message."""
        self.dismiss(self._rows[event.option_index].message_id)

    def action_cancel(self) -> None:
        """Answer that nothing is to be shown."""
        self.dismiss(None)


def row_text(row: TreeRow) -> Content:
    """`●   you  first line`, on one line."""
    status = tr(_STATUS[row.status])
    you, answer = tr("you"), tr("answer")
    who = you if row.role == "user" else answer
    room = max(cell_len(you), cell_len(answer)) + 1
    return Content.assemble(
        ("● " if row.is_shown else "  ", "bold $accent"),
        "  " * min(row.depth, MAX_INDENT),
        (who + " " * (room - cell_len(who)), MUTED),
        (row.line, "bold" if row.is_shown else ""),
        (f" ({status})" if status else "", "italic"),
    )
