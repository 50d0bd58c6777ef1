"""Search as you type: from the keys in the field to the matches in the place of the list."""

from __future__ import annotations

from textual.timer import Timer

from chatapp.safe import clean
from chatapp.texts import tr, tr_n
from chatapp.tui.beside import Beside
from chatapp.tui.results import as_query
from chatapp.tui.stage import Stage
from sessions.errors import SessionError
from sessions.search import Page

DEBOUNCE_S = 0.08
"""A query runs this long after the last key, in seconds."""
MAX_HITS = 60


class Searching:
    """Asks beside the window; of several queries the newest wins."""

    def __init__(self, stage: Stage, beside: Beside) -> None:
        self._stage = stage
        self._beside = beside
        self._later: Timer | None = None

    @property
    def is_open(self) -> bool:
        """True while there is a field to type in."""
        return bool(self._stage.listing.field.display)

    def open(self) -> None:
        """Show the field, with what was last looked for selected."""
        library = self._stage.listing
        library.field.display = True
        library.field.focus()
        library.field.action_select_all()
        self._show()

    def close(self) -> None:
        """Return to the list."""
        library = self._stage.listing
        library.field.value = ""
        library.field.display = False
        self._show()
        library.list.focus()

    def changed(self) -> None:
        """Look again, shortly after the last key."""
        if self._later is not None:
            self._later.stop()
        self._later = self._stage.app.set_timer(DEBOUNCE_S, self._begin)

    def _begin(self) -> None:
        self._stage.work(self._search(self._query), "search")

    @property
    def _query(self) -> str:
        return as_query(self._stage.listing.field.value).strip()

    def _show(self) -> None:
        """The matches stand in the place of the list while there is a query."""
        library = self._stage.listing
        is_searching = self.is_open and bool(self._query)
        library.results.display = is_searching
        library.list.display = library.foot.display = not is_searching

    async def _search(self, query: str) -> None:
        """Search, and again while there are messages that could not be looked into yet."""
        while True:
            try:
                page = await self._beside.ask(lambda them: them.search(query, limit=MAX_HITS)) if query else None
            except SessionError as error:
                self._stage.warn(str(error))
                return
            except Exception as error:  # noqa: BLE001 - the top of a worker
                told = f"{type(error).__name__}: {error}"
                self._stage.warn(tr("The search failed ({error}).").format(error=told))
                return
            if not self._stage.is_standing or query != self._query:
                return
            if page is not None:
                self._stage.listing.results.show(page.hits, self._stage.now(), _hint(page, query))
            self._show()
            if page is None or not page.n_unindexed:
                return


def _hint(page: Page, query: str) -> str:
    """What to say below the matches."""
    if page.n_unindexed:
        told = tr_n("still reading {n} message…", "still reading {n} messages…", page.n_unindexed)
        return told.format(n=f"{page.n_unindexed:,}")
    if page.has_more:
        return tr("the {n} best are shown: type more words for fewer").format(n=MAX_HITS)
    return "" if page.hits else tr("Nothing found for {query}").format(query=clean(query))
