"""Widgets around a text that grows: what spares the screen work for each new line of it."""

from __future__ import annotations

from textual.containers import Vertical
from textual.geometry import NULL_OFFSET, Region, Size
from textual.layout import Layout, WidgetPlacement
from textual.reactive import Reactive
from textual.strip import Strip
from textual.widget import Widget


def virtual_size() -> Reactive[Size]:
    """Return the attribute of that name for a widget of which neither the layout nor the picture depends on it.

    Textual's own lays out and paints the whole screen once more after each change, and every new line of an answer is
    one.
    """
    return Reactive(Size(0, 0), repaint=False)


def ground(widget: Widget, crop: Region) -> list[Strip]:
    """Return the rows of a widget that shows nothing itself: one blank row, which costs nothing to draw again."""
    strip = Strip.blank(crop.width, widget.visual_style.rich_style)
    background = widget.background_colors[1]
    for line_filter in widget.get_line_filters():
        strip = strip.apply_filter(line_filter, background)
    return [strip] * crop.height


class Stack(Layout):
    """Children below each other, each as wide as there is room and as high as what it shows.

    Textual's vertical layout does more than that, and measures every child anew when the column's height changes. Its
    `stream` layout does less: it does not see a child of a child that grows.
    """

    name = "stack"

    def arrange(
        self,
        parent: Widget,
        children: list[Widget],
        size: Size,
        greedy: bool = True,  # noqa: ARG002 - Textual's signature
    ) -> list[WidgetPlacement]:
        """Place the children from the top down; margins that meet are one."""
        parent.pre_layout(self)
        viewport = parent.app.viewport_size
        placements = []
        y = below = 0
        for child in children:
            styles = child.styles
            margin, gutter = styles.margin, styles.gutter
            width = max(0, size.width - margin.width)
            inner = max(0, width - gutter.width)
            height = child.get_content_height(size, viewport, inner) + gutter.height
            y += max(margin.top, below)
            region = Region(margin.left, y, width, height)
            placements.append(WidgetPlacement(region, NULL_OFFSET, margin, child))
            y, below = y + height, margin.bottom
        return placements


class Column(Vertical):
    """Widgets below each other, as high as they are; drawn without their ground, which is the screen's."""

    virtual_size = virtual_size()

    def __init__(self, *children: Widget, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(*children, id=id, classes=classes)
        self._stack = Stack()

    @property
    def layout(self) -> Layout:
        """How the children are placed."""
        return self._stack

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw what is between the children: the border if there is one, else one blank line for all of them."""
        if any(kind not in ("", "blank") for kind, _ in self.styles.border):
            return super().render_lines(crop)
        return ground(self, crop)
