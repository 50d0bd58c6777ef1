"""Decode and prefill through the whole product against llama-bench, with the same settings and with its defaults.

Product and llama-bench take turns; a ratio is product speed / llama-bench's, the median over the rounds. llama-bench
samples nothing and evaluates random tokens; the product answers a question, its text and its pipes included.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks import llama_bench
from benchmarks.beside import Beside
from chatapp.benches.decode import ratio, tpot_of
from chatapp.benches.foreign import foreign_load
from chatapp.benches.prefill import Messages
from chatapp.benches.scene import GREEDY, STORY, answer, history_of, prepared, running
from models.engine import Engine, Entry, ModelInfo, Prompt

DEPTHS = ("shallow", "deep")


async def measure(beside: Beside, *, depth: int, n_prompt: int, n_gen: int, rounds: int) -> dict[str, Any]:
    """Return the figures at the beginning of a context and behind `depth` tokens. Raises `EngineError`."""
    own: dict[str, list[float]] = defaultdict(list)
    peer: dict[str, list[float]] = defaultdict(list)
    loads = []
    settings = replace(beside.settings, data_dir=beside.folder / "speed", cache_dir=beside.folder / "speed-cache")
    async with running(settings) as (engine, info):
        messages = {
            name: Messages(await history_of(engine, info, length), n_prompt)
            for name, length in zip(DEPTHS, (0, depth), strict=True)
        }
        # A message stands behind the glue before it and an answer behind its question: the peer begins there too.
        message_at, answer_at = [], []
        for each in messages.values():
            await each.ask(engine)
            turn = await each.ask(engine)
            message_at.append(len(turn.prompt_ids) - turn.evaluated)
            turn = await answer(engine, _question(each), replace(GREEDY, max_tokens=1))
            answer_at.append(len(turn.prompt_ids))
        tests = (
            ("-p", str(n_prompt), "-n", "0", "-d", ",".join(map(str, message_at))),
            ("-p", "0", "-n", str(n_gen), "-d", ",".join(map(str, answer_at))),
        )
        for i in range(rounds):
            loads.append(foreign_load())
            if i % 2:
                _peer(beside, peer, tests, beside.bench_flags)
            for name in DEPTHS:
                await _own(name, own, engine, info, messages[name], n_gen)
            if not i % 2:
                _peer(beside, peer, tests, beside.bench_flags)
    defaults: dict[str, list[float]] = defaultdict(list)
    cell = _peer(beside, defaults, tests, ())
    figures: dict[str, Any] = {"depth_tokens": depth, "prompt_tokens": n_prompt, "output_tokens": n_gen}
    for name in DEPTHS:
        for what, against in (("prefill", "prefill"), ("greedy", "decode"), ("sampled", "decode")):
            key, its = f"{name}_{what}", f"{name}_{against}"
            figures[f"{key}_tokens_per_s"] = statistics.median(own[key])
            figures[f"{its}_peer_tokens_per_s"] = statistics.median(peer[its])
            figures[f"{its}_peer_defaults_tokens_per_s"] = statistics.median(defaults[its])
            figures[f"{key}_ratio"] = ratio(own[key], peer[its])
            figures[f"{key}_defaults_ratio"] = statistics.median(own[key]) / statistics.median(defaults[its])
    return figures | {
        "peer_defaults_flash_attention": cell.flash_attention,
        "peer_defaults_threads": cell.threads,
        "rounds": rounds,
        "foreign_load": max(loads),
    }


async def _own(
    name: str, found: dict[str, list[float]], engine: Engine, info: ModelInfo, messages: Messages, n_gen: int
) -> None:
    """One round of ours at one depth: what the other depth has pushed out is restored first."""
    await prepared(engine, Prompt(messages.before))
    turn = await messages.ask(engine)
    found[f"{name}_prefill"].append(turn.evaluated / turn.prepared_s)
    prompt = _question(messages)
    for what, sampling in (("greedy", GREEDY), ("sampled", replace(info.sampling, seed=1))):
        tpot_s, _ = await tpot_of(engine, prompt, replace(sampling, max_tokens=n_gen))
        found[f"{name}_{what}"].append(1 / tpot_s)


def _question(messages: Messages) -> Prompt:
    return Prompt((*messages.before, Entry("user", STORY)), store_kv=False)


def _peer(
    beside: Beside, found: dict[str, list[float]], tests: Sequence[Sequence[str]], flags: tuple[str, ...]
) -> llama_bench.Cell:
    """One round of llama-bench, the median of its repetitions; returns one of its tests."""
    cells = [llama_bench.run(beside.bench, beside.model, [*test, "-r", "2", *flags]) for test in tests]
    for at_depths in cells:
        for name, cell in zip(DEPTHS, at_depths, strict=True):
            what = "prefill" if cell.n_prompt else "decode"
            found[f"{name}_{what}"].append(statistics.median(cell.tokens_per_s))
    return cells[0][0]
