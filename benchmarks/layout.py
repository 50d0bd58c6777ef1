"""One pool of cells or a stream for each sequence: which layout decodes several sequences faster.

`python -m benchmarks.layout` prints one JSON object a case: the milliseconds of processor time that a step of all
sequences takes in either layout, and their ratio. One thread, so that a busy machine makes it slower but not different.
With a stream each, a shared prefix is copied to every sequence; in the pool its cells belong to all of them.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llama_cpp import llama_cpp as lib

from models.catalog import starter_model
from models.llama import N_BATCH, Model, quiet_logs

_STEPS = 7


@dataclass(frozen=True, slots=True)
class _Case:
    """So many sequences of `n_own` tokens, behind `n_shared` that all of them begin with."""

    n_sequences: int
    n_shared: int
    n_own: int


_CASES = (_Case(1, 1000, 30), _Case(8, 1000, 30), _Case(8, 0, 30), _Case(8, 0, 300), _Case(4, 0, 1000))


def main() -> None:
    """Measure and print."""
    kept = quiet_logs(lambda _line: None)
    path = starter_model()
    assert path is not None, "the starter model is not installed"
    model = Model(path, gpu_layers=0, progress=lambda _share: None)
    for case in _CASES:
        pool, streams = _step_s(model, case, unified=True), _step_s(model, case, unified=False)
        print(
            json.dumps(
                {
                    "sequences": case.n_sequences,
                    "shared_tokens": case.n_shared,
                    "own_tokens": case.n_own,
                    "pool_step_ms": round(pool * 1e3, 1),
                    "streams_step_ms": round(streams * 1e3, 1),
                    "pool_to_streams_ratio": round(pool / streams, 2),
                }
            ),
            flush=True,
        )
    del kept


def _step_s(model: Model, case: _Case, *, unified: bool) -> float:
    """Seconds of processor time that one token of every sequence takes; median."""
    context = _context(model, case, unified=unified)
    memory = lib.llama_get_memory(context)
    for begin in range(0, case.n_shared, N_BATCH):
        _decode(context, [(0, at) for at in range(begin, min(case.n_shared, begin + N_BATCH))])
    end = case.n_shared if unified else -1
    for sequence in range(1, case.n_sequences + 1):
        if case.n_shared:
            lib.llama_memory_seq_cp(memory, 0, sequence, 0 if unified else -1, end)
    for sequence in range(1, case.n_sequences + 1):
        for begin in range(0, case.n_own, N_BATCH):
            places = range(case.n_shared + begin, case.n_shared + min(case.n_own, begin + N_BATCH))
            _decode(context, [(sequence, at) for at in places])
    taken = []
    for step in range(_STEPS):
        begun = time.thread_time()
        at = case.n_shared + case.n_own + step
        _decode(context, [(sequence, at) for sequence in range(1, case.n_sequences + 1)])
        taken.append(time.thread_time() - begun)
    lib.llama_free(context)
    return statistics.median(taken)


def _context(model: Model, case: _Case, *, unified: bool) -> Any:
    longest = -(-(case.n_shared + case.n_own + _STEPS) // 256) * 256
    params = lib.llama_context_default_params()
    params.n_seq_max = case.n_sequences + 1
    params.n_ctx = longest * params.n_seq_max
    params.n_batch = params.n_ubatch = N_BATCH
    params.kv_unified = unified
    params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.n_threads = params.n_threads_batch = 1
    return lib.llama_init_from_model(model.handle, params)


def _decode(context: Any, places: Sequence[tuple[int, int]]) -> None:
    """Evaluate a token at each (sequence, position)."""
    batch = lib.llama_batch_init(len(places), 0, 1)
    batch.n_tokens = len(places)
    for i, (sequence, at) in enumerate(places):
        batch.token[i], batch.pos[i], batch.logits[i] = 100 + at % 50, at, sequence > 0
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
    result = lib.llama_decode(context, batch)
    lib.llama_batch_free(batch)
    assert result == 0, "the batch was not evaluated"


if __name__ == "__main__":
    main()
