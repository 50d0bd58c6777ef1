"""Measures prefill and decoding of each type of weights on this machine, with small models of random weights."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from models.busy import ForeignLoad, Painter
from models.errors import EngineError, ModelError
from models.llama import ContextSettings, Model
from models.measuring import MAX_STEPS, decoding, prefilling, timed_context
from models.probefile import PROBED, VOCABULARY, write_probe
from models.typerates import TypeRate, TypeRates

_PROMPT_TOKENS = 128
_ROUNDS = 2
_TYPE_S = 4.0
"""A type whose measurement takes longer is left out."""
_LEFT_OVER_S = 3_600


def measure_types(
    folder: Path, *, threads: int, progress: Callable[[int, int], None], types: Sequence[str] = PROBED
) -> TypeRates | None:
    """Write, load, measure and delete one model after another in a folder; None if none could be measured.

    Beside a process that works as the window does. A folder without room for them, or a machine without memory, leaves
    types out.
    """
    load = ForeignLoad()
    rates: dict[str, TypeRate] = {}
    _sweep(folder)
    with Painter():
        for i, name in enumerate(types):
            progress(i, len(types))
            path = folder / f"probe-{os.getpid()}.gguf"
            with contextlib.suppress(EngineError, OSError):
                try:
                    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                    write_probe(path, name)
                    rates[name] = _rate(path, threads)
                finally:
                    path.unlink(missing_ok=True)
    return TypeRates(rates, time.time(), load.cores_used()) if rates else None


def _rate(path: Path, threads: int) -> TypeRate:
    """The best of a few rounds: interference only ever adds time."""
    with closing(Model(path, gpu_layers=0, progress=lambda _share: None)) as model:
        n_ctx = _ROUNDS * (_PROMPT_TOKENS + MAX_STEPS) + 256
        settings = ContextSettings(n_ctx, flash_attention=False, threads=threads)
        with timed_context(model, settings, time.monotonic() + _TYPE_S) as context:
            if not context.decode(0):
                raise ModelError("The machine is too busy.")
            found = []
            for _ in range(_ROUNDS):
                context.clear()
                found.append((prefilling(context, _PROMPT_TOKENS, VOCABULARY), decoding(context)))
    return TypeRate(max(prefill for prefill, _ in found), max(decode for _, decode in found))


def _sweep(folder: Path) -> None:
    """Delete what a measurement that was killed has left."""
    for path in folder.glob("probe-*.gguf"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _LEFT_OVER_S:
                path.unlink()
