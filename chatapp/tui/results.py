"""What was found: the field one types in, and the matches, each with its text around it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from chatapp.safe import clean, clean_line
from chatapp.texts import tr, tr_later
from chatapp.tui import words
from chatapp.tui.fields import Field
from chatapp.tui.listrows import MUTED, title_of
from chatapp.tui.messages import SearchClosed, SessionChosen
from sessions.search import Hit

LEAD_CHARS = 12
"""What stands before the first match of a snippet."""
SNIPPET_CELLS = 78
"""Three lines of the list."""
FOUND = "bold underline $accent"

_ROLES = {
    "user": tr_later("you"),
    "assistant": tr_later("answer"),
    "system": tr_later("system prompt"),
    None: tr_later("title"),
}


class SearchField(Field):
    """One line to type a query in; Up, Down and Enter choose among what was found."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close_search", tr_later("Back to the list")),
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(id="search", placeholder=tr('words, "a phrase", #tag'), max_length=200, compact=True)

    def action_close_search(self) -> None:
        """Return to the list."""
        self.post_message(SearchClosed())

    def action_move(self, step: int) -> None:
        """Highlight the next or the previous match."""
        results = self.screen.query_one(Results)
        if step > 0:
            results.action_cursor_down()
        else:
            results.action_cursor_up()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Open the highlighted match."""
        event.stop()
        self.screen.query_one(Results).action_select()


class Results(OptionList):
    """The matches of a query, best first; Enter or a click opens the conversation at the message."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close_search", tr_later("Back to the list"))]

    def __init__(self) -> None:
        super().__init__(id="results", markup=False, compact=True)
        self._hits: Sequence[Hit] = ()

    def show(self, hits: Sequence[Hit], now: float, hint: str) -> None:
        """Show matches, and a line of ours below them, if any."""
        self._hits = hits
        options = [Option(hit_text(hit, now)) for hit in hits]
        if hint:
            options.append(Option(Content.assemble((clean(hint), MUTED)), disabled=True))
        self.set_options(options)
        self.highlighted = 0 if hits else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open the conversation of a match."""
        event.stop()
        hit = self._hits[event.option_index]
        self.post_message(SessionChosen(hit.session.id, None if hit.role == "system" else hit.message_id))

    def action_close_search(self) -> None:
        """Return to the list."""
        self.post_message(SearchClosed())


def as_query(typed: str) -> str:
    """Return what was typed as `sessions.query` takes it: `#tag` is short for `tag:tag`."""
    return re.sub(r"(?<!\S)#(?=\S)", "tag:", typed)


def hit_text(hit: Hit, now: float) -> Content:
    """The title and where it was found; then the text with its matches in bold and underlined."""
    where = f"{tr(_ROLES[hit.role])} · {words.age(hit.created_at, now)}"
    if hit.session.archived_at is not None:
        where += " · " + tr("archived")
    if hit.role is None:
        return Content.assemble(snippet_text(hit), ("\n" + where, MUTED), "\n")
    title = clean_line(title_of(hit.session), 26)
    return Content.assemble((title, "bold"), ("\n" + where, MUTED), "\n", snippet_text(hit), "\n")


def snippet_text(hit: Hit) -> Content:
    """The part of a snippet around its first match, on one line, cut to `SNIPPET_CELLS`."""
    first = hit.spans[0][0] if hit.spans else 0
    start = max(0, first - LEAD_CHARS)
    parts: list[tuple[str, str]] = [("…", "")] if start else []
    at = start
    for a, b in hit.spans:
        parts += [(_one_line(hit.snippet[at:a]), ""), (_one_line(hit.snippet[a:b]), FOUND)]
        at = b
    parts.append((_one_line(hit.snippet[at:]), ""))
    room = SNIPPET_CELLS
    kept: list[Content] = []
    for text, style in parts:
        if cell_len(text) > room:
            kept.append(Content.styled(clean_line(text, room) if room > 1 else "…", style))
            break
        kept.append(Content.styled(clean(text), style))
        room -= cell_len(text)
    return Content.assemble(*kept)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", clean(text))
