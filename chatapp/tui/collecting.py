"""When the garbage of the window is collected: a little at a time while something moves, all of it in quiet moments."""

from __future__ import annotations

import gc

QUIET_S = 5
"""How often it is looked whether the moment is quiet."""

# A frame leaves thousands of objects in cycles. The youngest are looked through in 1 ms, those that outlived that
# before they are many; all of them take 20 ms and more, which a key would wait for: once in a minute while text comes.
_YOUNG, _YOUNG_PASSES, _OLDER_PASSES = 2_000, 4, 60


def begin() -> None:
    """Start-up is over: what it made stays, and no collection need look at it again."""
    gc.freeze()
    gc.set_threshold(_YOUNG, _YOUNG_PASSES, _OLDER_PASSES)
    gc.enable()


def rest() -> None:
    """Nothing moves: collect all there is, if that is not just done."""
    if gc.get_count()[2]:
        gc.collect()
