"""`chatapp bench typeahead`: what is left to evaluate when a paste was read ahead before it is sent."""

from __future__ import annotations

import asyncio
import statistics
from contextlib import suppress
from dataclasses import replace

from chatapp.benches.decode import ratio
from chatapp.benches.foreign import foreign_load
from chatapp.benches.scene import GREEDY, Turn, answer, history_of, own_settings, prepared, running, text_of
from chatapp.config import Settings
from models.engine import Engine, Entry, Prompt

IDLE_FACTOR = 1.5
"""The engine is left alone for so many times what evaluating the paste takes, as it was measured without type-ahead."""
CHUNK_TOKENS = 512
"""One batch of prefill."""
_TAIL = " Now say in your own words what that was about, and what you think of it."
_ONE_TOKEN = replace(GREEDY, max_tokens=1)


def typeahead(settings: Settings, *, n_tokens: int, repeats: int) -> dict[str, object]:
    """Send a paste of `n_tokens` with a sentence typed behind it, at once and after it was read ahead.

    Raises `EngineError` in one sentence.
    """
    with own_settings(settings) as own:
        return asyncio.run(_typeahead(own, n_tokens, repeats))


async def _typeahead(settings: Settings, n_tokens: int, repeats: int) -> dict[str, object]:
    loads, plain, ahead, idle, whole = [], [], [], [], []
    async with running(settings) as (engine, info):
        before = await history_of(engine, info, 0)
        pastes = [await text_of(engine, n_tokens, f"{i} is the number of this text.") for i in range(2 * repeats)]
        n_typed = await engine.count(pastes[0] + _TAIL) - await engine.count(pastes[0])
        for first, second in zip(pastes[::2], pastes[1::2], strict=True):
            await prepared(engine, Prompt(before, store_kv=False))
            loads.append(foreign_load())
            turn = await answer(engine, _sent(before, first), _ONE_TOKEN)
            plain.append(turn)
            await prepared(engine, Prompt(before, store_kv=False))
            idle.append(IDLE_FACTOR * turn.prepared_s)
            is_whole, turn = await _ahead(engine, before, second, idle[-1])
            whole.append(is_whole)
            ahead.append(turn)
    n_plain = int(statistics.median(turn.evaluated for turn in plain))
    n_ahead = max(turn.evaluated for turn in ahead)
    return {
        "paste_tokens": n_tokens,
        "typed_tokens": n_typed,
        "chunk_tokens": CHUNK_TOKENS,
        "idle_s": statistics.median(idle),
        "read_whole": all(whole),
        "plain_evaluated_tokens": n_plain,
        "ahead_evaluated_tokens": n_ahead,
        "evaluated_to_allowed_ratio": n_ahead / (n_typed + CHUNK_TOKENS),
        "plain_ttft_s": statistics.median(turn.ttft_s for turn in plain),
        "ahead_ttft_s": statistics.median(turn.ttft_s for turn in ahead),
        "ttft_ratio": ratio([turn.ttft_s for turn in ahead], [turn.ttft_s for turn in plain]),
        "repeats": repeats,
        "threads": info.threads,
        "flash_attention": info.flash_attention,
        "foreign_load": max(loads),
    }


def _sent(before: tuple[Entry, ...], paste: str) -> Prompt:
    return Prompt((*before, Entry("user", paste + _TAIL)), store_kv=False)


async def _ahead(engine: Engine, before: tuple[Entry, ...], paste: str, idle_s: float) -> tuple[bool, Turn]:
    """Leave the engine alone with the paste for so long, then send; says too whether all of it was read ahead."""
    is_whole = False
    with suppress(TimeoutError):
        async with asyncio.timeout(idle_s):
            async for ahead in engine.anticipate(Prompt((*before, Entry("user", paste)), store_kv=False)):
                is_whole = ahead.is_whole
    return is_whole, await answer(engine, _sent(before, paste), _ONE_TOKEN)
