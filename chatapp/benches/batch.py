"""`chatapp bench batch`: prompts over a shared system prompt, one after the other and many at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from chatapp.benches.foreign import foreign_load
from chatapp.benches.scene import GREEDY, own_settings, running, settled, text_of
from chatapp.config import Settings
from models.engine import Engine, Entry, ModelInfo
from models.errors import EngineError
from models.stats import common_prefix
from sessions.batch import Answered, Shared, answer_row, answer_rows, prepare
from sessions.batch_rows import Row

_THINGS = ("a lighthouse", "an old captain", "a lost letter", "the storms", "a red boat", "two sisters", "the tide")
_PLACES = ("Norway", "Chile", "Japan", "Ireland", "Kenya", "Greece", "Canada", "Korea", "Peru")


@dataclass(frozen=True, slots=True)
class Run:
    """One run over all rows: seconds from the first request, tokens of the shared prefix and how many were evaluated.

    `answers` are token ids by row, `prompts` those in front of each.
    """

    seconds: float
    n_shared: int
    n_shared_evaluated: int
    n_output: int
    answers: tuple[tuple[int, ...], ...]
    prompts: tuple[tuple[int, ...], ...]


def batch(
    settings: Settings, *, n_rows: int, n_tokens: int, n_system_tokens: int, n_parallel: int
) -> dict[str, object]:
    """Answer the rows greedily, `n_tokens` each, by an engine for one request and one for `n_parallel`.

    Raises `EngineError` in one sentence.
    """
    with own_settings(settings) as own:
        return asyncio.run(_batch(own, n_rows, n_tokens, n_system_tokens, n_parallel))


async def _batch(
    settings: Settings, n_rows: int, n_tokens: int, n_system_tokens: int, n_parallel: int
) -> dict[str, object]:
    settings = await settled(settings)
    loads = [foreign_load()]
    async with running(replace(settings, cache_dir=settings.cache_dir / "one")) as (engine, _):
        shared = await shared_of(engine, n_system_tokens, n_tokens)
        one = await answered(engine, shared, n_rows, n_at_once=1)
    loads.append(foreign_load())
    settings = replace(settings, cache_dir=settings.cache_dir / "many", n_parallel=n_parallel)
    async with running(settings) as (engine, many_info):
        many = await answered(engine, shared, n_rows, n_at_once=many_info.n_parallel)
    loads.append(foreign_load())
    return _figures(one, many, many_info, max(loads)) | {"rows": n_rows, "tokens_per_row": n_tokens}


def _figures(one: Run, many: Run, info: ModelInfo, load: float) -> dict[str, object]:
    same = [common_prefix(a, b) for a, b in zip(one.answers, many.answers, strict=True)]
    return {
        "sequential_s": one.seconds,
        "parallel_s": many.seconds,
        "sequential_to_parallel_ratio": one.seconds / many.seconds,
        "sequential_tokens_per_s": one.n_output / one.seconds,
        "parallel_tokens_per_s": many.n_output / many.seconds,
        "sequential_output_tokens": one.n_output,
        "parallel_output_tokens": many.n_output,
        "shared_tokens": many.n_shared,
        "sequential_shared_evaluated_ratio": one.n_shared_evaluated / one.n_shared,
        "parallel_shared_evaluated_ratio": many.n_shared_evaluated / many.n_shared,
        "equal_answers": sum(a == b for a, b in zip(one.answers, many.answers, strict=True)),
        "least_equal_first_tokens": min(same),
        "n_parallel": info.n_parallel,
        "threads": info.threads,
        "flash_attention": info.flash_attention,
        "foreign_load": load,
    }


async def shared_of(engine: Engine, n_system_tokens: int, n_tokens: int) -> Shared:
    """A system prompt of so many tokens, and greedy answers of at most `n_tokens`."""
    text = await text_of(engine, n_system_tokens, "You write long stories. This is the style to write them in.")
    return Shared((Entry("system", text),), sampling=replace(GREEDY, max_tokens=n_tokens))


def rows_of(n_rows: int) -> list[Row]:
    """Questions that long answers follow, no two alike."""
    pairs = [(_THINGS[n % len(_THINGS)], _PLACES[n % len(_PLACES)]) for n in range(n_rows)]
    texts = [f"Write story number {n} about {thing} and a harbor in {place}." for n, (thing, place) in enumerate(pairs)]
    return [Row(n + 1, n, str(n), id=n, entries=(Entry("user", text),)) for n, text in enumerate(texts)]


async def answered(engine: Engine, shared: Shared, n_rows: int, *, n_at_once: int) -> Run:
    """Answer all rows. Raises `EngineError` where one fails."""
    found: list[Answered] = []
    begun = time.monotonic()
    shared, opened = await prepare(engine, shared)
    assert opened is not None, "there is a system prompt"

    async def rows() -> AsyncIterator[Row]:
        for row in rows_of(n_rows):
            yield row

    async def ask(row: Row) -> Answered:
        return await answer_row(engine, row, shared, monotonic=time.monotonic)

    await answer_rows(rows(), ask, found.append, n_at_once=n_at_once)
    seconds = time.monotonic() - begun
    found.sort(key=lambda one: one.row.place)
    if failed := next((one.error for one in found if one.error), None):
        raise EngineError(failed)
    n_shared = sum(len(run.ids) for run in opened.runs)
    return Run(
        seconds,
        n_shared,
        opened.prefilled + sum(_shared_evaluated(one, n_shared) for one in found),
        sum((one.stats.output_tokens or 0) if one.stats else 0 for one in found),
        tuple(one.token_ids for one in found),
        tuple(_prompt_ids(one) for one in found),
    )


def _shared_evaluated(one: Answered, n_shared: int) -> int:
    """How many tokens of the shared prefix were evaluated once more for a row."""
    stats = one.stats
    assert stats is not None, "a row that did not fail has figures"
    return max(0, (stats.prefilled_tokens or 0) - ((stats.prompt_tokens or 0) - n_shared))


def _prompt_ids(one: Answered) -> tuple[int, ...]:
    """All tokens in front of the answer; the glue that opens it is part of its own run."""
    opening = one.run.ids[: one.run.body_start] if one.run else ()
    return (*(token for run in one.runs for token in run.ids), *opening)
