"""How close decoding comes to the memory's speed with a model of a usual size, and what takes the rest.

The floor is what reading weights and KV takes at the measured read speed. Above it stand, measured: the library's own
step, sampling, and the product around them. What one more token in the same step costs says how much of the step is
computing instead of reading.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

from benchmarks import llama_bench, random_model
from benchmarks.beside import Beside
from chatapp.benches.bare import bare_loop
from chatapp.benches.decode import ratio, tpot_of
from chatapp.benches.foreign import foreign_load
from chatapp.benches.scene import GREEDY, STORY, answer, history_of, running
from models.engine import Entry, Prompt
from models.stats import tpot_floor


async def measure(beside: Beside, *, shape: random_model.Shape, n_gen: int, repeats: int) -> dict[str, Any]:
    """Return the figures of a model with random weights. Raises `EngineError`."""
    path = beside.folder / "random.gguf"
    random_model.write(path, beside.model, shape)
    folder = beside.folder / "roofline"
    # It is another model: what is fastest for it is measured anew.
    settings = replace(
        beside.settings,
        model=path,
        data_dir=folder,
        cache_dir=folder / "cache",
        n_ctx=1024,
        flash_attention="auto",
        threads=None,
    )
    sampling = replace(GREEDY, max_tokens=n_gen)
    loads, own, bares, steps, twos, peers = [], [], [], [], [], []
    async with running(settings) as (engine, info):
        prompt = Prompt((*await history_of(engine, info, 0), Entry("user", STORY)), store_kv=False)
        ids = (await answer(engine, prompt, replace(sampling, max_tokens=1))).prompt_ids
        flags = ("-t", str(info.threads), "-fa", "on" if info.flash_attention else "off", "-p", "0", "-r", "1")
        with bare_loop(info) as bare:
            bare.prefill(ids)
            for _ in range(repeats):
                loads.append(foreign_load())
                own.append((await tpot_of(engine, prompt, sampling))[0])
                bare.prefill(ids, keep=len(ids) - 1)
                steps.append(bare.step(repeats=n_gen // 2))
                twos.append(bare.step(width=2, repeats=n_gen // 2))
                bares.append(bare.decode(n_gen))
                (cell,) = llama_bench.run(beside.bench, path, [*flags, "-n", str(n_gen)])
                peers.append(1 / cell.tokens_per_s[0])
    path.unlink()
    floor_s = tpot_floor(info, len(ids) + n_gen / 2)
    step_s = statistics.median(steps)
    return {
        "n_params": info.n_params,
        "weights_bytes": info.weights_bytes,
        "read_bytes_per_s": info.read_bytes_per_s,
        "floor_s": floor_s,
        "ours_tpot_s": statistics.median(own),
        "peer_tpot_s": statistics.median(peers),
        "bare_tpot_s": statistics.median(bares),
        "bare_step_s": step_s,
        "second_token_s": statistics.median(twos) - step_s,
        "kernels_s": step_s - floor_s if floor_s else None,
        "sampling_s": statistics.median(bares) - step_s,
        "product_s": statistics.median(own) - statistics.median(bares),
        "memory_limit_ratio": floor_s / statistics.median(own) if floor_s else None,
        "greedy_ratio": ratio(peers, own),
        "flash_attention": info.flash_attention,
        "threads": info.threads,
        "foreign_load": max(loads),
    }
