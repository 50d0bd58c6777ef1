"""The last line of the window: the keys that do something now, as many as fit in whole."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.content import Content
from textual.events import Resize
from textual.widgets import Footer as TextualFooter
from textual.widgets._footer import FooterKey

from chatapp.safe import clean
from chatapp.texts import tr

_NEEDED = ("help", "command_palette")
"""Actions that stay to the last: they lead to all others."""
_RANK = (
    *("stop", "take_over", "toggle_reasoning"),
    *("new", "toggle_sidebar", "search", "why", "fold_meters", "toggle_done", "rename"),
)
"""Actions of the window: those that are rarely possible, then the others, the most important first."""
_FOCUSED, _WINDOW, _LAST = 1, 2, 100


class Footer(TextualFooter):
    """Keys of what has the focus come first, then those of the window; what does not fit is left out, never cut."""

    _width = 0

    def compose(self) -> ComposeResult:
        """The keys that fit: of what has the focus, of the window, at last those that lead to all others."""
        of_window = {found.binding.action for found in self.screen.active_bindings.values() if found.node is self.app}
        keys = [
            (rank(key.action, of_window=key.action in of_window), key)
            for key in super().compose()
            if isinstance(key, FooterKey)
        ]
        for _, key in keys:
            key.description = tr(key.description)
        # A key keeps its place whatever the user's settings make of it.
        keys.sort(key=lambda ranked: ranked[0] or _LAST - 1)
        fitting = fit([(place, _cells(key)) for place, key in keys], self.app.size.width)
        yield from (key for at, (_, key) in enumerate(keys) if at in fitting)

    def on_resize(self, event: Resize) -> None:
        """Another width has room for more keys, or fewer."""
        if event.size.width != self._width:
            self._width = event.size.width
            self.call_after_refresh(self.recompose)


def fit(keys: Sequence[tuple[int, int]], width: int) -> set[int]:
    """Return which of the keys, each a rank and its cells, fit into `width` cells; the lowest rank comes first."""
    fitting: set[int] = set()
    for at in sorted(range(len(keys)), key=lambda at: keys[at][0]):
        if keys[at][1] <= width:
            width -= keys[at][1]
            fitting.add(at)
    return fitting


def rank(action: str, *, of_window: bool) -> int:
    """How soon the key of an action is left out: 0 for the last of all."""
    if action in _NEEDED:
        return 0
    if not of_window:
        return _FOCUSED
    if action == "leave":
        return _LAST
    return _WINDOW + (_RANK.index(action) if action in _RANK else len(_RANK))


def _cells(key: FooterKey) -> int:
    """How wide a key is painted: blanks around the key, one behind its name."""
    description = Content(clean(key.description)).cell_length + 1 if key.description else 0
    return Content(clean(key.key_display)).cell_length + 2 + description
