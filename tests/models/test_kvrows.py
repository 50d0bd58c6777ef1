import struct
from itertools import pairwise

import pytest

from models import kvrows

MAGIC = struct.pack("=Ii", 0xAF143CD8, 1)


def section(positions: list[int], *, extra: int = 0, transposed: bool = False, sequence: int = 1) -> bytes:
    """One attention section as the library writes it: two layers, 8 bytes of K and 6 of V per cell."""
    n = len(positions)
    cells = b"".join(struct.pack("=iI", p, 1) + bytes(extra) + struct.pack("=i", sequence) for p in positions)
    if not positions:
        return struct.pack("=II", 1, 0)
    k = (struct.pack("=iQ", 1, 8) + bytes(8 * n)) * 2
    v = (struct.pack("=iII", 1, 2, 3) + bytes(6 * n) if transposed else struct.pack("=iQ", 1, 6) + bytes(6 * n)) * 2
    return struct.pack("=II", 1, n) + cells + struct.pack("=II", transposed, 2) + k + v


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("extra", [0, 12])
def test_sections_are_found(extra: int, transposed: bool) -> None:
    """Each attention section with its cells, whatever their width and the order of V, up to the last byte."""
    parts = [list(range(5, 25)), [7, 6, 8], []]
    payload = MAGIC + b"".join(section(part, extra=extra, transposed=transposed) for part in parts)
    found = kvrows.sections(payload)
    assert found is not None
    assert [list(each.positions) for each in found] == parts
    assert {each.cell_bytes for each in found[:2]} == {12 + extra}
    assert all(a.end < b.at for a, b in pairwise(found))


@pytest.mark.parametrize("cut", [1, 8, 30, 100])
def test_bytes_that_do_not_end_where_they_should_are_no_sections(cut: int) -> None:
    """A payload that is cut, or longer than its sections, is of no known layout."""
    payload = MAGIC + section([0, 1, 2])
    assert kvrows.sections(payload[:-cut]) is None
    assert kvrows.sections(payload + bytes(cut)) is None


@pytest.mark.parametrize(
    "payload", [b"", MAGIC, MAGIC + b"\1\0\0\0", MAGIC + b"\xff" * 8, MAGIC + b"\1\0\0\0" + b"\xff" * 99]
)
def test_junk_has_no_section(payload: bytes) -> None:
    """Neither short bytes nor absurd counts are read past their end."""
    assert kvrows.first_section(payload) is None
    assert kvrows.state_position(payload) is None


def test_positions_must_be_exactly_those() -> None:
    """Order does not matter; a gap, a repeat and a stranger do."""

    def holds(positions: list[int]) -> bool:
        found = kvrows.first_section(MAGIC + section(positions))
        assert found is not None
        return found.holds_exactly(3, 6)

    assert [holds(p) for p in ([3, 4, 5], [5, 3, 4], [3, 5], [3, 4, 4], [3, 4, 5, 6])] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_a_window_ends_at_the_token_before() -> None:
    """The token at 10 sees 7 to 9 in a window of 4; from 8 on only what a segment could have."""

    def covers(positions: list[int], start: int = 0) -> bool:
        found = kvrows.first_section(MAGIC + section(positions))
        assert found is not None
        return found.covers_window(10, 4, start)

    assert covers([7, 8, 9])
    assert covers(list(range(10)))
    assert not covers([8, 9])
    assert covers([8, 9], start=8)
    assert not covers([7, 9])
    assert not covers([7, 8])
    assert not covers([7, 8, 9, 10])
    assert not covers([])


def test_rows_can_be_moved() -> None:
    """Every position of every section shifts, nothing else; an unknown layout is left alone."""
    payload = bytearray(MAGIC + section([0, 1, 2]) + section([1, 2]))
    assert kvrows.move(payload, 100)
    assert payload == MAGIC + section([100, 101, 102]) + section([101, 102])
    broken = payload[:-1]
    assert not kvrows.move(broken, 100)
    assert broken == payload[:-1]


def test_where_a_state_stands() -> None:
    """One cell with no sequences, as the library writes a state; anything else is none."""
    assert kvrows.state_position(MAGIC + struct.pack("=IiI", 1, 41, 0) + bytes(20)) == 41
    assert kvrows.state_position(MAGIC + struct.pack("=IiI", 0, 41, 0)) is None
    assert kvrows.state_position(MAGIC + struct.pack("=IiI", 1, 41, 1)) is None
