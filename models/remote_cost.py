"""What a turn at a service costs, and until when its prefix is kept; pure."""

from __future__ import annotations

from dataclasses import dataclass

from models.engine import Prices, TurnStats

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Cost:
    """Money for one turn, in `currency`; `is_most`: the server does not say what it had cached, so it may be less."""

    amount: float
    currency: str
    is_most: bool = False


def turn_cost(stats: TurnStats, prices: Prices | None) -> Cost | None:
    """Return what a turn cost: input read and input cached at their prices, and output; None where that is unknown."""
    if prices is None or stats.prompt_tokens is None or stats.output_tokens is None:
        return None
    counts = (stats.resident_tokens, stats.restored_tokens)
    n_cached = sum(n or 0 for n in counts)
    n_read = stats.prompt_tokens - n_cached
    amount = n_read * prices.input + n_cached * prices.cached + stats.output_tokens * prices.output
    return Cost(amount / _MILLION, prices.currency, is_most=stats.resident_tokens is None)


def cold_in_s(finished_at: float | None, now: float, lifetime_s: float | None) -> float | None:
    """Return in how many seconds a service forgets the prefix (0: it has), None where that is unknown."""
    if finished_at is None or lifetime_s is None:
        return None
    return max(0.0, finished_at + lifetime_s - now)
