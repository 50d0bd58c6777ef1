"""Sentences about what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from chatapp import statlist
from chatapp.misstexts import reason_text
from chatapp.texts import tr, tr_n
from models.engine import Prepared, TurnStats

T = TypeVar("T")


def came_back(prepared: Prepared) -> str:
    """How a history became resident."""
    if not prepared.is_counted:
        return tr("The server keeps what it keeps: the next answer tells.")
    if prepared.restored:
        text = tr("Restored {n} tokens from disk in {time}.")
        return text.format(n=f"{prepared.restored:,}", time=seconds(prepared.restore_s))
    if prepared.prefilled <= 1 and prepared.resident:
        return tr("{n} tokens are still in memory.").format(n=f"{prepared.resident:,}")
    read = {"n": f"{prepared.prefilled:,}", "time": seconds(prepared.prefill_s)}
    if prepared.miss_reason:
        text = tr("Read {n} tokens anew in {time}: {reason}.")
        return text.format(**read, reason=reason_text(prepared.miss_reason))
    return tr("Read {n} tokens anew in {time}.").format(**read)


def turn_line(stats: TurnStats) -> str:
    """What a turn cost, on one line."""
    parts = [
        _part("TTFT {value}", stats.ttft_s, statlist.seconds),
        _part("TPOT {value}", stats.tpot_s, _each),
        _part(tr("written {value}"), stats.output_tokens, _tokens),
        _part(tr("prompt {value}"), stats.prompt_tokens, _tokens),
        _part(tr("resident {value}"), stats.resident_tokens, _count),
        _part(tr("restored {value}"), stats.restored_tokens, lambda n: _in(n, stats.restore_s)),
        _part(tr("prefilled {value}"), stats.prefilled_tokens, lambda n: _in(n, stats.prefill_s)),
        _part(tr("not from disk: {value}"), stats.miss_reason, reason_text),
    ]
    figures = ", ".join(part for part in parts if part)
    return tr("Measured: {figures}.").format(figures=figures) if figures else tr("Nothing was measured.")


def seconds(value: float) -> str:
    """A duration in words."""
    if value < 0.05:
        return tr("less than {n} s").format(n=0.1)
    if value < 100:
        return tr("{n} s").format(n=f"{value:.1f}")
    return tr("{minutes} min {seconds} s").format(minutes=f"{value // 60:.0f}", seconds=f"{value % 60:.0f}")


def _part(text: str, value: T | None, write: Callable[[T], str]) -> str:
    return "" if value is None else text.format(value=write(value))


def _each(seconds_each: float) -> str:
    if not seconds_each:
        return tr("{n} s").format(n=0)
    rate = tr("{n} tokens/s").format(n=f"{1 / seconds_each:,.1f}")
    return f"{statlist.seconds(seconds_each)} ({rate})"


def _count(n: int) -> str:
    return f"{n:,}"


def _tokens(n: int) -> str:
    return tr_n("{n} token", "{n} tokens", n).format(n=f"{n:,}")


def _in(n: int, duration_s: float | None) -> str:
    if not n or duration_s is None:
        return _count(n)
    return tr("{n} in {time}").format(n=f"{n:,}", time=statlist.seconds(duration_s))
