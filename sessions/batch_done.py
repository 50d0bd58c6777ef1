"""What a batch has answered already, found by key; 17 bytes a row in memory, whatever the rows hold."""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

_RUN = 1 << 16
"""Records sorted at once: sorting all of them would take several times the memory."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """A record of an earlier run: where it begins in the output (bytes), and whether its row failed."""

    offset: int
    failed: bool


class DoneRows:
    """A multiset of records by key: of two equal rows with one record, one is still to be answered."""

    def __init__(self) -> None:
        self._runs: list[list[tuple[int, int]]] = [[]]
        self._sorted: list[tuple[array[int], array[int]]] = []
        self._keys = array("Q")
        self._places = array("Q")
        self._taken = bytearray()
        self._next: dict[int, int] = {}

    def add(self, key: str, offset: int, *, failed: bool) -> None:
        """Take a record; call before `close`."""
        # Of equal keys, what was answered is found before what failed.
        self._runs[-1].append((int(key, 16), failed << 63 | offset))
        if len(self._runs[-1]) == _RUN:
            self._pack()

    def _pack(self) -> None:
        run = sorted(self._runs.pop())
        self._runs.append([])
        self._sorted.append((array("Q", (key for key, _ in run)), array("Q", (place for _, place in run))))

    def close(self) -> None:
        """Make what was added ready to be found."""
        self._pack()
        for key, place in heapq.merge(*(zip(*run, strict=True) for run in self._sorted)):
            self._keys.append(key)
            self._places.append(place)
        self._sorted.clear()
        self._taken = bytearray(len(self._keys))

    def __len__(self) -> int:
        return len(self._keys)

    def take(self, key: str) -> Earlier | None:
        """Return a record of this key that was not taken before, if there is one."""
        number = int(key, 16)
        first = bisect_left(self._keys, number)
        if first == len(self._keys) or self._keys[first] != number:
            return None
        at = self._next.get(first, first + 1) if self._taken[first] else first
        if at == len(self._keys) or self._keys[at] != number:
            return None
        if at > first:
            self._next[first] = at + 1
        self._taken[at] = True
        return _earlier(self._places[at])

    def left(self) -> Iterator[Earlier]:
        """Yield the records that were not taken, as they stand in the output."""
        offsets = array("Q", (place for place, taken in zip(self._places, self._taken, strict=True) if not taken))
        for place in sorted(offsets, key=lambda place: place & ~(1 << 63)):
            yield _earlier(place)


def _earlier(place: int) -> Earlier:
    return Earlier(place & ~(1 << 63), bool(place >> 63))
