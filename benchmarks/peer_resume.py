"""Coming back to a conversation: chatapp against llama-server's saved slot, alternating in one run.

Each repetition starts both sides afresh and gives both the same token ids: a stored history is restored, then the next
message is answered, greedily. Times are medians in seconds, `*_total_s` restore and first text together. See
`benchmarks/report.py`, which runs it, and docs/performance.md.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.beside import Beside
from benchmarks.llama_server import Server, serving
from chatapp.benches.decode import ratio
from chatapp.benches.foreign import foreign_load
from chatapp.benches.resume import MESSAGE, MESSAGE_TOKENS, converse
from chatapp.benches.scene import GREEDY, answer, load, prepared, text_of
from chatapp.config import Settings
from chatapp.engines import make_engine
from models.engine import Entry, Prompt
from models.errors import EngineError
from models.stats import common_prefix
from sessions.store import Store

_SLOT_FILE = "history.bin"


@dataclass(frozen=True, slots=True)
class _Return:
    """One return to the conversation; `start_s` is process start until the model is ready."""

    start_s: float
    restore_s: float
    ttft_s: float
    evaluated: int
    ids: tuple[int, ...]

    @property
    def total_s(self) -> float:
        return self.restore_s + self.ttft_s


@dataclass(frozen=True, slots=True)
class _Scene:
    """What both sides work on: the conversation as entries and as the token ids of exactly these entries."""

    beside: Beside
    settings: Settings
    flags: tuple[str, ...]
    slots: Path
    history: tuple[Entry, ...]
    prompt: Prompt
    history_ids: list[int]
    prompt_ids: list[int]


async def measure(beside: Beside, *, n_tokens: int, repeats: int) -> dict[str, Any]:
    """Return the figures of a conversation of `n_tokens`. Raises `EngineError`."""
    scene = await _scene(beside, n_tokens)
    _save_slot(scene)
    loads, lives, ours, peers = [], [], [], []
    for i in range(repeats):
        loads.append(foreign_load())
        if i % 2:
            peers.append(_peer_return(scene))
        live_s, own = await _own_return(scene)
        lives.append(live_s)
        ours.append(own)
        if not i % 2:
            peers.append(_peer_return(scene))
    return {
        "ours_restore_s": _median(ours, lambda it: it.restore_s),
        "ours_ttft_s": _median(ours, lambda it: it.ttft_s),
        "ours_total_s": _median(ours, lambda it: it.total_s),
        "peer_restore_s": _median(peers, lambda it: it.restore_s),
        "peer_ttft_s": _median(peers, lambda it: it.ttft_s),
        "peer_total_s": _median(peers, lambda it: it.total_s),
        "total_ratio": ratio([own.total_s for own in ours], [peer.total_s for peer in peers]),
        "live_ttft_s": statistics.median(lives),
        "live_ratio": ratio([own.ttft_s for own in ours], lives),
        "ours_start_s": _median(ours, lambda it: it.start_s),
        "peer_start_s": _median(peers, lambda it: it.start_s),
        "history_tokens": len(scene.history_ids),
        "ours_evaluated_tokens": max(it.evaluated for it in ours),
        "peer_evaluated_tokens": max(it.evaluated for it in peers),
        "ours_equal_tokens": len({it.ids for it in ours}) == 1,
        "peer_equal_tokens": len({it.ids for it in peers}) == 1,
        "sides_equal_first_tokens": common_prefix(ours[0].ids, peers[0].ids),
        "compared_tokens": min(len(it.ids) for it in ours + peers),
        "repeats": repeats,
        "foreign_load": max(loads),
    }


async def _scene(beside: Beside, n_tokens: int) -> _Scene:
    """Have the conversation, which leaves its KV in our store."""
    settings = replace(beside.settings, data_dir=beside.folder / "resume", cache_dir=beside.folder / "resume-cache")
    slots = beside.folder / "slots"
    slots.mkdir()
    # The folder is put before file names as it is, so it has to end with a slash.
    flags = (*beside.server_flags, "--parallel", "1", "--slot-save-path", f"{slots}/")
    engine = make_engine(settings)
    try:
        await load(engine)
        with closing(Store(settings.data_dir)) as store:
            history, _ = await converse(store, engine, n_tokens)
        message = await text_of(engine, MESSAGE_TOKENS, MESSAGE)
        prompt = Prompt((*history, Entry("user", message)), store_kv=False)
        ids = list((await answer(engine, prompt, replace(GREEDY, max_tokens=1))).prompt_ids)
    finally:
        await engine.close()
    history_ids = [token for entry in history if entry.run for token in entry.run.ids]
    assert ids[: len(history_ids)] == history_ids, "a prompt only ever grows"
    return _Scene(beside, settings, flags, slots, history, prompt, history_ids, ids)


# --- our side ---


async def _own_return(scene: _Scene) -> tuple[float, _Return]:
    """Return the TTFT of the same turn without leaving, and the return to it in a new process."""
    engine = make_engine(scene.settings)
    try:
        begun = time.monotonic()
        await load(engine)
        await engine.count("")  # the engine counts as loaded a moment before it has warmed up
        start_s = time.monotonic() - begun
        begun = time.monotonic()
        opened = await prepared(engine, Prompt(scene.history))
        restore_s = time.monotonic() - begun
        turn = await answer(engine, scene.prompt)
        await prepared(engine, Prompt(scene.history))
        live = await answer(engine, scene.prompt)
    finally:
        await engine.close()
    return live.ttft_s, _Return(start_s, restore_s, turn.ttft_s, opened.prefilled + turn.evaluated, turn.ids)


# --- the peer's side ---


def _peer_return(scene: _Scene) -> _Return:
    with serving(scene.beside.server, scene.beside.model, scene.flags, scene.slots / "server.log") as server:
        begun = time.monotonic()
        restored = server.post("/slots/0?action=restore", {"filename": _SLOT_FILE})
        restore_s = time.monotonic() - begun
        if restored.get("n_restored") != len(scene.history_ids):
            raise EngineError(f"llama-server did not restore the history: {restored}")
        done = server.complete(scene.prompt_ids, GREEDY.max_tokens or 0, id_slot=0)
    # Restored tokens prove nothing, reused ones do.
    if done.timings["cache_n"] != len(scene.history_ids):
        raise EngineError(f"llama-server did not use what it restored: {done.timings}")
    return _Return(server.start_s, restore_s, done.ttft_s, done.timings["prompt_n"], done.ids)


def _save_slot(scene: _Scene) -> None:
    """Let llama-server evaluate the history and write it to its own file."""
    with serving(scene.beside.server, scene.beside.model, scene.flags, scene.slots / "server.log") as server:
        evaluate(server, scene.history_ids)
        saved = server.post("/slots/0?action=save", {"filename": _SLOT_FILE})
        if saved.get("n_saved") != len(scene.history_ids):
            raise EngineError(f"llama-server saved another prefix: {saved}")


def evaluate(server: Server, ids: Sequence[int]) -> None:
    """Let its first slot hold these tokens and nothing else."""
    server.post("/completion", {"prompt": list(ids), "n_predict": 0, "id_slot": 0, "cache_prompt": True})


def _median(returns: Sequence[_Return], key: Callable[[_Return], float]) -> float:
    return statistics.median(map(key, returns))
