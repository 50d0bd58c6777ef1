"""What the meters say of a server: where a prompt's tokens were, what the turn cost, when the prefix goes cold."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual.content import Content

from chatapp.safe import clean_line
from chatapp.texts import tr
from chatapp.tui import words
from chatapp.tui.live import Readings
from chatapp.tui.timing import MUTED
from models.engine import ModelInfo
from models.remote_cost import Cost, cold_in_s, turn_cost


def server_text(
    readings: Readings, info: ModelInfo | None, now: float, *, clock: Callable[[], float] = time.time
) -> Content:
    """Up to three lines; empty for a model of this machine, and before the first turn.

    `now` is a monotonic time, `clock` the time of day: that stays right while nothing is painted anew.
    """
    server = info.server if info else None
    stats = readings.stats
    if server is None or stats.prompt_tokens is None:
        return Content("")
    if stats.resident_tokens is None:
        lines = [tr("cached at the server: unknown")]
    else:
        n_cached = stats.resident_tokens + (stats.restored_tokens or 0)
        lines = [tr("resident at the server: {n}").format(n=words.count(n_cached))]
    if cost := turn_cost(stats, server.prices):
        lines.append(cost_line(cost))
    left_s = cold_in_s(readings.finished_at, now, server.cache_lifetime_s)
    if left_s is not None:
        text = tr("the prefix goes cold at {time}") if left_s else tr("the prefix is cold by now")
        lines.append(text.format(time=time.strftime("%H:%M", time.localtime(clock() + left_s))))
    return Content("\n").join(Content.assemble((clean_line(line, 80), MUTED)) for line in lines)


def cost_line(cost: Cost) -> str:
    """What a turn cost, in few digits."""
    amount = f"{cost.amount:.2g}" if cost.amount < 0.1 else f"{cost.amount:,.2f}"
    text = tr("this turn: at most {amount} {currency}") if cost.is_most else tr("this turn: about {amount} {currency}")
    return text.format(amount=amount, currency=clean_line(cost.currency, 8))


def settings_lines(info: ModelInfo) -> list[str]:
    """Where a model runs that does not run here."""
    assert info.server is not None, "it runs at a server"
    return [f"{info.server.kind} · {clean_line(info.server.host, 60)}"]
