"""The next message in a long conversation against llama-server's defaults: first text, and tokens a second behind it.

Both sides have the history in memory and get the same token ids of a message that is new each time. What was reused is
checked on both sides. llama-server is started with nothing but a model, a port and `--offline`.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.beside import Beside
from benchmarks.llama_server import Completion, serving
from benchmarks.peer_resume import evaluate
from chatapp.benches.decode import ratio
from chatapp.benches.foreign import foreign_load
from chatapp.benches.scene import GREEDY, Turn, answer, history_of, prepared, running, text_of
from models.engine import Entry, Prompt
from models.errors import EngineError

_SLACK_TOKENS = 8
"""Glue behind a history that a side may evaluate again."""


@dataclass(frozen=True, slots=True)
class _Pair:
    own: Turn
    peer: Completion


async def measure(beside: Beside, *, depth: int, n_message: int, n_gen: int, repeats: int) -> dict[str, Any]:
    """Return the figures of a message of `n_message` tokens behind `depth`. Raises `EngineError`."""
    settings = replace(beside.settings, data_dir=beside.folder / "turn", cache_dir=beside.folder / "turn-cache")
    sampling = replace(GREEDY, max_tokens=n_gen)
    pairs: list[_Pair] = []
    loads = []
    async with running(settings) as (engine, info):
        before = await history_of(engine, info, depth)
        opened = await prepared(engine, Prompt(before))
        history = [token for run in opened.runs for token in run.ids]
        with serving(beside.server, beside.model, (), beside.folder / "turn.log") as server:
            evaluate(server, history)
            for i in range(repeats + 1):
                text = await text_of(engine, n_message, f"{i}: write a long story about the sea.")
                await prepared(engine, Prompt(before))
                loads.append(foreign_load())
                prompt = Prompt((*before, Entry("user", text)), store_kv=False)
                own = await answer(engine, prompt, sampling)
                peer = server.complete(own.prompt_ids, n_gen, id_slot=0, ignore_eos=True)
                if (
                    peer.timings["cache_n"] < len(history) - _SLACK_TOKENS
                    or own.evaluated > n_message + 4 * _SLACK_TOKENS
                ):
                    raise EngineError(
                        f"A side evaluated the history again: {peer.timings}, {own.evaluated} tokens here."
                    )
                pairs.append(_Pair(own, peer))
    pairs = pairs[1:]  # the first of each is for the caches
    own_tpots = [pair.own.tpot_s or 0.0 for pair in pairs]
    return {
        "history_tokens": len(history),
        "message_tokens": n_message,
        "ours_evaluated_tokens": max(pair.own.evaluated for pair in pairs),
        "peer_evaluated_tokens": max(pair.peer.timings["prompt_n"] for pair in pairs),
        "ours_ttft_s": statistics.median(pair.own.ttft_s for pair in pairs),
        "peer_ttft_s": statistics.median(pair.peer.ttft_s for pair in pairs),
        "ttft_ratio": ratio([pair.own.ttft_s for pair in pairs], [pair.peer.ttft_s for pair in pairs]),
        "ours_tokens_per_s": 1 / statistics.median(own_tpots),
        "peer_tokens_per_s": 1 / statistics.median(pair.peer.tpot_s for pair in pairs),
        "decode_ratio": ratio([pair.peer.tpot_s for pair in pairs], own_tpots),
        "repeats": repeats,
        "foreign_load": max(loads),
    }
