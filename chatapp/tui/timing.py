"""What a turn's time went into, for the panel: the first token's parts as a bar, the tokens behind it as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.cells import cell_len
from textual.content import Content

from chatapp.texts import tr, tr_later
from chatapp.tui import words
from chatapp.tui.live import Readings
from models.engine import ModelInfo, TurnStats
from models.stats import memory_share, tpot_floor

MUTED = "$foreground 60%"
PARTS = (
    (tr_later("queue"), "▁", MUTED),
    (tr_later("restore"), "▓", "$secondary"),
    (tr_later("prefill"), "░", "$accent"),
    (tr_later("first"), "▚", "$primary"),
)
"""Name, glyph and style of the parts of the TTFT, in their order: told apart without colour too."""

_LABELS = ("TTFT", "TPOT", tr_later("floor"), tr_later("context"), tr_later("written"))
_LEVELS = " ▁▂▃▄▅▆▇█"
_PER_ROW = len(_LEVELS) - 1
_FLOOR, _FLOOR_CROSSED = "╌", "▒"
_OUTLIER = 4
"""Samples of more than so many medians are cut off: one stall would flatten all others."""


def label(text: str) -> tuple[str, str]:
    """What a line of the panel begins with, one of a column of labels: given in English, shown in any language."""
    return (words.left(tr(text), 1 + max(cell_len(tr(one)) for one in _LABELS)), MUTED)


def ttft_text(readings: Readings, now: float, width: int) -> Content:
    """Four lines: the time to the first token, a bar of its parts, and what each took."""
    ttft = readings.ttft(now)
    first = "-" if ttft is None else words.seconds(ttft[0]) + ("" if ttft[1] else " …")
    seconds = parts_of(readings.so_far(now))
    head = Content.assemble(label("TTFT"), (first, "bold"))
    return Content("\n").join([head, ttft_bar(seconds, width), *_legend(seconds, width)])


def parts_of(stats: TurnStats) -> tuple[float, float, float, float] | None:
    """Seconds of `PARTS`, the way to the screen as part of the last; None where they are not known."""
    if stats.queue_s is None or stats.restore_s is None or stats.prefill_s is None or stats.first_decode_s is None:
        return None
    return stats.queue_s, stats.restore_s, stats.prefill_s, stats.first_decode_s + (stats.transport_s or 0.0)


def ttft_bar(seconds: Sequence[float] | None, width: int) -> Content:
    """The parts as one bar; each that took anything has a cell."""
    cells = words.shares(tuple(round(part * 1e6) for part in seconds), width) if seconds else ()
    if not any(cells):
        return Content.assemble(("·" * width, MUTED))
    return Content.assemble(*[(mark * n, style) for (_, mark, style), n in zip(PARTS, cells, strict=True)])


def _legend(seconds: Sequence[float] | None, width: int) -> list[Content]:
    """Two lines of two parts each."""
    column = (width - 1) // 2
    cells = []
    for i, (part, mark, style) in enumerate(PARTS):
        name = tr(part)
        value = "-" if seconds is None or seconds[i] == 0 else words.seconds(seconds[i])
        if cell_len(mark + name + value) + 1 > column and seconds is not None:
            value = words.short_seconds(seconds[i])
        pad = " " * (column - cell_len(mark + name + value) - 1)
        cells.append(Content.assemble((mark, style), f"{name} ", (value, "bold"), pad))
    return [Content(" ").join(cells[:2]), Content(" ").join(cells[2:])]


def tpot_text(readings: Readings, info: ModelInfo | None) -> Content:
    """Two lines: time per token and tokens a second; what this machine's memory allows, and how much of it is used."""
    tpot, floor = readings.tpot(), floor_of(readings, info)
    each = "-" if tpot is None else words.seconds(tpot)
    rate = "  " + tr("{n} tokens/s").format(n=f"{1 / tpot:,.0f}") if tpot else ""
    least = words.seconds(floor) if floor else tr("not known") if info else "-"
    share = memory_share(tpot, floor)
    used = tr("memory {share} used").format(share=f"{share:.0%}") if share else ""
    bound = label("floor")[0] + words.left(least, 6) + " "
    return Content.assemble(label("TPOT"), (each + rate, "bold"), "\n", (bound, MUTED), (used, MUTED))


def floor_of(readings: Readings, info: ModelInfo | None) -> float | None:
    """Least seconds per token: of the turn that ended, else where the context stands now."""
    if readings.stats.tpot_floor_s is not None:
        return readings.stats.tpot_floor_s
    return tpot_floor(info, readings.context_tokens) if info else None


def tpot_plot(tpots: Sequence[float], floor: float | None, width: int, height: int) -> Content:
    """The newest samples as bars of `height` lines, the newest on the right; a line where the floor is.

    Where a bar crosses that line it has another glyph there.
    """
    shown = list(tpots)[-width:]
    top = _top(shown, floor)
    if not top or height < 1:
        return Content("\n" * max(0, height - 1))
    n_levels = height * _PER_ROW
    bars = [max(1, min(n_levels, round(value / top * n_levels))) for value in shown]
    floor_row = None if floor is None else min(height - 1, int(floor / top * height))
    rows = [_row(bars, row, width, is_floor=row == floor_row) for row in reversed(range(height))]
    return Content("\n").join(rows)


def _row(bars: Sequence[int], row: int, width: int, *, is_floor: bool) -> Content:
    """Line number `row` of the plot, counted from the bottom."""
    full, empty = (_FLOOR_CROSSED, _FLOOR) if is_floor else (_LEVELS[-1], " ")
    cells = empty * (width - len(bars))
    for bar in bars:
        level = min(_PER_ROW, max(0, bar - row * _PER_ROW))
        cells += full if level == _PER_ROW else _LEVELS[level] if level else empty
    return Content.assemble((cells, "$primary 60%" if is_floor else "$primary"))


def _top(values: Sequence[float], floor: float | None) -> float:
    """What the height of the plot stands for; 0 if there is nothing to plot."""
    highest = min(max(values), _OUTLIER * median(values)) if values else 0.0
    return max(highest, 2 * floor if floor else 0.0)
