"""The last wall before the terminal: whatever a widget lays out, no row holds what a terminal might obey.

Widgets are given clean text, which shows what was replaced. This catches what slipped by, a library's own text
and what is edited in a field: there it is left out, since the row is laid out already.
"""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from chatapp.safe import inert


class Gate(LineFilter):
    """Takes live characters out of each row, and addresses out of its styles: a terminal would open them."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - as in LineFilter
        """Return the segments, each as wide as it was."""
        return [_inert(segment) for segment in segments]


def _inert(segment: Segment) -> Segment:
    text, style = segment.text, segment.style
    has_link = style is not None and style.link is not None
    if not has_link and text.isascii() and text.isprintable():
        return segment
    if style is not None and has_link:
        style = style.update_link(None)
    return Segment(inert(text), style)


GATE = Gate()
"""Rows are cached by their filter, so that there is one for all windows."""
