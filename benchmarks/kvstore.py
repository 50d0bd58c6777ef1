"""What the KV store costs and gives, measured through the engine as a chat uses it.

`python -m benchmarks.kvstore [--only restore writes capture shared]` prints one JSON object; see
docs/performance.md. Every part works in a temporary folder of its own; times are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chatapp.benches import scene
from chatapp.benches.foreign import foreign_load
from chatapp.config import Settings
from chatapp.engines import make_engine
from models.engine import Engine, Entry, Finished, ModelInfo, Piece, Prepared, Prompt, Sampling, Stored
from models.errors import EngineError

_PARTS = ("restore", "writes", "capture", "shared")
_SYSTEM = "You are a helpful assistant."
_SHORT = Sampling(temperature=0, max_tokens=16)


@dataclass(frozen=True, slots=True)
class _Turn:
    """One answer: the conversation after it, what it occupied and wrote (bytes), and seconds to its first text."""

    entries: tuple[Entry, ...]
    kv_bytes: int
    bytes_written: int
    ttft_s: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=_PARTS, help="the parts to measure")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--flash-attention", choices=("on", "off"), default="off")
    options = parser.parse_args()
    try:
        print(json.dumps(asyncio.run(_measure(options))))
    except EngineError as exc:
        sys.exit(str(exc))


async def _measure(options: argparse.Namespace) -> dict[str, Any]:
    parts: dict[str, Callable[[Settings], Awaitable[dict[str, Any]]]] = {
        "restore": lambda settings: _restore(settings, options.repeats),
        "writes": _writes,
        "capture": lambda settings: _capture(settings, options.repeats),
        "shared": _shared,
    }
    figures: dict[str, Any] = {}
    loads = []
    for name in options.only:
        loads.append(foreign_load())
        with tempfile.TemporaryDirectory(prefix="chatapp-kvstore-") as folder:
            settings = Settings(
                data_dir=Path(folder, "data"),
                cache_dir=Path(folder, "cache"),
                n_ctx=8192,
                threads=options.threads,
                flash_attention=options.flash_attention,
            )
            figures |= await parts[name](settings)
    return figures | {
        "repeats": options.repeats,
        "threads": options.threads,
        "flash_attention": options.flash_attention == "on",
        "foreign_load": max(loads),
    }


async def _restore(settings: Settings, repeats: int, n_tokens: int = 4000) -> dict[str, Any]:
    """How fast a new process has stored KV back, read from the page cache and verified."""
    async with _engine(settings) as (engine, _):
        text = await scene.text_of(engine, n_tokens, "Read this list.")
        history = (await _turn(engine, (Entry("system", _SYSTEM),), text)).entries
    seconds, walls, kv_bytes = [], [], 0
    for _ in range(repeats):
        async with _engine(settings) as (engine, _):
            await engine.count("")  # the engine counts as loaded a moment before it has warmed up
            begun = time.monotonic()
            prepared = await scene.prepared(engine, Prompt(history))
            walls.append(time.monotonic() - begun)
            if prepared.prefilled:
                raise EngineError(f"{prepared.prefilled} tokens were not restored ({prepared.miss_reason}).")
            seconds.append(prepared.restore_s)
            kv_bytes = prepared.kv_bytes
    restore_s = statistics.median(seconds)
    return {
        "restore_kv_bytes": kv_bytes,
        "restore_s": restore_s,
        "restore_wall_s": statistics.median(walls),
        "restore_gb_per_s": kv_bytes / restore_s / 1e9,
    }


async def _writes(settings: Settings, n_turns: int = 40) -> dict[str, Any]:
    """What a long chat writes, against writing its whole state after each turn."""
    async with _engine(settings) as (engine, _):
        entries: tuple[Entry, ...] = (Entry("system", _SYSTEM),)
        written = rewritten = 0
        for i in range(n_turns):
            turn = await _turn(engine, entries, f"Tell me one more thing about the number {i}.")
            entries = turn.entries
            written += turn.bytes_written
            rewritten += turn.kv_bytes
    return {
        "chat_turns": n_turns,
        "chat_bytes_written": written,
        "chat_rewriting_bytes": rewritten,
        "chat_written_share": written / rewritten,
    }


async def _capture(settings: Settings, repeats: int, n_tokens: int = 3000) -> dict[str, Any]:
    """How much later the next answer begins when it is asked for while a long turn is still being stored.

    It is compared with asking after `Stored`, and with asking at once after a turn that is not stored at all.
    """
    turns: dict[str, list[_Turn]] = {"at_once": [], "after": [], "unstored": []}
    async with _engine(settings) as (engine, _):
        for i in range(repeats):
            kinds = list(turns)
            for kind in kinds[i % 3 :] + kinds[: i % 3]:
                # The beginnings differ, so that nothing is resident or stored from before.
                text = await scene.text_of(engine, n_tokens, f"List {i}, {kind}: read it.")
                prompt = Prompt((Entry("user", text),), store_kv=kind != "unstored")
                turns[kind].append(await _next_turn(engine, prompt, is_at_once=kind != "after"))
    figures: dict[str, Any] = {}
    for kind, measured in turns.items():
        figures[f"next_ttft_{kind}_s"] = statistics.median(turn.ttft_s for turn in measured)
    for kind in ("at_once", "after"):
        # Storing that is put off costs no time, but it must not be lost.
        figures[f"written_{kind}_bytes"] = min(turn.bytes_written for turn in turns[kind])
    pairs = zip(turns["at_once"], turns["after"], strict=True)
    return figures | {"capture_delay_s": statistics.median(at_once.ttft_s - after.ttft_s for at_once, after in pairs)}


async def _next_turn(engine: Engine, prompt: Prompt, *, is_at_once: bool) -> _Turn:
    """Answer `prompt`, then ask something short, at once or after `Stored`; that turn, with the bytes of both.

    The first request's events are read to the end: left half way, it would be cancelled.
    """
    turn = _Turn((), 0, 0, 0.0)
    bytes_written = 0
    async for event in engine.generate(prompt, _SHORT):
        scene.raise_failure(event)
        if isinstance(event, Prepared):
            turn = replace(turn, entries=_known(prompt.entries, event))
        elif isinstance(event, Finished):
            turn = replace(turn, entries=(*turn.entries, Entry("assistant", event.text, event.run)))
        elif isinstance(event, Stored):
            bytes_written = event.kv_bytes_written
        if isinstance(event, Finished if is_at_once else Stored):
            turn = await _turn(engine, turn.entries, "Why?", store_kv=prompt.store_kv)
    return replace(turn, bytes_written=turn.bytes_written + bytes_written)


async def _shared(settings: Settings, n_conversations: int = 10, n_tokens: int = 2000) -> dict[str, Any]:
    """What conversations over one system prompt occupy on disk, against that prompt and their own tokens once."""
    async with _engine(settings) as (engine, info):
        system = Entry("system", await scene.text_of(engine, n_tokens, "You know this list."))
        n_own = n_system = 0
        for i in range(n_conversations):
            turn = await _turn(engine, (system,), f"Name thing number {i} of the list.")
            lengths = [len(entry.run.ids) for entry in turn.entries if entry.run]
            n_system, system = lengths[0], turn.entries[0]
            n_own += sum(lengths[1:])
    # The engine has ended, so everything is written.
    disk_bytes = sum(path.stat().st_size for path in (settings.cache_dir / "kv").rglob("*") if path.is_file())
    own_bytes = (n_system + n_own) * info.kv_bytes_per_token
    return {
        "shared_conversations": n_conversations,
        "shared_prompt_tokens": n_system,
        "shared_own_tokens": n_own,
        "shared_disk_bytes": disk_bytes,
        "shared_disk_to_rows_ratio": disk_bytes / own_bytes,
    }


@asynccontextmanager
async def _engine(settings: Settings) -> AsyncIterator[tuple[Engine, ModelInfo]]:
    """A loaded engine in a new process; everything it had to write is written at the end."""
    engine = make_engine(settings)
    try:
        yield engine, await scene.load(engine)
    finally:
        await engine.close()


async def _turn(engine: Engine, entries: tuple[Entry, ...], question: str, *, store_kv: bool = True) -> _Turn:
    """Ask `question` in the conversation `entries` and wait until the answer is stored."""
    turn = _Turn((*entries, Entry("user", question)), 0, 0, 0.0)
    begun = time.monotonic()
    async for event in engine.generate(Prompt(turn.entries, store_kv), _SHORT):
        scene.raise_failure(event)
        if isinstance(event, Prepared):
            turn = replace(turn, entries=_known(turn.entries, event))
        elif isinstance(event, Piece) and event.text and not turn.ttft_s:
            turn = replace(turn, ttft_s=time.monotonic() - begun)
        elif isinstance(event, Finished):
            entries = (*turn.entries, Entry("assistant", event.text, event.run))
            turn = replace(turn, entries=entries, kv_bytes=event.stats.kv_bytes or 0)
        elif isinstance(event, Stored):
            turn = replace(turn, bytes_written=event.kv_bytes_written)
    if not turn.ttft_s:
        raise EngineError("The engine did not answer.")
    return turn


def _known(entries: tuple[Entry, ...], prepared: Prepared) -> tuple[Entry, ...]:
    """Return `entries` with their tokens."""
    return tuple(replace(entry, run=run) for entry, run in zip(entries, prepared.runs, strict=True))


if __name__ == "__main__":
    main()
