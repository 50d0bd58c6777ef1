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

from chatapp.listing import role_name
from chatapp.misstexts import reason_text
from chatapp.safe import clean, clean_line
from chatapp.texts import tr, tr_later
from chatapp.tui import words
from sessions.costs import Cost

_BAR = 10
_TEXT = 60


class CostScreen(ModalScreen[bool]):
    """Shows a cost; answers True if the conversation is to go on without its heaviest old turn."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", tr_later("Close")),
        Binding("f", "fork", tr_later("Fork without it")),
    ]

    def __init__(self, title: str, cost: Cost, texts: Mapping[int, str]) -> None:
        super().__init__()
        self._title = clean_line(title, 60) or tr("New conversation")
        self._cost = cost
        self._texts = texts
        self._table: DataTable[Text] = DataTable(cursor_type="row", zebra_stripes=True)

    @property
    def _can_fork(self) -> bool:
        return self._cost.heavy is not None and self._cost.heavy.question_id is not None

    def compose(self) -> ComposeResult:
        """The whole, the messages, the last turns."""
        with Vertical(classes="window tall") as window:
            window.border_title = Content(tr("Cost: {title}").format(title=self._title))
            window.border_subtitle = Content(
                tr("F forks without it · Escape closes") if self._can_fork else tr("Escape closes")
            )
            yield Static(whole(self._cost), markup=False, classes="dialog-text")
            if (warning := heavy(self._cost)) is not None:
                yield Static(warning, markup=False, classes="dialog-text")
            yield self._table
            yield Static(last_turns(self._cost), markup=False)

    def on_mount(self) -> None:
        """Fill the table, the largest messages first."""
        self._table.add_columns(tr("role"), tr("tokens"), tr("share"), "KV", tr("text"))
        for one in self._cost.largest(len(self._cost.messages)):
            about = "≈" if one.is_estimate else ""
            self._table.add_row(
                Text(clean(role_name(one.role))),
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
    n_tokens = words.count(cost.n_tokens)
    if cost.is_estimate:
        n_tokens = tr("about {n}").format(n=n_tokens)
    if cost.n_ctx and cost.context_share:
        of_context = tr("{n}, {share} of a context of {n_ctx}")
        n_tokens = of_context.format(n=n_tokens, share=f"{cost.context_share:.0%}", n_ctx=f"{cost.n_ctx:,}")
    back = tr("prefill {prefill}, restore {restore}")
    roles = [f"{role_name(role.role)} {words.count(role.n_tokens)} ({role.share:.0%})" for role in cost.roles]
    rows = [
        (tr("tokens"), n_tokens),
        ("KV", words.size(cost.kv_bytes) if cost.kv_bytes is not None else tr("not known yet")),
        (tr("coming back"), back.format(prefill=_seconds(cost.rebuild_s), restore=_seconds(cost.restore_s))),
        (tr("by role"), clean(", ".join(roles))),
    ]
    if cost.on_task_share is not None:
        rows.append((tr("on the task"), f"{cost.on_task_share:.0%}"))
    return Content("\n").join(Content.assemble((words.left(name, 13), "bold"), text) for name, text in rows if text)


def heavy(cost: Cost) -> Content | None:
    """The warning about an old message that holds most of it."""
    if cost.heavy is None:
        return None
    if cost.heavy.question_id is not None:
        text = tr("One old message holds {share} of the tokens. F goes on without its turn, in a fork.")
    else:
        text = tr(
            "The system prompt holds {share} of the tokens. A shorter system prompt makes each answer cheaper: /system."
        )
    return Content.assemble((text.format(share=f"{cost.heavy.share:.0%}"), "$warning"))


def last_turns(cost: Cost) -> Content:
    """What the last turns reused."""
    if not cost.last_turns:
        return Content("")
    heads = [words.right(name, 10) for name in (tr("resident"), tr("restored"), tr("prefilled"))]
    head = words.left(tr("last turns"), 11) + "".join(heads) + words.right(tr("reused"), 8)
    lines = [Content.assemble(("\n" + head, "bold"))]
    for turn in cost.last_turns:
        parts = (turn.resident_tokens, turn.restored_tokens, turn.prefilled_tokens)
        numbers = "".join(f"{words.count(part) if part is not None else '-':>10}" for part in parts)
        share = f"{turn.reuse_share:>7.0%}" if turn.reuse_share is not None else "      -"
        reason = f"  {clean_line(reason_text(turn.miss_reason), 40)}" if turn.miss_reason else ""
        lines.append(Content.assemble(" " * 11, numbers, " ", share, (reason, "$foreground 70%")))
    return Content("\n").join(lines)


def _seconds(value: float | None) -> str:
    return words.seconds(value) if value is not None else "-"
