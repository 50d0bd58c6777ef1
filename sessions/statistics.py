"""What turns cost, in figures: percentiles, shares and sums over many turns, by model and by day; pure.

A turn comes as a row with the `FIELDS` that are known, so that hundreds of thousands need no value each.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, tzinfo
from typing import Any, Literal

Key = Literal["model", "day"]

FIELDS = (
    "ttft_s",
    "tpot_s",
    "prompt_tokens",
    "resident_tokens",
    "restored_tokens",
    "prefilled_tokens",
    "output_tokens",
    "restore_s",
    "prefill_s",
    "kv_bytes_written",
    "miss_reason",
)
"""What a turn's row has of `models.engine.TurnStats`, None where unknown; beside `at` (epoch s), `model`, `weights`."""

_SUMS = ("output_tokens", "restore_s", "prefill_s", "kv_bytes_written")
_NUMBER = re.compile(r"\d[\d,]*")
_QUARTER_S = 900
"""Clocks of all time zones differ by whole quarters of an hour, so that each lies in one day."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The median and the value that 19 of 20 turns do not exceed, each a measured one (nearest rank)."""

    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Turns, tokens, seconds and bytes. Sums and percentiles are over the turns that know them; None: not one does.

    `prompt_tokens` and its three parts are of the turns that know all four. `miss_reasons` are why stored KV was not
    used, most frequent first, with how often; numbers in them are left out.
    """

    n_turns: int
    ttft_s: Percentiles | None
    tpot_s: Percentiles | None
    prompt_tokens: int | None
    resident_tokens: int | None
    restored_tokens: int | None
    prefilled_tokens: int | None
    output_tokens: int | None
    restore_s: float | None
    prefill_s: float | None
    kv_bytes_written: int | None
    miss_reasons: tuple[tuple[str, int], ...]

    @property
    def tokens_per_s(self) -> Percentiles | None:
        """Speed of decoding: that of the median turn, and the one that 19 of 20 turns reach."""
        if self.tpot_s is None or not self.tpot_s.p50:
            return None
        return Percentiles(1 / self.tpot_s.p50, 1 / self.tpot_s.p95)

    @property
    def resident_share(self) -> float | None:
        """Share of the prompt tokens whose KV was still in the context."""
        return self._share(self.resident_tokens)

    @property
    def restored_share(self) -> float | None:
        """Share of the prompt tokens whose KV came from disk."""
        return self._share(self.restored_tokens)

    @property
    def prefilled_share(self) -> float | None:
        """Share of the prompt tokens that were evaluated."""
        return self._share(self.prefilled_tokens)

    @property
    def reuse_share(self) -> float | None:
        """Share of the prompt tokens that were not evaluated."""
        if self.resident_tokens is None or self.restored_tokens is None:
            return None
        return self._share(self.resident_tokens + self.restored_tokens)

    def _share(self, n_tokens: int | None) -> float | None:
        return n_tokens / self.prompt_tokens if n_tokens is not None and self.prompt_tokens else None


@dataclass(frozen=True, slots=True)
class Group:
    """The turns of one model (`weights` is the hash of it, hex), of one day, or both; None: of all, or not known."""

    model: str | None
    weights: str | None
    day: date | None
    figures: Figures


@dataclass(frozen=True, slots=True)
class Statistics:
    """All turns together, and by what was asked: models by name, days in their order."""

    total: Figures
    groups: tuple[Group, ...]


def summarize(
    rows: Iterable[Mapping[str, Any]], by: Collection[Key] = (), *, zone: tzinfo | None = None, n_reasons: int = 5
) -> Statistics:
    """Count turns; a day is one of `zone` (None: the system's). Holds two numbers of each turn, and no more."""
    day_of = _days(zone) if "day" in by else None
    names = "model" in by
    tallies: dict[tuple[str | None, str | None, date | None], _Tally] = {}
    for row in rows:
        key = (
            row["model"] if names else None,
            row["weights"] if names else None,
            day_of(row["at"]) if day_of else None,
        )
        tally = tallies.get(key)
        if tally is None:
            tally = tallies[key] = _Tally()
        tally.add(row)
    total = _Tally()
    for tally in tallies.values():
        total.take(tally)
    groups = sorted(tallies.items(), key=lambda item: (item[0][2] or date.min, item[0][0] or "", item[0][1] or ""))
    return Statistics(
        total.figures(n_reasons),
        tuple(Group(*key, tally.figures(n_reasons)) for key, tally in groups) if by else (),
    )


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that `percent` % of all do not exceed (nearest rank); `ordered` is ascending."""
    assert ordered, "no values have no percentile"
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


@dataclass(slots=True)
class _Tally:
    """What is known so far of a group's turns."""

    n_turns: int = 0
    ttft_s: array[float] = field(default_factory=lambda: array("d"))
    tpot_s: array[float] = field(default_factory=lambda: array("d"))
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(int))
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, row: Mapping[str, Any]) -> None:
        self.n_turns += 1
        if (ttft_s := row["ttft_s"]) is not None:
            self.ttft_s.append(ttft_s)
        if (tpot_s := row["tpot_s"]) is not None:
            self.tpot_s.append(tpot_s)
        prompt, resident = row["prompt_tokens"], row["resident_tokens"]
        restored, prefilled = row["restored_tokens"], row["prefilled_tokens"]
        if None not in (prompt, resident, restored, prefilled):
            self.sums["prompt_tokens"] += prompt
            self.sums["resident_tokens"] += resident
            self.sums["restored_tokens"] += restored
            self.sums["prefilled_tokens"] += prefilled
        for name in _SUMS:
            if (value := row[name]) is not None:
                self.sums[name] += value
        if reason := row["miss_reason"]:
            self.reasons[_NUMBER.sub("…", reason)] += 1

    def take(self, other: _Tally) -> None:
        self.n_turns += other.n_turns
        self.ttft_s.extend(other.ttft_s)
        self.tpot_s.extend(other.tpot_s)
        for name, value in other.sums.items():
            self.sums[name] += value
        self.reasons.update(other.reasons)

    def figures(self, n_reasons: int) -> Figures:
        reasons = sorted(self.reasons.items(), key=lambda item: (-item[1], item[0]))
        return Figures(
            n_turns=self.n_turns,
            ttft_s=_percentiles(self.ttft_s),
            tpot_s=_percentiles(self.tpot_s),
            prompt_tokens=self._count("prompt_tokens"),
            resident_tokens=self._count("resident_tokens"),
            restored_tokens=self._count("restored_tokens"),
            prefilled_tokens=self._count("prefilled_tokens"),
            output_tokens=self._count("output_tokens"),
            restore_s=self.sums.get("restore_s"),
            prefill_s=self.sums.get("prefill_s"),
            kv_bytes_written=self._count("kv_bytes_written"),
            miss_reasons=tuple(reasons[:n_reasons]),
        )

    def _count(self, name: str) -> int | None:
        return int(self.sums[name]) if name in self.sums else None


def _percentiles(values: Sequence[float]) -> Percentiles | None:
    ordered = sorted(values)
    return Percentiles(percentile(ordered, 50), percentile(ordered, 95)) if ordered else None


def _days(zone: tzinfo | None) -> Callable[[float], date]:
    known: dict[int, date] = {}

    def day_of(at: float) -> date:
        quarter = int(at // _QUARTER_S)
        day = known.get(quarter)
        if day is None:
            day = known[quarter] = datetime.fromtimestamp(at, tz=UTC).astimezone(zone).date()
        return day

    return day_of
