"""Sizes in bytes as people write them: "20GiB", "500 MB", "0"."""

from __future__ import annotations

import re

MAX_BYTES = 2**63 - 1

_SIZE = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,19}))? ?([kmgt]?)(i?b)?", re.IGNORECASE)


def parse_size(value: str | int) -> int:
    """Return whole bytes, rounded down, of a number of bytes or a number with a unit.

    kB, MB, GB and TB are powers of 1000; KiB, MiB, GiB and TiB, as well as K, M, G and T alone, are powers of
    1024. Case does not matter. Raises `ValueError` in one sentence for everything else, also above `MAX_BYTES`.
    """
    if isinstance(value, int):
        n_bytes = value
    elif match := _SIZE.fullmatch(value.strip()):
        n_bytes = _bytes(*match.groups(default=""))
    else:
        n_bytes = -1
    if not 0 <= n_bytes <= MAX_BYTES:
        raise ValueError(f'A size is a number of bytes or one with a unit, such as "20GiB" or "500 MB", not {value!r}.')
    return n_bytes


def _bytes(whole: str, fraction: str, prefix: str, suffix: str) -> int:
    """Exact, where floats would not be: -1 for `iB` without a prefix, and for a part of a single byte."""
    if not prefix and (suffix.lower() == "ib" or fraction):
        return -1
    base = 1000 if suffix.lower() == "b" else 1024
    unit: int = base ** " kmgt".index(prefix.lower() or " ")
    parts: int = 10 ** len(fraction)
    return int(whole + fraction) * unit // parts
