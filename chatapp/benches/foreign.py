"""How busy other programs keep the machine: beside them, times say little. Asked while the own processes are idle."""

from __future__ import annotations

import time

from models.busy import ForeignLoad
from models.tuning import cores

TOLERATED = 0.1
"""Above this share of the processors, what is measured is doubtful."""


def foreign_load(seconds: float = 0.3) -> float:
    """Return the share of the processors that others use during `seconds`, 0 to 1; 0 where the system does not tell."""
    load = ForeignLoad()
    time.sleep(seconds)
    used = load.cores_used()
    return 0.0 if used is None else min(1.0, used / cores())
