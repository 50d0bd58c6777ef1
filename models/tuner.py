"""Which flash attention mode and thread count are fastest here for this model; measured once, remembered.

Decode and prefill speed at depth differ by a factor of three between settings, and which wins depends on
processor, compiler and model. A chat's work is scored: a short message prefilled and an answer decoded behind
a few thousand tokens. The depth is made of copied KV rows, not of prefill, so it takes seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from models.cachefile import write_atomically
from models.errors import EngineError, ModelError
from models.llama import BUILD, Context, ContextSettings, Model

_DEPTH = 2_048
_BLOCK = 32
_MESSAGE_TOKENS = 32
_ANSWER_TOKENS = 128
_STEPS = 6
_DEADLINE_S = 8.0
# io_magic, seq_id, n_stream, cell_count; then per cell: pos, n_seq_id, seq_id.
_CELLS_AT = 16
_CELL_BYTES = 12


@dataclass(frozen=True, slots=True)
class Tuning:
    """The chosen settings."""

    flash_attention: bool
    threads: int


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tune(
    model: Model, weights: str, cache_dir: Path, *, gpu_layers: int, progress: Callable[[int, int], None]
) -> Tuning:
    """The remembered choice, or a measured one (at most about 8 s). With layers on a GPU: flash attention, all cores.

    `weights` is the model file's content hash.
    """
    if gpu_layers:
        return Tuning(flash_attention=True, threads=cores())
    key = json.dumps([1, weights, BUILD, *machine()])
    note = cache_dir / "tuning" / (hashlib.sha256(key.encode()).hexdigest() + ".json")
    try:
        known = json.loads(note.read_text())
        remembered = Tuning(bool(known["flash_attention"]), int(known["threads"]))
        if 1 <= remembered.threads <= cores():
            return remembered
    except (OSError, ValueError, KeyError, TypeError):
        pass
    chosen = _measure(model, progress)
    write_atomically(note, json.dumps(asdict(chosen)).encode())
    return chosen


def machine() -> list[str | int]:
    """What measurements of a machine are remembered under."""
    return [platform.processor(), platform.machine(), _cpu_name(), cores()]


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def _measure(model: Model, progress: Callable[[int, int], None]) -> Tuning:
    """Flash attention first, on all cores; then whether half the threads do better with the winner."""
    deadline = time.monotonic() + _DEADLINE_S
    best, best_score = Tuning(flash_attention=False, threads=cores()), float("inf")
    for i in range(3):
        progress(i, 3)
        candidate = replace(best, flash_attention=i == 1) if i < 2 else replace(best, threads=max(1, cores() // 2))
        if time.monotonic() > deadline or (i == 2 and candidate == best):
            break
        try:
            score = _score(model, candidate, deadline)
        except (EngineError, ModelError):
            continue
        if score < best_score:
            best, best_score = candidate, score
    return best


def _score(model: Model, tuning: Tuning, deadline: float) -> float:
    """Seconds one typical turn takes at depth with these settings; lower is better."""
    depth = min(_DEPTH, model.n_ctx_train // 2)
    n_ctx = depth + 8 * _BLOCK + _STEPS
    with _context(model, ContextSettings(n_ctx, tuning.flash_attention, tuning.threads)) as context:
        if model.memory_kind == "dense":
            _fill(context, depth)
        context.decode(1)
        steps = []
        for _ in range(_STEPS):
            begun = time.perf_counter()
            context.decode(1)
            steps.append(time.perf_counter() - begun)
            if time.monotonic() > deadline:
                break  # a slow model or a busy machine: one step tells enough
        prefills = []
        for _ in range(2):
            begun = time.perf_counter()
            context.prefill([1] * _MESSAGE_TOKENS, lambda _done: None)
            prefills.append(time.perf_counter() - begun)
    # The fastest of each: interference only ever adds time.
    return _ANSWER_TOKENS * min(steps) + min(prefills)


@contextmanager
def _context(model: Model, settings: ContextSettings) -> Iterator[Context]:
    context = Context(model, settings)
    try:
        yield context
    finally:
        context.close()


def _fill(context: Context, depth: int) -> None:
    """Make `depth` tokens resident by loading the rows of a short block again and again at new positions."""
    tokens = [1] * _BLOCK
    context.prefill(tokens, lambda _done: None)
    rows = context.export_rows(0, _BLOCK)
    for start in range(_BLOCK, depth - _BLOCK + 1, _BLOCK):
        for i in range(_BLOCK):
            struct.pack_into("<i", rows, _CELLS_AT + i * _CELL_BYTES, start + i)
        if not context.import_rows(memoryview(rows), start, tokens, start, start + _BLOCK):
            raise EngineError("The measuring payload was refused.")
