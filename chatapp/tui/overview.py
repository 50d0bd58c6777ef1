"""What the list of conversations shows: which of them, how many, and what coming back to one takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from textual.content import Content
from textual.timer import Timer

from chatapp.safe import clean_line
from chatapp.texts import tr, tr_later, tr_n
from chatapp.tui import words
from chatapp.tui.beside import Beside
from chatapp.tui.listrows import MUTED, Row, View, rows
from chatapp.tui.sidebar import Library
from models.errors import EngineError
from sessions.conversation import SessionSummary
from sessions.errors import SessionError
from sessions.overview import Wanted

if TYPE_CHECKING:
    from models.price import Price  # reads the KV index, which the window starts faster without

PAGE = 100
"""Conversations that are loaded at once."""
MAX_ROWS = 2_000
"""Loaded at most; older ones are found by a search."""
PRICES_AFTER_S = 1.0
"""The prices of all rows are asked for this long after the list changed, in seconds."""
PRICE_AFTER_S = 0.15
"""The price of a row is asked for this long after it was highlighted, in seconds."""

VIEWS: Mapping[View, tuple[Wanted, str, str]] = {
    "list": (Wanted(), "", tr_later("No conversation yet")),
    "archive": (Wanted(is_archived=True), tr_later("Archive · V goes on"), tr_later("The archive is empty")),
    "trash": (Wanted(is_trashed=True), tr_later("Trash · V goes on"), tr_later("The trash is empty")),
}
"""What each view asks for, its head, and what it says when it is empty."""


Prices = Callable[[Sequence[SessionSummary]], Mapping[str, "Price"]]
"""Returns the prices of conversations by id, as far as they are known; reads files, so it is called beside."""
Fetch = Callable[..., list[SessionSummary] | None]


class Overview:
    """Owner of the list's view and pages. `fetch` is `SessionManager.sessions`, None where it failed.

    `work` runs a body beside the widgets, the newest only.
    """

    def __init__(
        self,
        library: Library,
        *,
        fetch: Fetch,
        work: Callable[..., object],
        beside: Beside,
        prices: Prices | None,
        clock: Callable[[], float],
    ) -> None:
        self.view: View = "list"
        self._library = library
        self._fetch = fetch
        self._work = work
        self._beside = beside
        self._prices = prices
        self._clock = clock
        self._n_wanted = PAGE
        self._has_more = False
        self._loaded: dict[str, SessionSummary] = {}
        self._known: dict[str, Price] = {}
        self._highlighted: str | None = None
        self._later: Timer | None = None
        self._all_later: Timer | None = None
        self._current: str | None = None
        self._running: frozenset[str] = frozenset()

    def refresh(self, current: str | None, running: frozenset[str]) -> None:
        """Bring the list up to date."""
        self._current, self._running = current, running
        wanted, head, _ = VIEWS[self.view]
        found = self._fetch(wanted, limit=self._n_wanted + 1)
        if found is None:
            return
        self._has_more = len(found) > self._n_wanted
        self._loaded = {summary.session.id: summary for summary in found[: self._n_wanted]}
        self._library.say_head(tr(head))
        self._paint()
        if self._prices is not None:
            if self._all_later is not None:
                self._all_later.stop()
            self._all_later = self._library.set_timer(PRICES_AFTER_S, self._ask_prices)

    def more(self) -> None:
        """The end of the list is near: load the next page."""
        is_wanted = self._has_more and self._library.list.is_near_end  # two may have asked for the same page
        if not is_wanted or self._n_wanted >= MAX_ROWS or not self._loaded:
            return
        last = next(reversed(self._loaded.values()))
        found = self._fetch(VIEWS[self.view][0], limit=PAGE + 1, after=last)
        if found is None:
            return
        self._has_more = len(found) > PAGE
        self._n_wanted += PAGE
        self._loaded |= {summary.session.id: summary for summary in found[:PAGE]}
        self._paint()

    def _paint(self) -> None:
        shown = rows(
            list(self._loaded.values()),
            self.view,
            current=self._current,
            running=self._running,
            now=self._clock(),
            prices=self._known,
        )
        if self._has_more and self._n_wanted >= MAX_ROWS:
            shown.append(Row(None, tr("older ones: / finds them")))
        self._library.list.show(shown or [Row(None, tr(VIEWS[self.view][2]))], self.view, current=self._current)
        self._tell()

    def next_view(self) -> None:
        """Show the archive, then the trash, then the list again."""
        names: list[View] = list(VIEWS)
        self.view = names[(names.index(self.view) + 1) % len(names)]
        self._n_wanted = PAGE
        self.refresh(self._current, self._running)

    # --- one row ---

    def highlight(self, session_id: str | None) -> None:
        """Show the facts of a row, and soon what coming back to it takes."""
        self._highlighted = session_id
        self._tell()
        if self._later is not None:
            self._later.stop()
        if self._prices is not None:
            self._later = self._library.set_timer(PRICE_AFTER_S, self._ask_price)

    def _ask_prices(self) -> None:
        if self._prices is not None and self._loaded and self.view != "trash":
            self._work(self._price_all(self._prices, list(self._loaded.values())), "prices")

    async def _price_all(self, prices: Prices, summaries: list[SessionSummary]) -> None:
        try:
            found = await self._beside.ask(lambda _: prices(summaries))
        except (SessionError, EngineError, OSError):
            return  # as for one
        if found != {key: self._known.get(key) for key in found}:
            self._known |= found
            self._paint()

    def _ask_price(self) -> None:
        summary = self._loaded.get(self._highlighted or "")
        if summary is not None and self._prices is not None:
            self._work(self._tell_price(self._prices, summary), "price")

    async def _tell_price(self, prices: Prices, summary: SessionSummary) -> None:
        try:
            found = await self._beside.ask(lambda _: prices([summary]))
        except (SessionError, EngineError, OSError):
            return  # a price is a convenience: without it the row says nothing of it
        self._known.pop(summary.session.id, None)
        self._known |= found
        if self._library.is_attached:
            self._tell()

    def _tell(self) -> None:
        summary = self._loaded.get(self._highlighted or "")
        if summary is None:
            self._library.say_foot(Content(""))
            return
        session = summary.session
        n_tokens = tr_n("{n} token", "{n} tokens", summary.n_tokens).format(n=words.count(summary.n_tokens))
        facts = [n_tokens] if summary.n_tokens else []
        if price := self._known.get(session.id):
            facts.append(_price(price))
        tags = " ".join(f"#{clean_line(tag, 40)}" for tag in session.tags)
        self._library.say_foot(Content.assemble((" · ".join(facts), ""), ("\n" + tags, MUTED)))


def _price(price: Price) -> str:
    """What coming back to a conversation takes, in words."""
    if price.seconds is None:
        return tr("warm") if price.is_warm else tr("cold")
    told = tr("warm {time}") if price.is_warm else tr("cold {time}")
    return told.format(time=_short(price.seconds))


def _short(seconds: float) -> str:
    if seconds < 0.05:
        return "<0.1 s"
    return f"{seconds:.1f} s" if seconds < 10 else words.seconds(seconds)
