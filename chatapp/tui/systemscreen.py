"""The system prompt of a conversation: chosen from the library or written, with what would change from run to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from chatapp.safe import clean, clean_line
from chatapp.texts import tr, tr_later, tr_n
from chatapp.tui import words
from chatapp.tui.fields import Area
from sessions.lint import find_volatile, split_volatile
from sessions.prompts import SystemPrompt

LOOK_AFTER_S = 0.2
SHOWN_FINDINGS = 3
MUTED = "$foreground 70%"


@dataclass(frozen=True, slots=True)
class SystemChoice:
    """A system prompt, and what was moved out of it, for the first message."""

    text: str
    moved: str


class SystemScreen(ModalScreen[SystemChoice | None]):
    """A text to write, and the library's to begin with; answers the choice, None for Escape.

    `is_fork` says that the conversation has messages, and would go on in a fork.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", tr_later("Cancel")),
        Binding("ctrl+s", "use", tr_later("Use it"), priority=True),
        Binding("f8", "move_out", tr_later("Move it to the first message")),
    ]

    def __init__(self, text: str, prompts: Sequence[SystemPrompt], *, is_fork: bool) -> None:
        super().__init__()
        self._prompts = prompts
        self._is_fork = is_fork
        self._moved = ""
        self._later: Timer | None = None
        self._list = OptionList(*(Option(_prompt(one)) for one in prompts), markup=False)
        self._area = Area(clean(text), soft_wrap=True, tab_behavior="focus", compact=True, id="system-text")
        self._line = Static("", markup=False)

    def compose(self) -> ComposeResult:
        """The library, the text, what is found in it."""
        with Vertical(classes="window tall") as window:
            window.border_title = Content(tr("System prompt"))
            window.border_subtitle = Content(tr("Ctrl+S uses it · Tab changes sides · Escape cancels"))
            if self._is_fork:
                yield Static(
                    tr("The conversation goes on with it in a fork; this one stays as it is."),
                    markup=False,
                    classes="dialog-text",
                )
            if self._prompts:
                yield self._list
            yield self._area
            yield self._line

    def on_mount(self) -> None:
        """Begin with the text."""
        self._area.focus()
        self._look()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take a prompt of the library as the text."""
        self._area.load_text(clean(self._prompts[event.option_index].text))
        self._moved = ""
        self._area.focus()

    def on_text_area_changed(self) -> None:
        """Look at the text once the keys rest."""
        if self._later is not None:
            self._later.stop()
        self._later = self.set_timer(LOOK_AFTER_S, self._look)

    def _look(self) -> None:
        text = self._area.text
        found = find_volatile(text)
        lines: list[Content] = []
        for one in found[:SHOWN_FINDINGS]:
            n = text.count("\n", 0, one.start) + 1
            where = tr("line {n}: {reason}").format(n=n, reason=clean(one.reason))
            lines.append(Content.assemble((f"{where}, ", "$warning"), clean_line(one.text, 40)))
        if found:
            n_more = len(found) - SHOWN_FINDINGS
            more = tr("{n} more.").format(n=n_more) + " " if n_more > 0 else ""
            way = tr("This changes from run to run, so its KV is computed anew each time: F8 moves it out.")
            lines.append(Content.assemble((more + way, MUTED)))
        if self._moved:
            goes = tr("For the first message: {text}").format(text=clean_line(self._moved, 60))
            lines.append(Content.assemble((goes, "$success")))
        self._line.update(Content("\n").join(lines))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to move something only where something is found."""
        if action == "move_out":
            return bool(find_volatile(self._area.text))
        return super().check_action(action, parameters)

    def action_move_out(self) -> None:
        """Move what changes from run to run out of the text."""
        stable, moved = split_volatile(self._area.text)
        self._moved = "\n".join(part for part in (self._moved, moved) if part)
        self._area.load_text(clean(stable))
        self._look()

    def action_use(self) -> None:
        """Answer with the text."""
        if self._area.text.strip():
            self.dismiss(SystemChoice(self._area.text, self._moved))
        else:
            self._line.update(Content.assemble((tr("Write a text, or choose one."), "$warning")))

    def action_cancel(self) -> None:
        """Answer that nothing changes."""
        self.dismiss(None)


def _prompt(one: SystemPrompt) -> Content:
    n = one.n_sessions
    uses = "  " + tr_n("{n} conversation", "{n} conversations", n).format(n=words.count(n)) if n else ""
    return Content.assemble((f"@{clean_line(one.name, 30)}", "bold"), "  ", clean_line(one.text, 40), (uses, MUTED))
