"""An answer as one widget: Markdown drawn line by line, of which only what is on the screen costs anything."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.events import Click
from textual.geometry import Region, Size
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.visual import Visual
from textual.widget import Widget

from chatapp.tui.column import virtual_size
from chatapp.tui.markdown_blocks import LINK
from chatapp.tui.markdown_lines import Line, copied
from chatapp.tui.markdown_sheet import Sheet


class MarkdownText(Widget):
    """Shows a text that is safe for the terminal; `set` gives it a whole one, `grow` one that begins with the last."""

    virtual_size = virtual_size()

    class LinkChosen(Message):
        """A link in the text was clicked."""

        def __init__(self, address: str) -> None:
            super().__init__()
            self.address = address

    def __init__(self, text: str = "") -> None:
        super().__init__(classes="markdown")
        self._sheet = Sheet()
        self._strips: dict[int, tuple[Line, Strip]] = {}  # lines as they were drawn last
        self._rows: dict[int, tuple[Strip, Strip]] = {}  # the same with the padding beside them
        self._drawn_width = 0  # that those were drawn for
        self._laid: Sequence[Line] = []  # the lines there was room made for
        if text:
            self._sheet.set(text)

    @property
    def _text_width(self) -> int:
        """Cells of a line."""
        return max(0, self.outer_size.width - self.gutter.width)

    @property
    def source(self) -> str:
        """The text as it was given."""
        return self._sheet.text

    def set(self, text: str) -> None:
        """Show a whole text."""
        self._sheet.set(text)
        self._changed()

    def grow(self, text: str) -> None:
        """Show a text that begins with the one before."""
        self._sheet.grow(text)
        self._changed()

    def _changed(self) -> None:
        width = self._text_width
        before, lines = self._laid, self._sheet.lines(width) if width > 0 else []
        if len(before) != len(lines) or not lines:
            self.refresh(layout=True)
            return
        # Most of what comes goes into the last line: nothing else on the screen moves or is drawn.
        n_same = len(lines)
        while n_same and lines[n_same - 1] is not before[n_same - 1]:
            n_same -= 1
        self._laid = lines
        if n_same < len(lines):
            self.refresh(Region(0, self.gutter.top + n_same, self.outer_size.width, len(lines) - n_same))

    def get_content_width(self, container: Size, viewport: Size) -> int:  # noqa: ARG002 -- Textual's signature
        """Return the cells there are."""
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        """Return the number of lines at this width."""
        self._laid = self._sheet.lines(width) if width > 0 else []
        return len(self._laid)

    def render_line(self, y: int) -> Strip:
        """Draw one line."""
        width = self._text_width
        lines = self._sheet.lines(width)
        if not 0 <= y < len(lines):
            return Strip.blank(width)
        drawn, strip = self._strips.get(y, (None, None))
        if strip is None or drawn is not lines[y]:
            if not self.is_attached:  # just removed: the frame before the next layout has it still
                return Strip.blank(width)
            strip = self._strip(lines[y], y, width)
            self._strips[y] = (lines[y], strip)
        return strip

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw the rows of a region, padding included: a text that grows keeps all but its last ones.

        Textual would forget every row that is drawn whenever the height changes.
        """
        background = self.background_colors[1]
        filters = self.get_line_filters()
        width = self.outer_size.width
        rows = []
        for y in crop.line_range:
            row = self._row(y, width)
            for line_filter in filters:
                row = row.apply_filter(line_filter, background)
            rows.append(row)
        if crop.column_span != (0, width):
            return [row.crop(crop.x, crop.right) for row in rows]
        return rows

    def _row(self, y: int, width: int) -> Strip:
        style = self.visual_style.rich_style
        gutter = self.gutter
        if not gutter.top <= y < gutter.top + len(self._sheet.lines(self._text_width)):
            return Strip.blank(width, style)
        line = self.render_line(y - gutter.top)
        drawn, row = self._rows.get(y, (None, None))
        if row is None or drawn is not line:
            left, right = Segment(" " * gutter.left, style), Segment(" " * gutter.right, style)
            row = Strip([left, *line, right]).adjust_cell_length(width, style)
            self._rows[y] = (line, row)
        return row

    def _strip(self, line: Line, y: int, width: int) -> Strip:
        content, style = line.content, self.visual_style
        if line.fill:
            style += Style.parse(line.fill)
        if (selection := self.text_selection) is not None and (span := selection.get_span(y)) is not None:
            start, end = span
            marked = Style.from_styles(self.screen.get_component_styles("screen--selection"))
            content = content.stylize(marked, start, len(content) if end == -1 else end)
        strips = Visual.to_strips(self, content, max(width, content.cell_length), 1, style, apply_selection=False)
        strip = strips[0] if strips else Strip([])
        return strip.adjust_cell_length(width, style.rich_style).apply_offsets(0, y)

    def notify_style_update(self) -> None:
        """Draw anew: colours changed."""
        self._forget()
        super().notify_style_update()

    def on_resize(self) -> None:
        """Draw anew if the width is another, and with it the lines."""
        if self._text_width != self._drawn_width:
            self._drawn_width = self._text_width
            self._forget()

    def selection_updated(self, selection: Selection | None) -> None:  # noqa: ARG002
        """Draw anew: what is selected changed."""
        self._forget()
        self.refresh()

    def _forget(self) -> None:
        self._strips.clear()
        self._rows.clear()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the selected text with the line ends of the source, and what ends it."""
        lines = self._sheet.lines(self._text_width)
        spans = [(y, span) for y in range(len(lines)) if (span := selection.get_span(y)) is not None]
        return copied([lines[y] for y, _ in spans], [span for _, span in spans]), "\n"

    def on_click(self, event: Click) -> None:
        """Say which link was clicked; it is opened by key only, with the whole address in sight."""
        address = event.style.meta.get(LINK)
        if isinstance(address, str):
            event.stop()
            self.post_message(self.LinkChosen(address))
