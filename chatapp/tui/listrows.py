"""The rows of the list of conversations: which group each belongs to, and how it is written; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

from rich.cells import cell_len
from textual.content import Content

from chatapp.safe import clean, clean_line
from chatapp.texts import tr, tr_later
from chatapp.tui import words
from sessions.conversation import Session, SessionSummary
from sessions.forks import numbered

if TYPE_CHECKING:
    from models.price import Price  # reads the KV index, which the window starts faster without

View = Literal["list", "archive", "trash"]
"""What the list shows."""
Group: TypeAlias = Literal["Pinned", "Today", "Yesterday", "This week", "Older", ""]

GROUPS: Mapping[Group, str] = {
    "Pinned": tr_later("Pinned"),
    "Today": tr_later("Today"),
    "Yesterday": tr_later("Yesterday"),
    "This week": tr_later("This week"),
    "Older": tr_later("Older"),
}
"""What is written above each group."""
MUTED = "$foreground 70%"
WARM, COLD = "●", "○"
"""Marks of conversations that come back from disk, and of those that are read anew."""
FORK = "\u21b3 "
"""Stands before the title of a fork."""
NARROW, BROAD = 26, 35
"""Cells of a row; the broad one has a column for the tokens."""
_TITLE_CHARS = 200


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the list: a conversation, or (no id) the name of a group or a hint. Equal rows look alike.

    `is_warm` is whether coming back is a matter of reading KV from disk, None where that is not known; `seconds` is how
    long it is expected to take.
    """

    session_id: str | None
    text: str
    age: str = ""
    size: str = ""
    is_warm: bool | None = None
    seconds: str = ""
    state: Literal["", "done", "running"] = ""
    is_fork: bool = False
    is_current: bool = False

    def content(self, width: int) -> Content:
        """`▸ title of the conversation… ✓ 4.0k ●0.2s  3h` in exactly `width` cells; all of it where there is room."""
        if self.session_id is None:
            return Content.assemble((clean(self.text), MUTED))
        size = words.right(clean(self.size), 5) if width >= BROAD else ""
        price = "" if self.is_warm is None else f" {WARM if self.is_warm else COLD}"
        if size and price:
            price += words.left(clean(self.seconds), 4)
        state = {"": "", "done": " ✓", "running": " …"}[self.state]
        age = words.right(clean(self.age), words.age_cells()) if size else f" {self.age}"
        room = width - cell_len(state + size + price + age) - 2
        mark, number = (FORK, numbered(self.text)) if self.is_fork else ("", "")
        title = Content(clean(mark + self.text.removesuffix(number)))
        name = title.truncate(room - len(number), ellipsis=True) + clean(number)
        return Content.assemble(
            ("▸ " if self.is_current else "  ", "bold $accent"),
            name.stylize("bold") if self.is_current else name,
            " " * max(0, room - name.cell_length),
            (state, "$accent" if self.state == "running" else "$success"),
            (size, MUTED),
            (price, "$secondary" if self.is_warm else MUTED),
            (clean(age), MUTED),
        )


def rows(
    summaries: Sequence[SessionSummary],
    view: View,
    *,
    current: str | None,
    running: frozenset[str],
    now: float,
    prices: Mapping[str, Price] = MappingProxyType({}),
) -> list[Row]:
    """Return conversations in their order, with a row for each group. `now` is the time (epoch s)."""
    found: list[Row] = []
    last: Group | None = None
    for summary in summaries:
        session = summary.session
        group = group_of(session, now) if view == "list" else ""
        if group and group != last:
            found.append(Row(None, tr(GROUPS[group])))
        last = group
        price = prices.get(session.id)
        found.append(
            Row(
                session.id,
                title_of(session),
                words.age(session.trashed_at or session.updated_at, now),
                words.short_count(summary.n_tokens) if summary.n_tokens else "",
                price.is_warm if price else None,
                words.short_seconds(price.seconds) if price and price.seconds is not None else "",
                "running" if session.id in running else "done" if session.state == "done" else "",
                session.forked_from is not None,
                session.id == current,
            )
        )
    return found


def title_of(session: Session) -> str:
    """A conversation's title as it is shown."""
    return clean_line(session.title, _TITLE_CHARS) or tr("New conversation")


def group_of(session: Session, now: float) -> Group:
    """Which part of the list a conversation belongs to, by the days of the local calendar."""
    if session.pinned_at is not None:
        return "Pinned"
    n_days = (_day(now) - _day(session.updated_at)).days
    if n_days <= 0:
        return "Today"
    return "Yesterday" if n_days == 1 else "This week" if n_days < 7 else "Older"


def _day(at: float) -> date:
    return datetime.fromtimestamp(at, tz=UTC).astimezone().date()
