"""A table as lines: columns that share the width, or one field a line where there is no room for columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from textual.content import Content

from chatapp.tui.markdown_blocks import Table

_BETWEEN = " │ "
_LINES = "$foreground 40%"
NARROWEST_COLUMN = 5
"""Cells below which a column says nothing."""


def table_lines(table: Table, width: int) -> Iterator[Content]:
    """Yield the lines of a table, none wider than `width` cells (but for a single character that is)."""
    widths = column_widths(table, width)
    if widths is None:
        yield from _fields(table, width)
        return
    yield from _row([cell.stylize_before("bold $primary") for cell in table.header], table.aligns, widths)
    yield Content.styled("─┼─".join("─" * n for n in widths), _LINES)
    for row in table.rows:
        yield from _row(row, table.aligns, widths)


def column_widths(table: Table, width: int) -> list[int] | None:
    """Return the cells of each column, those that need little first; None if there is no room for columns."""
    rows = [table.header, *table.rows]
    wanted = [max(1, *(_widest(row[at]) for row in rows if at < len(row))) for at in range(len(table.header))]
    room = width - len(_BETWEEN) * (len(wanted) - 1)
    if sum(wanted) <= room:
        return wanted
    if room < NARROWEST_COLUMN * len(wanted):
        return None
    widths = [0] * len(wanted)
    for n_left, at in zip(range(len(wanted), 0, -1), sorted(range(len(wanted)), key=wanted.__getitem__), strict=True):
        widths[at] = min(wanted[at], room // n_left)
        room -= widths[at]
    return widths


def _widest(cell: Content) -> int:
    return max((line.cell_length for line in cell.split("\n", allow_blank=True)), default=0)


def _row(cells: Sequence[Content], aligns: Sequence[str], widths: Sequence[int]) -> Iterator[Content]:
    wrapped = [cell.wrap(width) for cell, width in zip(cells, widths, strict=False)]
    between = Content.styled(_BETWEEN, _LINES)
    for number in range(max(map(len, wrapped), default=0)):
        parts = [
            _aligned(lines[number] if number < len(lines) else Content(), width, align)
            for lines, width, align in zip(wrapped, widths, aligns, strict=False)
        ]
        yield between.join(parts).rstrip()


def _aligned(text: Content, width: int, align: str) -> Content:
    missing = max(0, width - text.cell_length)
    before = missing if align == "right" else missing // 2 if align == "center" else 0
    return text.pad(before, missing - before)


def _fields(table: Table, width: int) -> Iterator[Content]:
    for number, row in enumerate(table.rows):
        if number:
            yield Content.styled("─" * min(width, 12), _LINES)
        for name, cell in zip(table.header, row, strict=False):
            yield from (name.stylize_before("bold $primary") + ": " + cell).wrap(width)
