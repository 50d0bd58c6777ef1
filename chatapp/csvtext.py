"""Tables as CSV that a spreadsheet only shows: no cell of it is a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

_FORMULA = tuple("=+-@\t\r＝＋－＠")
"""What spreadsheets take for the beginning of a formula, in some languages at full width too."""

Cell = str | int | float | None


def csv_lines(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """Yield the lines of a table, header first, each with its line end; None is an empty cell.

    A text that would be a formula gets an apostrophe before it.
    """
    yield _line(header)
    for row in rows:
        yield _line(row)


def _line(row: Sequence[Cell]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow([_inert(cell) for cell in row])  # so both are quoted in cells
    return line.getvalue().removesuffix("\r\n") + "\n"


def _inert(cell: Cell) -> Cell:
    return "'" + cell if isinstance(cell, str) and cell.lstrip(" \n").startswith(_FORMULA) else cell
