"""Fields of foreign JSON and rows as the type that is expected, and what stands in for everything else; pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def text(value: Any) -> str:
    """Return a text, else an empty one."""
    return value if isinstance(value, str) else ""


def mapping(value: Any) -> Mapping[str, Any]:
    """Return an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """Return a list, else an empty one."""
    return value if isinstance(value, list) else []


def seconds(value: Any) -> float | None:
    """Return a moment in seconds since the epoch, from such a number or from ISO 8601 text (UTC unless it says)."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return None
    if not isinstance(value, str) or not 10 <= len(value) <= 64:
        return None
    # Go writes nine digits of a second, and a name behind the offset.
    day, _, rest = value.strip().replace("T", " ").partition(" ")
    clock, *more = rest.split(" ") or [""]
    if more and more[0][:1] in ("+", "-"):
        clock += more[0]
    head, dot, tail = clock.partition(".")
    if dot:
        digits = tail[: len(tail) - len(tail.lstrip("0123456789"))] if tail else ""
        clock = f"{head}.{digits[:6].ljust(6, '0')}{tail[len(digits) :]}"
    try:
        moment = datetime.fromisoformat(f"{day} {clock}".strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
