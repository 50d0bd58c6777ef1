"""Statistics for people, as JSON objects and as rows of a table."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from chatapp.csvtext import Cell, csv_lines
from chatapp.listing import table
from chatapp.misstexts import reason_text
from chatapp.objects import STATS_KEYS
from chatapp.safe import clean_line
from chatapp.texts import tr
from models.kvbudget import size
from sessions.measured import MeasuredTurn
from sessions.statistics import Figures, Group, Key, Percentiles, Statistics

TURN_KEYS = ("session", "message", "at", "model", *STATS_KEYS)
"""The keys of a turn, in JSON and CSV."""

FIGURE_KEYS = (
    "turns",
    "ttft_p50_s",
    "ttft_p95_s",
    "tpot_p50_s",
    "tpot_p95_s",
    "tokens_per_s_p50",
    "tokens_per_s_p95",
    "prompt_tokens",
    "resident_share",
    "restored_share",
    "prefilled_share",
    "reuse_share",
    "restore_s",
    "prefill_s",
    "output_tokens",
    "kv_bytes_written",
    "miss_reasons",
)
"""The keys of figures, in JSON and CSV."""


def figures_object(figures: Figures) -> dict[str, Any]:
    """Return figures with every key, null where unknown."""
    ttft, tpot, speed = figures.ttft_s, figures.tpot_s, figures.tokens_per_s
    values = (
        figures.n_turns,
        _p50(ttft),
        _p95(ttft),
        _p50(tpot),
        _p95(tpot),
        _p50(speed),
        _p95(speed),
        figures.prompt_tokens,
        figures.resident_share,
        figures.restored_share,
        figures.prefilled_share,
        figures.reuse_share,
        figures.restore_s,
        figures.prefill_s,
        figures.output_tokens,
        figures.kv_bytes_written,
        [{"reason": reason, "turns": n} for reason, n in figures.miss_reasons],
    )
    return dict(zip(FIGURE_KEYS, values, strict=True))


def statistics_json(found: Statistics, by: Collection[Key]) -> Iterator[str]:
    """Yield all figures as one JSON object."""
    groups = [{**_group_object(group, by), **figures_object(group.figures)} for group in found.groups]
    yield json.dumps({"by": sorted(by), "total": figures_object(found.total), "groups": groups}) + "\n"


def statistics_csv(found: Statistics, by: Collection[Key]) -> Iterator[str]:
    """Yield a row for each group, or the one of all turns."""
    groups = found.groups if by else (Group(None, None, None, found.total),)
    names = _group_object(Group(None, None, None, found.total), by)
    return csv_lines([*names, *FIGURE_KEYS], (_cells(group, by) for group in groups))


def turns_json(turns: Iterable[MeasuredTurn]) -> Iterator[str]:
    """Yield all turns as one JSON array, a turn a line."""
    separator = "["
    for turn in turns:
        yield separator + "\n" + json.dumps(dict(zip(TURN_KEYS, _turn_cells(turn), strict=True)))
        separator = ","
    yield "[]\n" if separator == "[" else "\n]\n"


def turns_csv(turns: Iterable[MeasuredTurn]) -> Iterator[str]:
    """Yield a row for each turn; its time in UTC, by ISO 8601."""

    def cells(turn: MeasuredTurn) -> list[Cell]:
        session, message, at, *rest = _turn_cells(turn)
        return [session, message, datetime.fromtimestamp(float(at or 0), tz=UTC).isoformat(), *rest]

    return csv_lines(TURN_KEYS, map(cells, turns))


def statistics_text(found: Statistics, by: Collection[Key]) -> Iterator[str]:
    """Yield the figures as text: a table of the groups, and all turns together."""
    if not found.total.n_turns:
        yield tr("No turn was measured.") + "\n"
        return
    if by:
        yield table([_head(by), *(_row(group, by, found.groups) for group in found.groups)])
        yield "\n"
    yield table(_overview(found.total))


def _group_object(group: Group, by: Collection[Key]) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    if "day" in by:
        values["day"] = group.day.isoformat() if group.day else None
    if "model" in by:
        values |= {"model": group.model, "weights": group.weights}
    return values


def _cells(group: Group, by: Collection[Key]) -> list[Cell]:
    values = figures_object(group.figures)
    values["miss_reasons"] = "; ".join(f"{reason} ({n})" for reason, n in group.figures.miss_reasons)
    return [*_group_object(group, by).values(), *values.values()]


def _turn_cells(turn: MeasuredTurn) -> list[Cell]:
    return [turn.session_id, turn.message_id, turn.at, turn.model, *(getattr(turn.stats, key) for key in TURN_KEYS[4:])]


def _head(by: Collection[Key]) -> list[str]:
    names = [*([tr("day")] if "day" in by else []), *([tr("model")] if "model" in by else [])]
    figures = (
        tr("turns"),
        tr("first text after"),
        tr("19 of 20"),
        tr("tokens/s"),
        tr("19 of 20"),
        tr("reused"),
        tr("reading took"),
        tr("tokens written"),
        tr("saved to disk"),
    )
    return [*names, *(f">{figure}" for figure in figures)]


def _row(group: Group, by: Collection[Key], groups: Sequence[Group]) -> list[str]:
    figures = group.figures
    ttft, speed = figures.ttft_s, figures.tokens_per_s
    values = (
        f"{figures.n_turns:,}",
        seconds(_p50(ttft)),
        seconds(_p95(ttft)),
        number(_p50(speed)),
        number(_p95(speed)),
        share(figures.reuse_share),
        seconds(figures.prefill_s),
        count(figures.output_tokens),
        bytes_(figures.kv_bytes_written),
    )
    names = []
    if "day" in by:
        names.append(group.day.isoformat() if group.day else "-")
    if "model" in by:
        names.append(_model_name(group, groups))
    return [*names, *(f">{value}" for value in values)]


def _model_name(group: Group, groups: Sequence[Group]) -> str:
    """The name, with the beginning of its hash where another model has the same."""
    name = clean_line(group.model or tr("(unknown)"), 40).removeprefix(">")
    is_shared = len({other.weights for other in groups if other.model == group.model}) > 1
    return f"{name} {(group.weights or '?')[:8]}" if is_shared else name


def _overview(figures: Figures) -> list[list[str]]:
    ttft, tpot, speed = figures.ttft_s, figures.tpot_s, figures.tokens_per_s
    within, reach = (
        tr("{usual} as a rule, 19 of 20 turns within {most}"),
        tr("{usual} as a rule, 19 of 20 turns reach {least}"),
    )
    rows = [
        [tr("turns"), f"{figures.n_turns:,}"],
        [tr("first text after"), within.format(usual=seconds(_p50(ttft)), most=seconds(_p95(ttft)))],
        [tr("each token takes"), within.format(usual=seconds(_p50(tpot)), most=seconds(_p95(tpot)))],
        [tr("tokens/s"), reach.format(usual=number(_p50(speed)), least=number(_p95(speed)))],
        [tr("tokens of prompts"), count(figures.prompt_tokens)],
        ["  " + tr("still in memory"), share(figures.resident_share)],
        ["  " + tr("taken from disk"), share(figures.restored_share)],
        ["  " + tr("read by the model"), share(figures.prefilled_share)],
        [tr("reused"), share(figures.reuse_share)],
        [tr("taking from disk took"), seconds(figures.restore_s)],
        [tr("reading took"), seconds(figures.prefill_s)],
        [tr("tokens of answers"), count(figures.output_tokens)],
        [tr("saved to disk"), bytes_(figures.kv_bytes_written)],
    ]
    label = tr("not from disk")
    for reason, n in figures.miss_reasons:
        rows.append([label, f"{n:,} × {clean_line(reason_text(reason), 100)}"])
        label = ""
    return rows


def _p50(values: Percentiles | None) -> float | None:
    return None if values is None else values.p50


def _p95(values: Percentiles | None) -> float | None:
    return None if values is None else values.p95


def seconds(value: float | None) -> str:
    """Seconds in words: 4.2 ms, 0.31 s, 1,204 s."""
    if value is None:
        return "-"
    if value < 0.1:
        return tr("{n} ms").format(n=f"{value * 1000:.1f}")
    return tr("{n} s").format(n=f"{value:.2f}" if value < 10 else f"{value:,.0f}")


def number(value: float | None) -> str:
    """A rate: three digits that count."""
    return "-" if value is None else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def share(value: float | None) -> str:
    """A share in percent."""
    return "-" if value is None else f"{value:.0%}".replace("%", " %")


def count(value: int | None) -> str:
    """A number of tokens."""
    return "-" if value is None else f"{value:,}"


def bytes_(value: int | None) -> str:
    """A number of bytes."""
    return "-" if value is None else size(value)
