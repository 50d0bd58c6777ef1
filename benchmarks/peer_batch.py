"""Many prompts over one system prompt, against llama-server with as many slots and the best of its settings.

Both sides get the same token ids and make the same number of tokens for each row. Which of llama-server's settings is
best is tried with fewer rows first. The system prompt is part of what is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from benchmarks.beside import Beside
from benchmarks.llama_server import Server, serving
from chatapp.benches.batch import Run, answered, shared_of
from chatapp.benches.decode import ratio
from chatapp.benches.foreign import foreign_load
from chatapp.benches.scene import running
from models.stats import common_prefix

_VARIANTS: tuple[tuple[str, ...], ...] = (
    ("--kv-unified", "--flash-attn", "on"),
    ("--kv-unified", "--flash-attn", "off"),
    ("--no-kv-unified", "--flash-attn", "on"),
    ("--no-kv-unified", "--flash-attn", "off"),
    ("--kv-unified", "--flash-attn", "on", "--cache-reuse", "256"),
)
_ROOM_TOKENS = 128


async def measure(
    beside: Beside, *, n_rows: int, n_system: int, n_gen: int, n_parallel: int, repeats: int
) -> dict[str, Any]:
    """Return the figures of `n_rows` greedy answers of `n_gen` tokens, `n_parallel` at once. Raises `EngineError`."""
    loads, ours, peers = [foreign_load()], [await _own(beside, n_rows, n_system, n_gen, n_parallel, 0)], []
    rows = list(zip(ours[0].prompts, ours[0].answers, strict=True))
    per_row = max(len(prompt) + len(answer) for prompt, answer in rows) + _ROOM_TOKENS
    size = ("--parallel", str(n_parallel), "--ctx-size", str(n_parallel * per_row))
    flags = (*size, "--threads", str(beside.settings.threads))
    tried = {variant: _peer(beside, rows[: 2 * n_parallel], n_parallel, (*flags, *variant))[0] for variant in _VARIANTS}
    best = min(tried, key=lambda variant: tried[variant])
    its: list[tuple[int, ...]] = []
    for i in range(repeats):
        loads.append(foreign_load())
        seconds, its = _peer(beside, rows, n_parallel, (*flags, *best))
        peers.append(seconds)
        if i:
            ours.append(await _own(beside, n_rows, n_system, n_gen, n_parallel, i))
    return {
        "rows": n_rows,
        "n_parallel": n_parallel,
        "shared_tokens": ours[0].n_shared,
        "output_tokens": ours[0].n_output,
        "ours_s": statistics.median(run.seconds for run in ours),
        "peer_s": statistics.median(peers),
        "batch_ratio": ratio([run.seconds for run in ours], peers),
        "ours_tokens_per_s": ours[0].n_output / statistics.median(run.seconds for run in ours),
        "peer_tokens_per_s": ours[0].n_output / statistics.median(peers),
        "ours_shared_evaluated_ratio": ours[0].n_shared_evaluated / ours[0].n_shared,
        "sides_equal_answers": sum(a == b[: len(a)] for (_, a), b in zip(rows, its, strict=True)),
        "sides_least_equal_first_tokens": min(common_prefix(a, b) for (_, a), b in zip(rows, its, strict=True)),
        "peer_best_flags": " ".join(best),
        "peer_tried_s": {" ".join(variant): seconds for variant, seconds in tried.items()},
        "repeats": repeats,
        "foreign_load": max(loads),
    }


async def _own(beside: Beside, n_rows: int, n_system: int, n_gen: int, n_parallel: int, i: int) -> Run:
    """One run of ours in an engine with nothing stored."""
    folder = beside.folder / f"batch-{i}"
    settings = replace(beside.settings, data_dir=folder, cache_dir=folder / "cache", n_parallel=n_parallel)
    async with running(settings) as (engine, info):
        shared = await shared_of(engine, n_system, n_gen)
        return await answered(engine, shared, n_rows, n_at_once=info.n_parallel)


def _peer(
    beside: Beside,
    rows: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    n_parallel: int,
    flags: tuple[str, ...],
) -> tuple[float, list[tuple[int, ...]]]:
    """Seconds that a new llama-server takes for all rows, and its answers; its start and warm-up are left out."""
    with serving(beside.server, beside.model, flags, beside.folder / "batch.log") as server:
        server.complete([1] * 24, 2, cache_prompt=False)
        with ThreadPoolExecutor(n_parallel) as pool:
            begun = time.monotonic()
            answers = list(pool.map(lambda row: _row(server, *row), rows))
            return time.monotonic() - begun, answers


def _row(server: Server, prompt: tuple[int, ...], answer: tuple[int, ...]) -> tuple[int, ...]:
    return server.complete(prompt, len(answer), ignore_eos=True).ids
