"""Does a model fit into memory? Asked before it is loaded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from models.stats import default_context, element_bytes

Verdict = Literal["fits", "tight", "too large", "unknown"]

_COMFORT = 0.8
"""Share of the available memory up to which nothing else has to give way."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The verdict and what it is made from, in bytes; None where the header does not say.

    `n_ctx` is the context that would be used.
    """

    verdict: Verdict
    n_ctx: int | None
    weights_bytes: int
    kv_bytes: int | None
    available_bytes: int

    @property
    def needed_bytes(self) -> int:
        """Weights and KV; the weights alone where the KV is not known."""
        return self.weights_bytes + (self.kv_bytes or 0)


def kv_bytes_per_token(kv_elements: int, kv_type: str) -> int:
    """Bytes that one token takes in the KV cache."""
    return round(kv_elements * element_bytes(kv_type))


def fit(
    *,
    weights_bytes: int,
    kv_elements: int | None,
    n_ctx_train: int | None,
    kv_type: str,
    n_ctx: int | None,
    available_bytes: int,
) -> Fit:
    """Compare weights and KV at a context (None: the one the engine would choose) with the available memory."""
    if kv_elements is not None and n_ctx is None and n_ctx_train:
        # As the engine does, which counts KV in f16 there.
        n_ctx = default_context(n_ctx_train, kv_bytes_per_token(kv_elements, "f16"), available_bytes)
    kv = None if kv_elements is None or n_ctx is None else kv_bytes_per_token(kv_elements, kv_type) * n_ctx
    needed = weights_bytes + (kv or 0)
    verdict: Verdict = "fits" if needed <= available_bytes * _COMFORT else "tight"
    if needed > available_bytes:
        verdict = "too large"
    elif kv is None:
        verdict = "unknown"
    return Fit(verdict, n_ctx, weights_bytes, kv, available_bytes)


def available_memory() -> int:
    """Bytes of memory that can be had without swapping; 4 GiB where the system does not tell."""
    try:
        with Path("/proc/meminfo").open() as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return 4 << 30
