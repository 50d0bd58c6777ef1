"""`chatapp bench resume`: how a conversation comes back, cold, live and restored, measured in one run.

Everything runs in a temporary folder, through the same engine process, manager and store as a chat. Times are
medians; compare the ratios, not the seconds, with other machines.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from chatapp.config import FlashAttention, Settings
from chatapp.engines import make_engine, with_model_path
from models.engine import (
    Engine,
    Entry,
    Event,
    Failed,
    Finished,
    Loaded,
    ModelInfo,
    Piece,
    Prepared,
    Prompt,
    Sampling,
    Stored,
)
from models.errors import EngineError
from models.kvsettings import DEFAULT_KV
from sessions.history import prompt_messages, prompt_of
from sessions.manager import SessionManager
from sessions.store import Store

_REPEATS = 5
_MESSAGE_TOKENS = 16
_LAST_MESSAGE_TOKENS = 40
_LAST_ANSWER_TOKENS = 128
_GLUE_ROOM = 64
_GREEDY = Sampling(temperature=0, max_tokens=32)
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
    restored_to_live_ratio: float
    cold_to_restore_ratio: float


@dataclass(frozen=True, slots=True)
class _Turn:
    """One measured answer."""

    ttft_s: float
    evaluated: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _LastTurn:
    """What the last turn of the history added and wrote."""

    new_tokens: int
    kv_bytes: int
    db_bytes: int
    text_and_id_bytes: int


def resume(settings: Settings, *, n_tokens: int) -> dict[str, object]:
    """Run the benchmark with about `n_tokens` of history. Raises `EngineError` in one sentence."""
    import asyncio

    with tempfile.TemporaryDirectory(prefix="chatapp-bench-") as folder:
        root = Path(folder)
        # The user's limits on stored KV would be measured instead of the program.
        own = replace(with_model_path(settings), data_dir=root / "data", cache_dir=root / "cache", kv=DEFAULT_KV)
        return asdict(asyncio.run(_resume(own, n_tokens)))


async def _resume(settings: Settings, n_tokens: int) -> ResumeFigures:
    engine = make_engine(settings)
    try:
        info = await _load(engine)
        # The choice made for this run holds for every engine in it.
        flash: FlashAttention = "on" if info.flash_attention else "off"
        settings = replace(settings, flash_attention=flash, threads=info.threads)
        with closing(Store(settings.data_dir)) as store:
            history, last = await _converse(store, engine, n_tokens)
        message = await _text_of(engine, _MESSAGE_TOKENS, "Write a long story about the sea.")
        prompt = Prompt((*history, Entry("user", message)), store_kv=False)
        n_history = sum(len(entry.run.ids) for entry in history if entry.run)
        live = []
        for _ in range(_REPEATS):
            await _prepared(engine, Prompt(history))
            live.append(await _answer(engine, prompt))
    finally:
        await engine.close()
    starts, loads, restores, restored = [], [], [], []
    for _ in range(_REPEATS):
        engine = make_engine(settings)
        try:
            begun = time.monotonic()
            loaded = await _load(engine)
            starts.append(time.monotonic() - begun - loaded.load_s)
            loads.append(loaded.load_s)
            opened = await _prepared(engine, Prompt(history))
            restores.append(opened.restore_s)
            turn = await _answer(engine, prompt)
            restored.append(replace(turn, evaluated=turn.evaluated + opened.prefilled))
        finally:
            await engine.close()
    cold_on = await _cold(settings, prompt, "on")
    # Quantized KV needs flash attention.
    cold_off = await _cold(settings, prompt, "off") if settings.kv_type == "f16" else float("inf")
    cold_ttft_s = min(cold_on, cold_off)
    restored_ttft_s, restore_s = _median([turn.ttft_s for turn in restored]), _median(restores)
    live_ttft_s = _median([turn.ttft_s for turn in live])
    return ResumeFigures(
        history_tokens=n_history,
        message_tokens=_MESSAGE_TOKENS,
        message_and_glue_tokens=live[0].evaluated,
        cold_ttft_s=cold_ttft_s,
        cold_flash_attention=cold_on < cold_off,
        live_ttft_s=live_ttft_s,
        restored_ttft_s=restored_ttft_s,
        restore_s=restore_s,
        engine_start_s=_median(starts),
        model_load_s=_median(loads),
        restored_evaluated_tokens=max(turn.evaluated for turn in restored),
        equal_tokens=len({turn.ids for turn in live + restored}) == 1,
        compared_tokens=min(len(turn.ids) for turn in live + restored),
        turn_new_tokens=last.new_tokens,
        turn_bytes_written=last.kv_bytes,
        turn_db_bytes_written=last.db_bytes,
        turn_text_and_id_bytes=last.text_and_id_bytes,
        kv_bytes_per_token=info.kv_bytes_per_token,
        flash_attention=info.flash_attention,
        threads=info.threads,
        restored_to_live_ratio=restored_ttft_s / live_ttft_s,
        cold_to_restore_ratio=cold_ttft_s / (restored_ttft_s + restore_s),
    )


async def _converse(store: Store, engine: Engine, n_tokens: int) -> tuple[tuple[Entry, ...], _LastTurn]:
    """Have a conversation of two turns, the second a usual one, and measure what that one wrote."""
    manager = SessionManager(store, engine)
    session = manager.new(system="You are a helpful assistant.")
    n_first = max(8, n_tokens - _LAST_MESSAGE_TOKENS - _LAST_ANSWER_TOKENS - _GLUE_ROOM)
    first = await _text_of(engine, n_first, "Read this list.")
    await _collect(manager, session.id, first, replace(_GREEDY, max_tokens=8), lambda: None)
    before = _history(manager, session.id)
    # Everything written to the database goes through its write-ahead log, which is far from full here.
    log = store.path.with_name(store.path.name + "-wal")
    log_bytes = log.stat().st_size
    journal_bytes = 0

    def watch() -> None:
        nonlocal journal_bytes
        sizes = [path.stat().st_size for path in store.journal_dir.iterdir()]
        journal_bytes = max([journal_bytes, *sizes])

    usual = await _text_of(engine, _LAST_MESSAGE_TOKENS, "And now:")
    sampling = replace(_GREEDY, max_tokens=_LAST_ANSWER_TOKENS)
    written = await _collect(manager, session.id, usual, sampling, watch)
    history = _history(manager, session.id)
    added = history[len(before) :]
    new_tokens = sum(len(entry.run.ids) for entry in added if entry.run)
    text_bytes = sum(len(entry.text.encode()) for entry in added)
    last = _LastTurn(new_tokens, written, log.stat().st_size - log_bytes + journal_bytes, text_bytes + 4 * new_tokens)
    return history, last


def _history(manager: SessionManager, session_id: str) -> tuple[Entry, ...]:
    return prompt_of(prompt_messages(manager.messages(session_id)), "keep").entries


async def _collect(
    manager: SessionManager, session_id: str, text: str, sampling: Sampling, watch: Callable[[], None]
) -> int:
    """Have one turn; returns the KV bytes it wrote."""
    written = 0
    async for event in manager.send(session_id, text, sampling):
        _raise_failure(event)
        watch()
        if isinstance(event, Stored):
            written = event.kv_bytes_written
    return written


async def _text_of(engine: Engine, n_tokens: int, start: str) -> str:
    """A text of exactly `n_tokens` tokens that begins with `start` and goes on in prose."""
    text, i = start, 0
    while (missing := n_tokens - await engine.count(text)) > 0:
        # A sentence is about a dozen tokens: one for every forty missing cannot overshoot.
        for _ in range(missing // 40 or missing > 20):
            text += " " + _SENTENCES[(i * 5 + i // 7) % len(_SENTENCES)]
            i += 1
        if missing <= 20:
            text += " so" * missing
    return text


async def _cold(settings: Settings, prompt: Prompt, flash: FlashAttention) -> float:
    """Seconds to the first piece with nothing stored."""
    folder = settings.cache_dir.parent / f"cold-{flash}"
    engine = make_engine(replace(settings, cache_dir=folder, data_dir=folder, flash_attention=flash))
    try:
        await _load(engine)
        return (await _answer(engine, prompt)).ttft_s
    finally:
        await engine.close()


async def _load(engine: Engine) -> ModelInfo:
    async for event in engine.load():
        _raise_failure(event)
        if isinstance(event, Loaded):
            return event.info
    raise EngineError("The engine ended while it loaded the model.")


async def _prepared(engine: Engine, prompt: Prompt) -> Prepared:
    prepared: Prepared | None = None
    async for event in engine.prepare(prompt):
        _raise_failure(event)
        if isinstance(event, Prepared):
            prepared = event
    if prepared is None:
        raise EngineError("The engine ended while it prepared the history.")
    return prepared


async def _answer(engine: Engine, prompt: Prompt) -> _Turn:
    begun = time.monotonic()
    ttft_s, evaluated = 0.0, 0
    ids: tuple[int, ...] = ()
    async for event in engine.generate(prompt, _GREEDY):
        _raise_failure(event)
        if isinstance(event, Piece) and event.text and not ttft_s:
            ttft_s = time.monotonic() - begun
        elif isinstance(event, Prepared):
            evaluated = event.prefilled
        elif isinstance(event, Finished):
            ids = event.run.body
            ttft_s = ttft_s or time.monotonic() - begun
    return _Turn(ttft_s, evaluated, ids)


def _raise_failure(event: Event) -> None:
    if isinstance(event, Failed):
        raise EngineError(event.message)


def _median(values: list[float]) -> float:
    return statistics.median(values)
