"""Ask glibc for huge pages under large blocks (KV cache, compute buffers) where the system leaves it to programs.

A step reads all weights, those that were rearranged for the processor from such blocks, and without flash attention it
writes values into thousands of places that lie kilobytes apart. In small pages, looking the pages up takes a good part
of it (docs/performance.md, Memory pages).
glibc reads the setting when a process starts, so it belongs into the environment of the engine's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_VARIABLE = "GLIBC_TUNABLES"
_TUNABLE = "glibc.malloc.hugetlb"


def environment() -> dict[str, str]:
    """Our environment with that wish in it, for a process that holds a model."""
    return with_huge_pages(os.environ)


def with_huge_pages(variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with that wish in it, unless it says something about huge pages already.

    Other C libraries do not read it. Source: GNU C Library manual, Memory Allocation Tunables (2.35 and later).
    """
    said = variables.get(_VARIABLE, "")
    if _TUNABLE in said:
        return dict(variables)
    return {**variables, _VARIABLE: f"{said}:{_TUNABLE}=1" if said else f"{_TUNABLE}=1"}
