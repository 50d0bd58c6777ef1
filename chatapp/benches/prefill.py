"""`chatapp bench prefill`: prompt tokens a second through the whole product, against the bare loop."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import replace

from chatapp.benches.bare import Bare, bare_loop
from chatapp.benches.decode import ratio
from chatapp.benches.foreign import foreign_load
from chatapp.benches.scene import GREEDY, Turn, answer, history_of, own_settings, prepared, running, settled, text_of
from chatapp.config import Settings
from models.engine import Engine, Entry, Prompt

_ONE_TOKEN = replace(GREEDY, max_tokens=1)


def prefill(settings: Settings, *, depth: int, n_tokens: int, repeats: int) -> dict[str, object]:
    """Evaluate a message of `n_tokens`, at the beginning of a context and behind `depth` tokens.

    Both sides evaluate the same token ids in the same batches. The product's time is the client's, from sending until
    it is told that everything is evaluated: text to tokens, lookup and both pipes are in it. Raises `EngineError`.
    """
    with own_settings(settings) as own:
        return asyncio.run(_prefill(own, depth, n_tokens, repeats))


async def _prefill(settings: Settings, depth: int, n_tokens: int, repeats: int) -> dict[str, object]:
    async with running(await settled(settings)) as (engine, info):
        with bare_loop(info) as bare:
            figures: dict[str, object] = {}
            for name, length in (("shallow", 0), ("deep", depth)):
                before = await history_of(engine, info, length)
                figures |= await _side_by_side(name, engine, bare, Messages(before, n_tokens), repeats)
    return figures | {"repeats": repeats, "threads": info.threads, "flash_attention": info.flash_attention}


class Messages:
    """Messages behind a history, each a new one from its first word on, that make `n_tokens` to evaluate."""

    def __init__(self, before: tuple[Entry, ...], n_tokens: int) -> None:
        self.before = before
        self._n_wanted = self._n_text = n_tokens
        self._n_asked = 0

    async def ask(self, engine: Engine) -> Turn:
        """Have the next one evaluated. The first finds out how much glue there is, so its count is another."""
        self._n_asked += 1
        message = await text_of(engine, self._n_text, f"{self._n_asked} is the number of this message.")
        turn = await answer(engine, Prompt((*self.before, Entry("user", message)), store_kv=False), _ONE_TOKEN)
        self._n_text = max(1, self._n_text + self._n_wanted - turn.evaluated)
        return turn


async def _side_by_side(name: str, engine: Engine, bare: Bare, messages: Messages, repeats: int) -> dict[str, object]:
    """The figures of one depth."""
    opened = await prepared(engine, Prompt(messages.before, store_kv=False))
    head = [token for run in opened.runs for token in run.ids]
    bare.prefill(head)
    await messages.ask(engine)
    loads, own, bares, evaluated = [], [], [], []
    for i in range(repeats + 1):
        loads.append(foreign_load())
        turn = await messages.ask(engine)
        # The glue in front of the message is resident on our side, and on the other from the second time on.
        keep = len(turn.prompt_ids) - turn.evaluated if i else len(head)
        bares.append(bare.prefill(turn.prompt_ids, keep=keep) / (len(turn.prompt_ids) - keep))
        own.append(turn.prepared_s / turn.evaluated)
        evaluated.append(turn.evaluated)
    # The first of each is for the caches.
    own, bares = own[1:], bares[1:]
    return {
        f"{name}_depth_tokens": len(head),
        f"{name}_evaluated_tokens": statistics.median(evaluated[1:]),
        f"{name}_bare_tokens_per_s": 1 / statistics.median(bares),
        f"{name}_tokens_per_s": 1 / statistics.median(own),
        f"{name}_ratio": ratio(bares, own),
        f"{name}_foreign_load": max(loads),
    }
