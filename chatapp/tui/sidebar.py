"""The list of conversations, newest first."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from chatapp.safe import clean_line
from chatapp.tui import words
from chatapp.tui.messages import SessionChosen, TrashAsked
from sessions.conversation import SessionSummary

MUTED = "$foreground 60%"
ROW_WIDTH = 26
"""Cells of one row."""


class Sidebar(OptionList):
    """One row a conversation; Enter or a click opens it, Delete asks for the trash."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("delete", "trash", "To trash", tooltip="Move this conversation to the trash; can be undone"),
        Binding("u", "undo_trash", "Undo trash", show=False),
    ]
    BORDER_TITLE = "Conversations"

    def __init__(self) -> None:
        super().__init__(id="sidebar", markup=False, compact=True)
        self._rows: tuple[object, ...] = ()

    def show(
        self, summaries: list[SessionSummary], *, current: str | None, running: frozenset[str], now: float
    ) -> None:
        """Fill the list, if anything changed.

        While the list has the focus the highlighted row stays the same conversation; else it is the current one.
        """
        options: list[Option] = []
        rows: list[object] = []
        last_group: str | None = None
        for summary in summaries:
            session = summary.session
            group = words.group(session.updated_at, now)
            if group != last_group:
                options.append(Option(Content.assemble((group, MUTED)), disabled=True))
                rows.append(group)
                last_group = group
            row = _row(summary, is_current=session.id == current, is_running=session.id in running, now=now)
            options.append(Option(row, id=session.id))
            rows.append((session.id, row))
        kept = (self.chosen if self.has_focus else None) or current
        if tuple(rows) == self._rows and kept == self.chosen:
            return
        self._rows = tuple(rows)
        self.set_options(options)
        if kept is not None and any(option.id == kept for option in options):
            self.highlighted = self.get_option_index(kept)

    @property
    def chosen(self) -> str | None:
        """The id of the highlighted conversation."""
        option = self.highlighted_option
        return option.id if option else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open the conversation of a row."""
        event.stop()
        if event.option_id is not None:
            self.post_message(SessionChosen(event.option_id))

    def action_trash(self) -> None:
        """Ask for the highlighted conversation to be moved to the trash."""
        if self.chosen is not None:
            self.post_message(TrashAsked(self.chosen))

    def action_undo_trash(self) -> None:
        """Ask for the last trashed conversation to come back."""
        self.post_message(TrashAsked(None))


def _row(summary: SessionSummary, *, is_current: bool, is_running: bool, now: float) -> Content:
    """`▸ title of the conversation… ✓ 3h`, exactly `ROW_WIDTH` cells."""
    session = summary.session
    age = words.age(session.updated_at, now)
    state = " …" if is_running else " ✓" if session.state == "done" else ""
    room = ROW_WIDTH - len(age) - len(state) - 3
    title = clean_line(session.title, 200) or "New conversation"
    name = Content(title).truncate(room, ellipsis=True)
    pad = " " * max(0, room - name.cell_length)
    return Content.assemble(
        ("▸ " if is_current else "  ", "bold $accent"),
        name.stylize("bold") if is_current else name,
        pad,
        (state + " ", "$accent" if is_running else "$success"),
        (age, MUTED),
    )
