"""How busy other processes keep the machine: beside them, times say little. For benchmarks, while they are idle."""

from __future__ import annotations

import sys
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_TOLERATED = 0.1


def foreign_load(seconds: float = 0.5) -> float:
    """Return the share of all CPUs in use during `seconds`, 0 to 1; 0 where the system does not tell.

    Above a tenth it also says so on stderr.
    """
    if not _STAT.exists():
        return 0.0
    idle, total = _ticks()
    time.sleep(seconds)
    idle_after, total_after = _ticks()
    load = 1 - (idle_after - idle) / max(1, total_after - total)
    if load > _TOLERATED:
        print(f"other processes use {load:.0%} of the CPUs: what is measured beside them says little", file=sys.stderr)
    return load


def _ticks() -> tuple[int, int]:
    """Return the idle and all ticks of all CPUs so far; waiting for a disk is idle."""
    fields = [int(field) for field in _STAT.read_text().splitlines()[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)
