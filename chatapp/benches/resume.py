"""`chatapp bench resume`: how a conversation comes back, cold, live and restored."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace

from chatapp.benches.foreign import foreign_load
from chatapp.benches.scene import (
    GREEDY,
    SYSTEM,
    answer,
    load,
    own_settings,
    prepared,
    raise_failure,
    running,
    settled,
    text_of,
)
from chatapp.config import FlashAttention, Settings
from chatapp.engines import make_engine
from models.engine import Engine, Entry, Prompt, Sampling, Stored
from sessions.history import prompt_messages, prompt_of
from sessions.manager import SessionManager
from sessions.store import Store

MESSAGE_TOKENS = 16
MESSAGE = "Write a long story about the sea."
_REPEATS = 5
_LAST_MESSAGE_TOKENS = 40
_LAST_ANSWER_TOKENS = 128
_GLUE_ROOM = 64


@dataclass(frozen=True, slots=True)
class ResumeFigures:
    """What `bench resume` prints: seconds, bytes, tokens.

    `live` is the next turn without leaving; `restored` the same turn in a new process whose KV was restored when
    the conversation was opened (`restore_s`); `cold` the same turn with nothing stored, with the faster of flash
    attention on and off. `restored_evaluated_tokens` counts everything evaluated from opening to the first
    token; `message_and_glue_tokens` is what a live turn evaluates: the message with its glue, but for its opening,
    which was evaluated with the turn before. `turn_*` describe the last turn of the history.
    """

    history_tokens: int
    message_tokens: int
    message_and_glue_tokens: int
    cold_ttft_s: float
    cold_flash_attention: bool
    live_ttft_s: float
    restored_ttft_s: float
    restore_s: float
    engine_start_s: float
    model_load_s: float
    restored_evaluated_tokens: int
    equal_tokens: bool
    compared_tokens: int
    turn_new_tokens: int
    turn_bytes_written: int
    turn_db_bytes_written: int
    turn_text_and_id_bytes: int
    kv_bytes_per_token: int
    flash_attention: bool
    threads: int
    foreign_load: float
    restored_to_live_ratio: float
    cold_to_restore_ratio: float


@dataclass(frozen=True, slots=True)
class _Return:
    """One return in a new process; `start_s` is process start until the model begins to load."""

    start_s: float
    load_s: float
    restore_s: float
    ttft_s: float
    evaluated: int
    ids: tuple[int, ...]
    foreign_load: float


@dataclass(frozen=True, slots=True)
class LastTurn:
    """What the last turn of the history added and wrote."""

    new_tokens: int
    kv_bytes: int
    db_bytes: int
    text_and_id_bytes: int


def resume(settings: Settings, *, n_tokens: int, repeats: int = _REPEATS) -> dict[str, object]:
    """Run the benchmark with about `n_tokens` of history. Raises `EngineError` in one sentence."""
    with own_settings(settings) as own:
        return asdict(asyncio.run(_resume(own, n_tokens, repeats)))


async def _resume(settings: Settings, n_tokens: int, repeats: int) -> ResumeFigures:
    settings = await settled(settings)
    async with running(settings) as (engine, info):
        with closing(Store(settings.data_dir)) as store:
            history, last = await converse(store, engine, n_tokens)
        message = await text_of(engine, MESSAGE_TOKENS, MESSAGE)
        prompt = Prompt((*history, Entry("user", message)), store_kv=False)
        live, loads = [], []
        for _ in range(repeats):
            await prepared(engine, Prompt(history))
            loads.append(foreign_load())
            live.append(await answer(engine, prompt))
    back = [await _return(settings, history, prompt) for _ in range(repeats)]
    cold_on = await _cold(settings, prompt, "on")
    # Quantized KV needs flash attention.
    cold_off = await _cold(settings, prompt, "off") if settings.kv_type == "f16" else float("inf")
    cold_ttft_s = min(cold_on, cold_off)
    restored_ttft_s = statistics.median(one.ttft_s for one in back)
    restore_s = statistics.median(one.restore_s for one in back)
    live_ttft_s = statistics.median(turn.ttft_s for turn in live)
    answers = [*(turn.ids for turn in live), *(one.ids for one in back)]
    return ResumeFigures(
        history_tokens=sum(len(entry.run.ids) for entry in history if entry.run),
        message_tokens=MESSAGE_TOKENS,
        message_and_glue_tokens=live[0].evaluated,
        cold_ttft_s=cold_ttft_s,
        cold_flash_attention=cold_on < cold_off,
        live_ttft_s=live_ttft_s,
        restored_ttft_s=restored_ttft_s,
        restore_s=restore_s,
        engine_start_s=statistics.median(one.start_s for one in back),
        model_load_s=statistics.median(one.load_s for one in back),
        restored_evaluated_tokens=max(one.evaluated for one in back),
        equal_tokens=len(set(answers)) == 1,
        compared_tokens=min(map(len, answers)),
        turn_new_tokens=last.new_tokens,
        turn_bytes_written=last.kv_bytes,
        turn_db_bytes_written=last.db_bytes,
        turn_text_and_id_bytes=last.text_and_id_bytes,
        kv_bytes_per_token=info.kv_bytes_per_token,
        flash_attention=info.flash_attention,
        threads=info.threads,
        foreign_load=max([*loads, *(one.foreign_load for one in back)]),
        restored_to_live_ratio=restored_ttft_s / live_ttft_s,
        cold_to_restore_ratio=cold_ttft_s / (restored_ttft_s + restore_s),
    )


async def _return(settings: Settings, history: tuple[Entry, ...], prompt: Prompt) -> _Return:
    """Come back in a new process, and have the turn."""
    busy = foreign_load()
    engine = make_engine(settings)
    try:
        begun = time.monotonic()
        loaded = await load(engine)
        start_s = time.monotonic() - begun - loaded.load_s
        opened = await prepared(engine, Prompt(history))
        turn = await answer(engine, prompt)
    finally:
        await engine.close()
    evaluated = turn.evaluated + opened.prefilled
    return _Return(start_s, loaded.load_s, opened.restore_s, turn.ttft_s, evaluated, turn.ids, busy)


async def converse(store: Store, engine: Engine, n_tokens: int) -> tuple[tuple[Entry, ...], LastTurn]:
    """Have a conversation of two turns, the second a usual one, and measure what that one wrote."""
    manager = SessionManager(store, engine)
    session = manager.new(system=SYSTEM)
    n_first = max(8, n_tokens - _LAST_MESSAGE_TOKENS - _LAST_ANSWER_TOKENS - _GLUE_ROOM)
    first = await text_of(engine, n_first, "Read this list.")
    await _collect(manager, session.id, first, replace(GREEDY, max_tokens=8), lambda: None)
    before = _history(manager, session.id)
    # Everything written to the database goes through its write-ahead log, which is far from full here.
    log = store.path.with_name(store.path.name + "-wal")
    log_bytes = log.stat().st_size
    journal_bytes = 0

    def watch() -> None:
        nonlocal journal_bytes
        sizes = [path.stat().st_size for path in store.journal_dir.iterdir()]
        journal_bytes = max([journal_bytes, *sizes])

    usual = await text_of(engine, _LAST_MESSAGE_TOKENS, "And now:")
    sampling = replace(GREEDY, max_tokens=_LAST_ANSWER_TOKENS)
    written = await _collect(manager, session.id, usual, sampling, watch)
    history = _history(manager, session.id)
    added = history[len(before) :]
    new_tokens = sum(len(entry.run.ids) for entry in added if entry.run)
    text_bytes = sum(len(entry.text.encode()) for entry in added)
    last = LastTurn(new_tokens, written, log.stat().st_size - log_bytes + journal_bytes, text_bytes + 4 * new_tokens)
    return history, last


def _history(manager: SessionManager, session_id: str) -> tuple[Entry, ...]:
    return prompt_of(prompt_messages(manager.messages(session_id)), "keep").entries


async def _collect(
    manager: SessionManager, session_id: str, text: str, sampling: Sampling, watch: Callable[[], None]
) -> int:
    """Have one turn; returns the KV bytes it wrote."""
    written = 0
    async for event in manager.send(session_id, text, sampling):
        raise_failure(event)
        watch()
        if isinstance(event, Stored):
            written = event.kv_bytes_written
    return written


async def _cold(settings: Settings, prompt: Prompt, flash: FlashAttention) -> float:
    """Seconds to the first piece with nothing stored."""
    folder = settings.cache_dir.parent / f"cold-{flash}"
    async with running(replace(settings, cache_dir=folder, data_dir=folder, flash_attention=flash)) as (engine, _):
        return (await answer(engine, prompt)).ttft_s
