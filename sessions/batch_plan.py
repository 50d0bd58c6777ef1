"""Which rows of a batch are still to be answered, and where in the output each row's answer stands; 8 bytes a row."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from sessions.batch_input import Line
from sessions.batch_results import Results
from sessions.batch_rows import Reading, Row

_NOWHERE = (1 << 64) - 1

Missed = Callable[[Row, dict[str, Any]], None]
"""Told of the row that was answered last before a run ended, with its record."""


def _nothing(_row: Row, _record: dict[str, Any]) -> None:
    pass


class Plan:
    """Compares the input with what earlier runs answered.

    A row is the one of a record if their keys are equal, so that a changed row is a new one; equal rows are answered as
    often as they are there. With `retries` a row that failed is answered again.
    """

    def __init__(self, results: Results | None, *, retries: bool = False, missed: Missed = _nothing) -> None:
        self._results = results
        self._retries = retries
        self._missed = missed
        self._places = array("Q")
        self.n_done = 0
        """Rows that earlier runs answered."""
        self.n_failed = 0
        """Rows of those that failed, and are not tried again."""
        self.is_read_whole = False
        """True once all rows of the input were looked at."""

    def open_rows(
        self, lines: Iterable[Line], reading: Reading, *, limit: int | None = None
    ) -> Iterator[tuple[Row, int]]:
        """Yield the rows that are to be answered, and where their lines begin; `limit` is how many rows are looked at.

        Reads as it is asked, and keeps nothing of the rows.
        """
        for line in lines:
            if len(self._places) == limit:
                return
            if row := self.look(line, reading):
                yield row, line.offset
        self.is_read_whole = True

    def look(self, line: Line, reading: Reading) -> Row | None:
        """Return the row of the next line if it is to be answered."""
        row = reading.row(line.number, len(self._places), line.content)
        return row if self._is_open(row) else None

    @property
    def n_rows(self) -> int:
        """Rows that were looked at."""
        return len(self._places)

    def _is_open(self, row: Row) -> bool:
        results = self._results
        earlier = results.done.take(row.key) if results else None
        self._places.append(_NOWHERE if earlier is None else earlier.offset)
        if earlier is None or results is None:
            return True
        if earlier.failed and self._retries:
            return True
        self.n_done += 1
        self.n_failed += earlier.failed
        if earlier.offset == results.last_offset and results.last:
            self._missed(row, results.last)
        return False

    def wrote(self, row: Row, offset: int) -> None:
        """Remember where a row's answer begins in the output."""
        self._places[row.place] = offset

    def arrange(self, *, by_input: bool) -> int:
        """Put the output in order once all rows are answered; return how many answers belong to no row any more.

        Those were paid for, so they stay, at the end; a failure that belongs to no row, or was made good, goes.
        """
        assert self._results is not None, "there is an output to put in order"
        left = [one.offset for one in self._results.done.left() if not (one.failed and self.is_read_whole)]
        answered = (offset for offset in self._places if offset != _NOWHERE)
        offsets = chain(answered, left)
        self._results.arrange(offsets if by_input else sorted(offsets))
        return len(left) if self.is_read_whole else 0
