"""Numbers and times as a reader wants them: short, with their unit, of steady width."""

from __future__ import annotations

import textwrap
from typing import Literal

from rich.cells import cell_len, chop_cells

from chatapp.texts import tr

_MINUTE, _HOUR, _DAY = 60, 3600, 86400

Fullness = Literal["", "warning", "error"]
_FILLING, _FULL = 0.75, 0.9


def count(n: int) -> str:
    """A whole number with thousands marked: 4,010."""
    return f"{n:,}"


def short_count(n: int) -> str:
    """A whole number in at most four cells: 950, 4.0k, 12k, 1.2M."""
    for unit, length in (("", 1), ("k", 1_000), ("M", 1_000_000)):
        value = n / length
        if value < 999.5 or unit == "M":
            return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{value:.0f}{unit}"
    raise AssertionError("the loop returns at its last unit")


def size(n_bytes: float) -> str:
    """Bytes in the largest unit that keeps at least one digit before the point: 88.6 MiB."""
    value = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the loop returns at its last unit")


def seconds(value: float) -> str:
    """A duration: milliseconds below a tenth of a second, minutes above a hundred seconds."""
    if value < 0.001:
        return tr("<{n} ms").format(n=1)
    if value < 0.1:
        return tr("{n} ms").format(n=f"{value * 1000:.0f}" if value >= 0.01 else f"{value * 1000:.1f}")
    if value < 100:
        return tr("{n} s").format(n=f"{value:.2f}" if value < 10 else f"{value:.0f}")
    return minutes(value)


def minutes(value: float) -> str:
    """A duration in minutes and seconds."""
    return tr("{minutes} min {seconds} s").format(minutes=f"{value // _MINUTE:.0f}", seconds=f"{value % _MINUTE:.0f}")


def short_seconds(value: float) -> str:
    """A duration in at most four cells: 0.2s, 12s, 5m, 2h."""
    if value < 9.95:
        return f"{value:.1f}s"
    if value < 99.5:
        return f"{value:.0f}s"
    return f"{value / 60:.0f}m" if value < 5_970 else f"{min(value / 3600, 999):.0f}h"


def age(then: float, now: float) -> str:
    """How long ago, in at most `age_cells` cells: now, 5m, 3h, 2d, 6w."""
    past = max(0.0, now - then)
    if past < _MINUTE:
        return tr("now")
    if past < _HOUR:
        return tr("{n}m").format(n=int(past // _MINUTE))
    if past < _DAY:
        return tr("{n}h").format(n=int(past // _HOUR))
    if past < 14 * _DAY:
        return tr("{n}d").format(n=int(past // _DAY))
    return tr("{n}w").format(n=int(past // (7 * _DAY)))


def age_cells() -> int:
    """Cells of the longest age in the reader's language, at least four."""
    longest = (tr("now"), *(unit.format(n=59) for unit in (tr("{n}m"), tr("{n}h"), tr("{n}d"), tr("{n}w"))))
    return max(4, *map(cell_len, longest))


def left(text: str, n_cells: int) -> str:
    """Text at the beginning of a column of so many cells."""
    return text + " " * (n_cells - cell_len(text))


def right(text: str, n_cells: int) -> str:
    """Text at the end of a column of so many cells."""
    return " " * (n_cells - cell_len(text)) + text


def bar(share: float, width: int, *, full: str = "█", empty: str = "░") -> str:
    """A gauge of `width` cells; anything above nothing shows at least one full cell."""
    share = min(1.0, max(0.0, share))
    n_full = round(share * width)
    if share > 0 and n_full == 0:
        n_full = 1
    return full * n_full + empty * (width - n_full)


def shares(parts: tuple[int, ...], width: int) -> tuple[int, ...]:
    """Divide `width` cells among parts by their size; a part above zero gets at least one."""
    total = sum(parts)
    if total == 0 or width <= 0:
        return tuple(0 for _ in parts)
    cells = [max(1, part * width // total) if part else 0 for part in parts]
    largest = max(range(len(parts)), key=parts.__getitem__)
    cells[largest] = max(0, cells[largest] + width - sum(cells))
    return tuple(cells)


def fullness(share: float) -> Fullness:
    """How a share of the context that is used is to be taken; empty while there is no need to think of it."""
    return "error" if share >= _FULL else "warning" if share >= _FILLING else ""


def wrapped(text: str, width: int) -> list[str]:
    """One line of text as lines of at most `width` cells."""
    if cell_len(text) == len(text):
        return textwrap.wrap(text, width)
    lines: list[str] = []
    for word in text.split():
        if lines and cell_len(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines += chop_cells(word, width)
    return lines
