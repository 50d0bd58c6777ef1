"""What benchmarks share: an engine in folders of its own, texts of a given length, and one measured answer."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from chatapp.config import FlashAttention, Settings
from chatapp.engines import make_engine, with_model_path
from models.engine import Engine, Entry, Event, Failed, Finished, Loaded, ModelInfo, Piece, Prepared, Prompt, Sampling
from models.errors import EngineError
from models.kvsettings import DEFAULT_KV

GREEDY = Sampling(temperature=0, max_tokens=32)
STORY = "Write a long story about the sea and the people who live by it."
"""A question that a model goes on answering."""
SYSTEM = "You are a helpful assistant."
_GLUE_ROOM = 8
_KEPT = ("tuning", "bandwidth")
"""Folders of the cache that say what is fastest here."""
# Prose, because a model that is fed a list of words answers nothing.
_SENTENCES = (
    "The harbor was quiet in the morning and the fishermen had already left.",
    "A small lantern burned in the kitchen window of the old house.",
    "Nobody remembered who had planted the orchard behind the school.",
    "She wrote a long letter to her brother about the winter and the garden.",
    "The train crossed the bridge and slowed down before the tunnel.",
    "In the market they sold pepper, oranges, copper pots and silver rings.",
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One measured answer: what the client saw, the engine's own clock where it says so.

    `prepared_s` is from sending until everything before the answer was evaluated, `ttft_s` until the first text,
    `tpot_s` by the engine's clock (None: too short). `ids` are the answer's tokens, `prompt_ids` all that stand before.
    """

    prepared_s: float
    ttft_s: float
    tpot_s: float | None
    evaluated: int
    resident: int
    ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]


@contextmanager
def own_settings(settings: Settings) -> Iterator[Settings]:
    """Settings with temporary folders: the user's limits on stored KV would be measured instead of the program.

    What was measured of this machine before holds there too. Nothing is guessed: an answer that repeats itself would
    make decoding look faster than the loop it is compared with.
    """
    with tempfile.TemporaryDirectory(prefix="chatapp-bench-") as folder:
        root = Path(folder)
        own = replace(with_model_path(settings), data_dir=root / "data", cache_dir=root / "cache", kv=DEFAULT_KV)
        own = replace(own, speculation="off")
        for name in _KEPT:
            if (settings.cache_dir / name).is_dir():
                shutil.copytree(settings.cache_dir / name, own.cache_dir / name)
        yield own


async def settled(settings: Settings) -> Settings:
    """The settings with the flash attention and threads that the engine chooses, so that other engines have the same.

    Both sides of a comparison then evaluate prompts with as many threads as they decode. Raises `EngineError`.
    """
    async with running(settings) as (_, info):
        flash: FlashAttention = "on" if info.flash_attention else "off"
        return replace(settings, flash_attention=flash, threads=info.threads, n_ctx=info.n_ctx)


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[tuple[Engine, ModelInfo]]:
    """Run an engine with a loaded model. Raises `EngineError`."""
    engine = make_engine(settings)
    try:
        yield engine, await load(engine)
    finally:
        await engine.close()


async def load(engine: Engine) -> ModelInfo:
    """Load the model. Raises `EngineError`."""
    async for event in engine.load():
        raise_failure(event)
        if isinstance(event, Loaded):
            return event.info
    raise EngineError("The engine ended while it loaded the model.")


async def prepared(engine: Engine, prompt: Prompt) -> Prepared:
    """Make a history resident. Raises `EngineError`."""
    found: Prepared | None = None
    async for event in engine.prepare(prompt):
        raise_failure(event)
        if isinstance(event, Prepared):
            found = event
    if found is None:
        raise EngineError("The engine ended while it prepared the history.")
    return found


async def answer(engine: Engine, prompt: Prompt, sampling: Sampling = GREEDY) -> Turn:
    """Have one answer. Raises `EngineError`."""
    begun = time.monotonic()
    ttft_s, prepared_s, tpot_s = 0.0, 0.0, None
    found: Prepared | None = None
    ids: tuple[int, ...] = ()
    async for event in engine.generate(prompt, sampling):
        raise_failure(event)
        if isinstance(event, Piece) and event.text and not ttft_s:
            ttft_s = time.monotonic() - begun
        elif isinstance(event, Prepared):
            found, prepared_s = event, time.monotonic() - begun
        elif isinstance(event, Finished):
            ids, tpot_s = event.run.body, event.stats.tpot_s
            ttft_s = ttft_s or time.monotonic() - begun
    if found is None:
        raise EngineError("The engine ended while it answered.")
    prompt_ids = (*(token for run in found.runs for token in run.ids), *found.opening)
    return Turn(prepared_s, ttft_s, tpot_s, found.prefilled, found.resident, ids, prompt_ids)


async def history_of(engine: Engine, info: ModelInfo, n_tokens: int) -> tuple[Entry, ...]:
    """What stands before a message: about `n_tokens`, or as little as possible."""
    text = await text_of(engine, n_tokens - _GLUE_ROOM, "Read this first.") if n_tokens else SYSTEM
    if info.supports_system:
        return (Entry("system", text),)
    return (Entry("user", text), Entry("assistant", "I have read it."))


async def text_of(engine: Engine, n_tokens: int, start: str, end: str = "") -> str:
    """A text of exactly `n_tokens` tokens, if it can be: begins with `start`, goes on in prose, ends with `end`."""
    text, i = start, 0
    while (missing := n_tokens - await engine.count(text + end)) > 0:
        # A sentence is about a dozen tokens: one for every forty missing cannot overshoot.
        for _ in range(missing // 40 or missing > 20):
            text += " " + _SENTENCES[(i * 5 + i // 7) % len(_SENTENCES)]
            i += 1
        if missing <= 20:
            text += " so" * missing
    return text + end


def raise_failure(event: Event) -> None:
    """Raise `EngineError` for a failure."""
    if isinstance(event, Failed):
        raise EngineError(event.message)
