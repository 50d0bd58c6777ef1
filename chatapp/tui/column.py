"""Widgets around a text that grows: what spares the screen a second layout for each new line."""

from __future__ import annotations

from textual.containers import Vertical
from textual.geometry import Size
from textual.reactive import Reactive


def virtual_size() -> Reactive[Size]:
    """Return the attribute of that name for a widget whose layout does not depend on it.

    Textual's own lays out the whole screen once more after each change, and every new line of an answer is one.
    """
    return Reactive(Size(0, 0))


class Column(Vertical):
    """Widgets below each other, as high as they are."""

    virtual_size = virtual_size()
