"""The list of conversations and what stands around it: the search above, the facts of one row below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from chatapp.safe import clean
from chatapp.texts import tr_later
from chatapp.tui.listrows import BROAD, NARROW, Row, View
from chatapp.tui.messages import MoreAsked, RowHighlighted, SessionChosen, VerbAsked
from chatapp.tui.results import Results, SearchField

BROAD_WINDOW = 130
"""Columns of the window from which on rows have a column for the tokens."""
NEAR_END = 5
"""Rows before the end at which more are loaded."""


class Sidebar(OptionList):
    """One row a conversation; Enter or a click opens it, letters do something to the highlighted one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "delete",
            "verb('trash')",
            tr_later("To trash"),
            id="list.trash",
            tooltip=tr_later("Move this conversation to the trash; can be undone"),
        ),
        Binding("delete", "verb('delete')", tr_later("Delete for good"), id="list.trash"),
        Binding("r", "verb('restore')", tr_later("Restore"), id="list.restore"),
        Binding("slash", "verb('search')", tr_later("Search"), id="list.search"),
        Binding("u", "verb('undo')", tr_later("Undo"), id="list.undo", show=False),
        Binding("p", "verb('pin')", tr_later("Pin"), id="list.pin", show=False),
        Binding("a", "verb('archive')", tr_later("Archive"), id="list.archive", show=False),
        Binding("t", "verb('task')", tr_later("Task line"), id="list.task", show=False),
        Binding("number_sign", "verb('tags')", tr_later("Tags"), id="list.tags", show=False),
        Binding("v", "verb('view')", tr_later("View"), id="list.view"),
    ]

    def __init__(self) -> None:
        super().__init__(id="sidebar", markup=False, compact=True)
        self.view: View = "list"
        self._rows: list[Row] = []
        self._width = NARROW

    def show(self, rows: Sequence[Row], view: View, *, current: str | None) -> None:
        """Bring the list up to date; rows that look as before are not painted again.

        While the list has the focus the highlighted row stays the same conversation; else it is the current one.
        """
        rows = list(rows)
        width = self._fitting
        kept = (self.chosen if self.has_focus else None) or current
        old, is_same_view = self._rows, view == self.view and width == self._width
        self.view, self._width, self._rows = view, width, rows
        ids = [row.session_id for row in rows]
        if is_same_view and ids[: len(old)] == [row.session_id for row in old]:
            for at, (before, row) in enumerate(zip(old, rows, strict=False)):
                if before != row:
                    self.replace_option_prompt_at_index(at, row.content(width))
            self.add_options([self._option(row) for row in rows[len(old) :]])
        else:
            at_y = self.scroll_y if is_same_view else 0
            self.set_options([self._option(row) for row in rows])
            self.scroll_to(y=at_y, animate=False, immediate=True)
        if kept != self.chosen and kept in ids:
            self.highlighted = ids.index(kept)
        elif self.has_focus and self.chosen is None and any(ids):
            self.highlighted = next(at for at, session_id in enumerate(ids) if session_id is not None)

    @property
    def _fitting(self) -> int:
        """Cells that a row may take now."""
        return BROAD if self.app.size.width >= BROAD_WINDOW else NARROW

    def on_resize(self) -> None:
        """Give the rows the width they have now."""
        if self._rows and self._fitting != self._width:
            self.show(self._rows, self.view, current=self.chosen)

    @property
    def chosen(self) -> str | None:
        """The id of the highlighted conversation."""
        option = self.highlighted_option
        return option.id if option else None

    @property
    def is_near_end(self) -> bool:
        """True if the last rows are highlighted, or nearly in sight."""
        last = max(self.highlighted or 0, int(self.scroll_y) + self.size.height - 1)
        return last >= self.option_count - NEAR_END

    def _option(self, row: Row) -> Option:
        return Option(row.content(self._width), id=row.session_id, disabled=row.session_id is None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open the conversation of a row."""
        event.stop()
        if event.option_id is not None:
            self.post_message(SessionChosen(event.option_id))

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Tell the facts of the row; near the end, ask for more."""
        event.stop()
        self.post_message(RowHighlighted(event.option_id))
        if self.is_near_end:
            self.post_message(MoreAsked())

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Reaching the end by the wheel asks for more, too."""
        super().watch_scroll_y(old_value, new_value)
        if new_value > old_value and self.is_near_end:
            self.post_message(MoreAsked())

    def action_verb(self, name: str) -> None:
        """Ask for something to be done to the highlighted conversation."""
        self.post_message(VerbAsked(name, self.chosen))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Each view has verbs of its own."""
        if action == "verb":
            name = parameters[0]
            if name in ("delete", "restore"):
                return self.view == "trash"
            if name in ("trash", "pin", "archive", "task", "tags"):
                return self.view != "trash"
        return super().check_action(action, parameters)


class Library(Vertical):
    """The left part of the window: the search field, the name of the view, the list or what was found, the facts."""

    def __init__(self) -> None:
        super().__init__(id="library")
        self.field = SearchField()
        self.head = Static("", id="list-head", markup=False)
        self.list = Sidebar()
        self.results = Results()
        self.foot = Static("", id="list-foot", markup=False)

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield self.field
        yield self.head
        yield self.list
        yield self.results
        yield self.foot

    def on_mount(self) -> None:
        """Nothing is searched for yet."""
        self.field.display = self.head.display = self.results.display = False

    def say_head(self, text: str) -> None:
        """Say above the list what it shows; nothing where that needs no word."""
        if text != str(self.head.content):
            self.head.update(clean(text))
        self.head.display = bool(text)

    def say_foot(self, content: Content) -> None:
        """Show the facts of the highlighted conversation."""
        self.foot.update(content, layout=False)
