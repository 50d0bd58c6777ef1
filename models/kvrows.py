"""What the library's sequence state says about itself, read from its bytes; pure.

A state is `magic, sequence id`, then one section for each part of the memory. An attention section is `streams, cells`,
then for each cell its position, and the rows of all layers; a recurrent one is `cells`, then position and state.
The layout is undocumented, so each reader answers None where the bytes do not fit it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

HEADER_BYTES = 8
# position, number of sequences (always 1), sequence id; models with several positions per token have 12 bytes between.
_CELL_BYTES = (12, 24)

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Section:
    """The cells of one attention section: where they begin, bytes of each, their positions in the order stored."""

    at: int
    cell_bytes: int
    positions: tuple[int, ...]

    @property
    def end(self) -> int:
        """Where the rows begin."""
        return self.at + self.cell_bytes * len(self.positions)

    def holds_exactly(self, start: int, end: int) -> bool:
        """True for the positions [start, end), each once, and no other."""
        return sorted(self.positions) == list(range(start, end))

    def covers_window(self, end: int, window: int, start: int = 0) -> bool:
        """True if all rows are there that the token at `end` sees in a window, and none behind them.

        A token sees itself and the `window - 1` before it; rows before `start` are not asked for.
        """
        lowest = min(self.positions, default=end)
        return lowest <= max(start, end - window + 1) and self.holds_exactly(lowest, end)


def first_section(payload: Buffer, at: int = HEADER_BYTES) -> Section | None:
    """The cells of the attention section that begins at byte `at`."""
    view = memoryview(payload)
    if at + 8 > len(view):
        return None
    n_streams, n_cells = struct.unpack_from("=II", view, at)
    at += 8
    for size in _CELL_BYTES:
        if n_streams != 1 or at + n_cells * size > len(view):
            return None
        words, step = view[at : at + n_cells * size].cast("i"), size // 4
        # The last word of a cell is the one sequence it was read from: a wrong width reads something else there.
        if all(n == 1 for n in words[1::step]) and len(set(words[step - 1 :: step])) <= 1:
            return Section(at, size, tuple(words[0::step]))
    return None


def sections(payload: Buffer) -> list[Section] | None:
    """All attention sections; None unless they end exactly where the bytes do, so never for hybrid models."""
    found: list[Section] = []
    at: int | None = HEADER_BYTES
    while at is not None and at < len(payload):
        section = first_section(payload, at)
        if section is None:
            return None
        found.append(section)
        at = _rows_end(payload, section)
    return found if at == len(payload) else None


def _rows_end(payload: Buffer, section: Section) -> int | None:
    """Where the rows of a section end: K of each layer, then V, by rows or (without flash attention) by columns."""
    n_cells = len(section.positions)
    if not n_cells:
        return section.end
    at = section.end
    try:
        is_transposed, n_layers = struct.unpack_from("=II", payload, at)
        at += 8
        for layer in range(2 * n_layers):
            if layer < n_layers or not is_transposed:
                (row_bytes,) = struct.unpack_from("=Q", payload, at + 4)
            else:
                element_bytes, width = struct.unpack_from("=II", payload, at + 4)
                row_bytes = element_bytes * width
            at += 12 + row_bytes * n_cells
            if at > len(payload):
                return None
    except struct.error:
        return None
    return at


def move(payload: bytearray, shift: int) -> bool:
    """Add `shift` to every position in place; False, and nothing done, if the layout is not the known one."""
    found = sections(payload)
    for section in found or ():
        for i, position in enumerate(section.positions):
            struct.pack_into("=i", payload, section.at + i * section.cell_bytes, position + shift)
    return found is not None


def state_position(payload: Buffer) -> int | None:
    """The position at which a recurrent state stands; None if the bytes hold no single state."""
    if len(payload) < HEADER_BYTES + 12:
        return None
    n_cells, position, n_sequences = struct.unpack_from("=IiI", payload, HEADER_BYTES)
    return int(position) if (n_cells, n_sequences) == (1, 0) else None
