"""Modal windows for snippets: which one, and what stands in the places of its variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from chatapp.safe import clean_line
from chatapp.texts import tr, tr_later
from chatapp.tui.fields import Field


class SnippetsScreen(ModalScreen[str | None]):
    """Lists names; answers the chosen one, None for Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", tr_later("Cancel"))]

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self._names = names

    def compose(self) -> ComposeResult:
        """The names."""
        with Vertical(classes="window small") as window:
            window.border_title = Content(tr("Snippets"))
            window.border_subtitle = Content(tr("Enter inserts · Escape cancels"))
            yield OptionList(*(Option(Content(clean_line(name, 54))) for name in self._names), markup=False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Answer with the chosen name."""
        self.dismiss(self._names[event.option_index])

    def action_cancel(self) -> None:
        """Answer that none is wanted."""
        self.dismiss(None)


class VariablesScreen(ModalScreen[dict[str, str] | None]):
    """Asks for the value of each variable; answers them, None for Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", tr_later("Cancel"))]

    def __init__(self, name: str, variables: Sequence[str]) -> None:
        super().__init__()
        self._snippet = name
        self._variables = variables
        self._inputs = [Field(max_length=10_000) for _ in variables]

    def compose(self) -> ComposeResult:
        """A line to write in for each."""
        with VerticalScroll(classes="window small", can_focus=False) as window:
            window.border_title = Content(clean_line(self._snippet, 40))
            window.border_subtitle = Content(tr("Enter goes on · Escape cancels"))
            for variable, field in zip(self._variables, self._inputs, strict=True):
                yield Static(Content.assemble((clean_line(variable, 50), "bold")), markup=False)
                yield field

    def on_mount(self) -> None:
        """Begin with the first."""
        self._inputs[0].focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go to the next one, behind the last answer."""
        at = next(at for at, field in enumerate(self._inputs) if field is event.input)
        if at + 1 < len(self._inputs):
            self._inputs[at + 1].focus()
        else:
            values = zip(self._variables, self._inputs, strict=True)
            self.dismiss({variable: field.value for variable, field in values})

    def action_cancel(self) -> None:
        """Answer that nothing is to be inserted."""
        self.dismiss(None)
