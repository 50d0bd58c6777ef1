"""`chatapp bench decode`: tokens a second through the whole product, against the bare loop, in alternating runs."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import replace

from chatapp.benches.bare import Bare, bare_loop
from chatapp.benches.foreign import foreign_load
from chatapp.benches.scene import GREEDY, STORY, answer, history_of, own_settings, running, settled
from chatapp.config import Settings
from models.engine import Engine, Entry, ModelInfo, Prompt, Sampling
from models.errors import EngineError


def decode(settings: Settings, *, depth: int, n_tokens: int, repeats: int) -> dict[str, object]:
    """Decode `n_tokens` at the beginning of a context and behind `depth` tokens.

    On both sides: same model file, context, threads and flash attention. The bare loop is greedy; the product answers
    greedily and with the model's default sampling. Raises `EngineError` in one sentence.
    """
    with own_settings(settings) as own:
        return asyncio.run(_decode(own, depth, n_tokens, repeats))


async def _decode(settings: Settings, depth: int, n_tokens: int, repeats: int) -> dict[str, object]:
    async with running(await settled(settings)) as (engine, info):
        with bare_loop(info) as bare:
            figures: dict[str, object] = {}
            for name, length in (("shallow", 0), ("deep", depth)):
                before = await history_of(engine, info, length)
                prompt = Prompt((*before, Entry("user", STORY)), store_kv=False)
                figures |= await _side_by_side(name, engine, info, bare, prompt, n_tokens, repeats)
    return figures | {"repeats": repeats, "threads": info.threads, "flash_attention": info.flash_attention}


async def _side_by_side(
    name: str, engine: Engine, info: ModelInfo, bare: Bare, prompt: Prompt, n_tokens: int, repeats: int
) -> dict[str, object]:
    """The figures of one depth."""
    greedy = replace(GREEDY, max_tokens=n_tokens)
    # Both sides evaluate the prompt once; behind it every answer begins anew.
    ids = (await answer(engine, prompt, replace(greedy, max_tokens=1))).prompt_ids
    bare.prefill(ids)
    loads, bares, own, sampled, lengths = [], [], [], [], []
    for i in range(repeats):
        loads.append(foreign_load())
        bare.prefill(ids, keep=len(ids) - 1)
        if i % 2:
            bares.append(bare.decode(n_tokens))
        tpot_s, n = await tpot_of(engine, prompt, greedy)
        own.append(tpot_s)
        lengths.append(n)
        if not i % 2:
            bares.append(bare.decode(n_tokens))
        tpot_s, n = await tpot_of(engine, prompt, replace(info.sampling, seed=i, max_tokens=n_tokens))
        sampled.append(tpot_s)
        lengths.append(n)
    return {
        f"{name}_depth_tokens": len(ids),
        f"{name}_bare_tokens_per_s": 1 / statistics.median(bares),
        f"{name}_greedy_tokens_per_s": 1 / statistics.median(own),
        f"{name}_sampled_tokens_per_s": 1 / statistics.median(sampled),
        f"{name}_greedy_ratio": ratio(bares, own),
        f"{name}_sampled_ratio": ratio(bares, sampled),
        f"{name}_least_output_tokens": min(lengths),
        f"{name}_foreign_load": max(loads),
    }


async def tpot_of(engine: Engine, prompt: Prompt, sampling: Sampling) -> tuple[float, int]:
    """Seconds per output token by the engine's clock, and how many there were. Raises `EngineError`."""
    turn = await answer(engine, prompt, sampling)
    if turn.tpot_s is None:
        raise EngineError("The model ended its answer at once, so that nothing could be measured: try another model.")
    return turn.tpot_s, len(turn.ids)


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Median of the ratios of neighbouring measurements."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))
