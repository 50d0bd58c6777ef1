"""Coming back to a conversation: chatapp against llama-server's saved slot, alternating in one run.

`python -m benchmarks.peer --server PATH [--tokens 4000] [--repeats 7]` prints one JSON object; see
docs/performance.md. Each repetition starts both sides afresh and gives both the same token ids: a stored history is
restored, then the next message is answered, greedily. Times are medians in seconds, `*_total_s` restore and first
text together. Ratios are medians over the repetitions, because the speed of a shared machine drifts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.foreign import foreign_load
from chatapp.bench import _GREEDY, _MESSAGE_TOKENS, _answer, _converse, _load, _prepared, _text_of
from chatapp.config import Settings
from chatapp.engines import make_engine
from models.catalog import starter_model
from models.engine import Engine, Entry, Prepared, Prompt
from models.errors import EngineError
from models.stats import common_prefix
from sessions.store import Store

_START_S = 60.0
_ANSWER_S = 600.0
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

    settings: Settings
    server: list[str]
    slots: Path
    history: tuple[Entry, ...]
    prompt: Prompt
    history_ids: list[int]
    prompt_ids: list[int]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="llama-server of the same build, see tools/llama_server.py")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ctx", type=int, default=8192)
    parser.add_argument("--flash-attention", choices=("on", "off"), default="off")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chatapp-peer-") as folder:
        try:
            print(json.dumps(asyncio.run(_measure(options, Path(folder)))))
        except EngineError as exc:
            sys.exit(str(exc))


async def _measure(options: argparse.Namespace, root: Path) -> dict[str, Any]:
    scene = await _scene(options, root)
    _save_slot(scene)
    loads, lives, ours, peers = [], [], [], []
    for i in range(options.repeats):
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
        "ratio_total": statistics.median(own.total_s / peer.total_s for own, peer in zip(ours, peers, strict=True)),
        "live_ttft_s": statistics.median(lives),
        "ratio_live": statistics.median(own.ttft_s / live for own, live in zip(ours, lives, strict=True)),
        "ours_start_s": _median(ours, lambda it: it.start_s),
        "peer_start_s": _median(peers, lambda it: it.start_s),
        "history_tokens": len(scene.history_ids),
        "ours_evaluated_tokens": max(it.evaluated for it in ours),
        "peer_evaluated_tokens": max(it.evaluated for it in peers),
        "ours_equal_tokens": len({it.ids for it in ours}) == 1,
        "peer_equal_tokens": len({it.ids for it in peers}) == 1,
        "sides_equal_first_tokens": common_prefix(ours[0].ids, peers[0].ids),
        "compared_tokens": min(len(it.ids) for it in ours + peers),
        "repeats": options.repeats,
        "threads": options.threads,
        "n_ctx": options.ctx,
        "flash_attention": options.flash_attention == "on",
        "foreign_load": max(loads),
    }


async def _scene(options: argparse.Namespace, root: Path) -> _Scene:
    """Have the conversation, which leaves its KV in our store."""
    model = starter_model()
    assert model is not None, "the starter model is not installed"
    settings = Settings(
        data_dir=root / "data",
        cache_dir=root / "cache",
        model=model,
        n_ctx=options.ctx,
        threads=options.threads,
        flash_attention=options.flash_attention,
    )
    slots = root / "slots"
    slots.mkdir()
    server = [options.server, "--model", str(model), "--host", "127.0.0.1", "--offline", "--parallel", "1"]
    server += ["--ctx-size", str(options.ctx), "--threads", str(options.threads)]
    # The folder is put before file names as it is, so it has to end with a slash.
    server += ["--flash-attn", options.flash_attention, "--slot-save-path", f"{slots}/"]
    engine = make_engine(settings)
    try:
        await _load(engine)
        with closing(Store(settings.data_dir)) as store:
            history, _ = await _converse(store, engine, options.tokens)
        message = await _text_of(engine, _MESSAGE_TOKENS, "Write a long story about the sea.")
        prompt = Prompt((*history, Entry("user", message)), store_kv=False)
        ids = await _prompt_ids(engine, prompt)
    finally:
        await engine.close()
    history_ids = [token for entry in history if entry.run for token in entry.run.ids]
    assert ids[: len(history_ids)] == history_ids, "a prompt only ever grows"
    return _Scene(settings, server, slots, history, prompt, history_ids, ids)


async def _prompt_ids(engine: Engine, prompt: Prompt) -> list[int]:
    """All tokens an answer to `prompt` is sampled behind, the opening glue of the answer included."""
    ids: list[int] = []
    async for event in engine.generate(prompt, replace(_GREEDY, max_tokens=1)):
        if isinstance(event, Prepared):
            ids = [token for run in event.runs for token in run.ids] + list(event.opening)
    return ids


# --- our side ---


async def _own_return(scene: _Scene) -> tuple[float, _Return]:
    """Return the TTFT of the same turn without leaving, and the return to it in a new process."""
    engine = make_engine(scene.settings)
    try:
        begun = time.monotonic()
        await _load(engine)
        await engine.count("")  # the engine counts as loaded a moment before it has warmed up
        start_s = time.monotonic() - begun
        begun = time.monotonic()
        opened = await _prepared(engine, Prompt(scene.history))
        restore_s = time.monotonic() - begun
        turn = await _answer(engine, scene.prompt)
        await _prepared(engine, Prompt(scene.history))
        live = await _answer(engine, scene.prompt)
    finally:
        await engine.close()
    return live.ttft_s, _Return(start_s, restore_s, turn.ttft_s, opened.prefilled + turn.evaluated, turn.ids)


# --- the peer's side ---


def _peer_return(scene: _Scene) -> _Return:
    with _serving(scene) as (start_s, connection):
        begun = time.monotonic()
        restored = _post(connection, "/slots/0?action=restore", {"filename": _SLOT_FILE})
        restore_s = time.monotonic() - begun
        if restored.get("n_restored") != len(scene.history_ids):
            raise EngineError(f"llama-server did not restore the history: {restored}")
        ttft_s, chunks = _stream(connection, scene.prompt_ids)
    timings = chunks[-1]["timings"]
    # Restored tokens prove nothing, reused ones do.
    if timings["cache_n"] != len(scene.history_ids):
        raise EngineError(f"llama-server did not use what it restored: {timings}")
    ids = tuple(token for chunk in chunks for token in chunk.get("tokens", ()))
    return _Return(start_s, restore_s, ttft_s, timings["prompt_n"], ids)


def _save_slot(scene: _Scene) -> None:
    """Let llama-server evaluate the history and write it to its own file."""
    with _serving(scene) as (_, connection):
        request = {"prompt": scene.history_ids, "n_predict": 0, "id_slot": 0, "cache_prompt": True}
        _post(connection, "/completion", request)
        saved = _post(connection, "/slots/0?action=save", {"filename": _SLOT_FILE})
        if saved.get("n_saved") != len(scene.history_ids):
            raise EngineError(f"llama-server saved another prefix: {saved}")


@contextmanager
def _serving(scene: _Scene) -> Iterator[tuple[float, HTTPConnection]]:
    """Run a server of its own; yields the seconds it took to be ready and a connection to it."""
    port = _free_port()
    log_path = scene.slots / "server.log"
    begun = time.monotonic()
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*scene.server, "--port", str(port)], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        with closing(HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)) as connection:
            while not _is_ready(connection):
                if process.poll() is not None or time.monotonic() - begun > _START_S:
                    raise EngineError(f"llama-server does not run: {log_path.read_text(errors='replace')[-2000:]}")
                time.sleep(0.01)
            yield time.monotonic() - begun, connection
    finally:
        process.kill()  # asked nicely, it would wait for its open streams
        process.wait()


def _is_ready(connection: HTTPConnection) -> bool:
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
    except OSError:
        connection.close()
        return False
    return answer.status == 200


def _post(connection: HTTPConnection, path: str, request: dict[str, Any]) -> dict[str, Any]:
    connection.request("POST", path, json.dumps(request).encode(), {"Content-Type": "application/json"})
    answer: dict[str, Any] = json.loads(connection.getresponse().read())
    return answer


def _stream(connection: HTTPConnection, ids: Sequence[int]) -> tuple[float, list[dict[str, Any]]]:
    """Return the seconds from sending to the first text, and all chunks of the answer; the last has `timings`."""
    begun = time.monotonic()
    request = {"prompt": ids, "n_predict": _GREEDY.max_tokens, "temperature": 0, "stream": True, "id_slot": 0}
    body = json.dumps({**request, "cache_prompt": True, "return_tokens": True}).encode()
    connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    ttft_s = 0.0
    chunks = []
    while line := answer.readline():
        if line.startswith(b"data: {"):
            chunk = json.loads(line.removeprefix(b"data: "))
            if chunk.get("content") and not ttft_s:
                ttft_s = time.monotonic() - begun
            chunks.append(chunk)
    if not chunks or "timings" not in chunks[-1]:
        raise EngineError(f"llama-server did not answer (status {answer.status}): {chunks}")
    return ttft_s, chunks


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _median(returns: Sequence[_Return], key: Callable[[_Return], float]) -> float:
    return statistics.median(map(key, returns))


if __name__ == "__main__":
    main()
