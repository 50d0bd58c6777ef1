"""What cells of other conversations cost the active one in a shared cache, and what moving it to the front gives back.

`python -m benchmarks.compaction` prints one JSON object; see docs/performance.md. Decode seconds are the fastest of
several steps: interference only ever adds time.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

from llama_cpp import llama_cpp as lib

from models.catalog import starter_model
from models.errors import EngineError
from models.llama import Context, ContextSettings, Model, quiet_logs

_FOREIGN_TOKENS = 5_900
_OWN_TOKENS = 230
_STEPS = 12
_BATCH = 500


def main() -> None:
    """Measure and print."""
    path = starter_model()
    if path is None:
        sys.exit("The starter model is not installed: run make first.")
    kept = quiet_logs(lambda _text: None)
    model = Model(path, gpu_layers=0, progress=lambda _share: None)
    figures = {}
    for flash_attention in (False, True):
        context = Context(model, ContextSettings(8192, flash_attention=flash_attention, threads=1))
        context.warm_up()
        name = "flash_attention_on" if flash_attention else "flash_attention_off"
        figures[name] = _measure(context)
        context.close()
    print(json.dumps(figures | {"own_tokens": _OWN_TOKENS, "foreign_tokens": _FOREIGN_TOKENS}))
    del kept


def _measure(context: Context) -> dict[str, float]:
    """Decode alone; behind the cells of a conversation that has left; after moving to the front."""
    own = [5 + i % 900 for i in range(_OWN_TOKENS)]
    context.prefill(own, lambda _done: None)
    alone_s = _step_s(context)
    rows = bytes(context.export_rows(0, _OWN_TOKENS))
    context.clear()
    for i in range(0, _FOREIGN_TOKENS, _BATCH):
        context.prefill([7 + i % 100] * _BATCH, lambda _done: None)
    # The other conversation leaves, and ours is loaded behind its cells.
    _load_behind(context, rows, own)
    behind_s = _step_s(context)
    begun = time.perf_counter()
    if not context.compact():
        raise EngineError("The conversation could not be moved to the front.")
    compact_s = time.perf_counter() - begun
    return {
        "alone_s": alone_s,
        "behind_s": behind_s,
        "compacted_s": _step_s(context),
        "compact_s": compact_s,
    }


def _load_behind(context: Context, rows: bytes, own: list[int]) -> None:
    """Put `own` where a switch of conversations in a shared cache leaves it: behind cells that are free by now.

    Through the library itself, because the product never does this to a conversation; only batches would.
    """
    memory, handle = context._memory, context._handle
    source = (ctypes.c_uint8 * len(rows)).from_buffer_copy(rows)
    if lib.llama_state_seq_set_data(handle, source, len(rows), 1) != len(rows):
        raise EngineError("The conversation could not be loaded.")
    lib.llama_memory_seq_rm(memory, 0, -1, -1)
    lib.llama_memory_seq_cp(memory, 1, 0, -1, -1)
    lib.llama_memory_seq_rm(memory, 1, -1, -1)
    context.tokens[:] = own
    context.cells_end = _FOREIGN_TOKENS + _OWN_TOKENS


def _step_s(context: Context) -> float:
    """Seconds of a decode step; the prefix is as long afterwards as before."""
    n = len(context.tokens)
    seconds = []
    for _ in range(_STEPS):
        begun = time.perf_counter()
        context.decode(9)
        seconds.append(time.perf_counter() - begun)
    context.keep(n)
    return min(seconds)


if __name__ == "__main__":
    main()
