"""What a conversation costs: tokens and KV by message, what was reused, what coming back takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static

from chatapp.safe import clean_line
from chatapp.tui import words
from sessions.costs import Cost

_BAR = 10
_TEXT = 60


class CostScreen(ModalScreen[bool]):
    """Shows a cost; answers True if the conversation is to go on without its heaviest old turn."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "Close"),
        Binding("f", "fork", "Fork without it"),
    ]

    def __init__(self, title: str, cost: Cost, texts: Mapping[int, str]) -> None:
        super().__init__()
        self._title = clean_line(title, 60) or "New conversation"
        self._cost = cost
        self._texts = texts
        self._table: DataTable[Text] = DataTable(cursor_type="row", zebra_stripes=True)

    @property
    def _can_fork(self) -> bool:
        return self._cost.heavy is not None and self._cost.heavy.question_id is not None

    def compose(self) -> ComposeResult:
        """The whole, the messages, the last turns."""
        with Vertical(classes="window tall") as window:
            window.border_title = Content(f"Cost: {self._title}")
            window.border_subtitle = "F forks without it · Escape closes" if self._can_fork else "Escape closes"
            yield Static(whole(self._cost), markup=False, classes="dialog-text")
            if (warning := heavy(self._cost)) is not None:
                yield Static(warning, markup=False, classes="dialog-text")
            yield self._table
            yield Static(last_turns(self._cost), markup=False)

    def on_mount(self) -> None:
        """Fill the table, the largest messages first."""
        self._table.add_columns("role", "tokens", "share", "KV", "text")
        for one in self._cost.largest(len(self._cost.messages)):
            about = "≈" if one.is_estimate else ""
            self._table.add_row(
                Text(one.role),
                Text(f"{about}{words.count(one.n_tokens):>8}"),
                Text(f"{words.bar(one.share, _BAR)} {one.share:>4.0%}"),
                Text(f"{words.size(one.kv_bytes) if one.kv_bytes is not None else '-':>9}"),
                Text(clean_line(self._texts.get(one.message_id, ""), _TEXT)),
            )
        self._table.focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer the fork only where there is something to be left out."""
        return self._can_fork if action == "fork" else super().check_action(action, parameters)

    def action_close(self) -> None:
        """Answer that nothing is to be done."""
        self.dismiss(False)

    def action_fork(self) -> None:
        """Answer that a fork is wanted."""
        self.dismiss(True)


def whole(cost: Cost) -> Content:
    """Tokens, KV, seconds of coming back, and the roles."""
    about = "about " if cost.is_estimate else ""
    share = f", {cost.context_share:.0%} of a context of {cost.n_ctx:,}" if cost.n_ctx and cost.context_share else ""
    rows = [
        ("tokens", f"{about}{words.count(cost.n_tokens)}{share}"),
        ("KV", words.size(cost.kv_bytes) if cost.kv_bytes is not None else "not known yet"),
        ("coming back", f"prefill {_seconds(cost.rebuild_s)}, restore {_seconds(cost.restore_s)}"),
        ("by role", ", ".join(f"{role.role} {words.count(role.n_tokens)} ({role.share:.0%})" for role in cost.roles)),
    ]
    if cost.on_task_share is not None:
        rows.append(("on the task", f"{cost.on_task_share:.0%}"))
    return Content("\n").join(Content.assemble((f"{name:<13}", "bold"), text) for name, text in rows if text)


def heavy(cost: Cost) -> Content | None:
    """The warning about an old message that holds most of it."""
    if cost.heavy is None:
        return None
    way = (
        "F goes on without its turn, in a fork."
        if cost.heavy.question_id is not None
        else "A shorter system prompt makes each answer cheaper: /system."
    )
    who = "One old message" if cost.heavy.question_id is not None else "The system prompt"
    return Content.assemble((f"{who} holds {cost.heavy.share:.0%} of the tokens. {way}", "$warning"))


def last_turns(cost: Cost) -> Content:
    """What the last turns reused."""
    if not cost.last_turns:
        return Content("")
    lines = [Content.assemble(("\nlast turns   resident  restored prefilled  reused", "bold"))]
    for turn in cost.last_turns:
        parts = (turn.resident_tokens, turn.restored_tokens, turn.prefilled_tokens)
        numbers = "".join(f"{words.count(part) if part is not None else '-':>10}" for part in parts)
        share = f"{turn.reuse_share:>7.0%}" if turn.reuse_share is not None else "      -"
        reason = f"  {clean_line(turn.miss_reason, 40)}" if turn.miss_reason else ""
        lines.append(Content.assemble(" " * 11, numbers, " ", share, (reason, "$foreground 60%")))
    return Content("\n").join(lines)


def _seconds(value: float | None) -> str:
    return words.seconds(value) if value is not None else "-"
