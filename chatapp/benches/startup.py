"""`chatapp bench startup`: the first key, the import, the engine's readiness and memory beside the bare library."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path

from chatapp.benches import bare
from chatapp.benches.firstkey import first_key_s
from chatapp.benches.foreign import foreign_load
from chatapp.benches.scene import STORY, answer, load, own_settings, running, settled, text_of
from chatapp.config import Settings
from chatapp.engines import make_engine
from models.client import EngineProcess
from models.engine import Entry, ModelInfo, Prompt
from models.errors import EngineError

MIB = 1 << 20
ALLOWED_MORE_BYTES = (40 + 32) * MIB
"""What the engine may hold more than the bare library: 40 MB of its own, and one buffer of a KV segment."""


def startup(settings: Settings, *, n_tokens: int, repeats: int) -> dict[str, object]:
    """Start everything `repeats` times; `n_tokens` are evaluated before memory is compared. Raises `EngineError`."""
    with own_settings(settings) as own:
        if not (own.engine == "llama" and own.model):
            raise EngineError("This starts the engine of this machine: name --engine llama.")
        loads = [foreign_load()]
        _run("pass"), _run("import chatapp.cli")  # the first of each fills the page cache
        pairs = [(_run("pass"), _run("import chatapp.cli")) for _ in range(repeats)]
        keys = [first_key_s(own) for _ in range(repeats + 1)][1:] if sys.platform != "win32" else []
        loads.append(foreign_load())
        figures = asyncio.run(_engine(own, n_tokens, repeats))
        loads.append(foreign_load())
    return {
        "first_key_s": statistics.median(keys) if keys else None,
        "bare_python_s": statistics.median(python for python, _ in pairs),
        "import_cli_s": statistics.median(whole - python for python, whole in pairs),
        **figures,
        "repeats": repeats,
        "foreign_load": max(loads),
    }


def _run(program: str) -> float:
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    return time.monotonic() - begun


async def _engine(settings: Settings, n_tokens: int, repeats: int) -> dict[str, object]:
    """Both sides from the start of their process, in turns, and then what they hold."""
    # What is measured and remembered on the first use of a model is done here; the choices hold for all engines.
    settings = await settled(settings)
    async with running(settings) as (one, info):
        text = await text_of(one, n_tokens, "Read this first.", f"\n\n{STORY}")
    prompt = Prompt((Entry("user", text),))
    own, bares = [], []
    for i in range(repeats):
        if i % 2:
            bares.append(_bare_start(info, 0))
        own.append(await _own_start(settings, None))
        if not i % 2:
            bares.append(_bare_start(info, 0))
    held, bare_held = (await _own_start(settings, prompt))[2], _bare_start(info, n_tokens)[2]
    return {
        "engine_ready_s": statistics.median(ready for ready, _, _ in own),
        "bare_ready_s": statistics.median(ready for ready, _, _ in bares),
        "engine_ready_ratio": statistics.median(a[0] / b[0] for a, b in zip(own, bares, strict=True)),
        "engine_warm_s": statistics.median(warm for _, warm, _ in own),
        "bare_warm_s": statistics.median(warm for _, warm, _ in bares),
        "engine_warm_ratio": statistics.median(a[1] / b[1] for a, b in zip(own, bares, strict=True)),
        "engine_rss_bytes": held,
        "bare_rss_bytes": bare_held,
        "engine_rss_ratio": held / (bare_held + ALLOWED_MORE_BYTES) if held and bare_held else None,
        "memory_tokens": n_tokens,
    }


async def _own_start(settings: Settings, prompt: Prompt | None) -> tuple[float, float, int | None]:
    """Seconds until the model is ready, and until the first step has run; bytes held at the end."""
    begun = time.monotonic()
    engine = make_engine(settings)
    assert isinstance(engine, EngineProcess), "the settings are those of the engine process"
    try:
        await load(engine)
        ready_s = time.monotonic() - begun
        await engine.count("")  # the engine counts as loaded a moment before it has warmed up
        warm_s = time.monotonic() - begun
        if prompt:
            await answer(engine, prompt)
        return ready_s, warm_s, rss_bytes(engine.pid)
    finally:
        await engine.close()


def _bare_start(info: ModelInfo, n_tokens: int) -> tuple[float, float, int | None]:
    """The same of the library as it comes, behind `n_tokens` and an answer, if any."""
    begun = time.monotonic()
    with bare.bare_loop(info, has_huge_pages=False) as loop:
        ready_s = time.monotonic() - begun
        loop.prefill([0] * 24)
        loop.step(repeats=1)
        warm_s = time.monotonic() - begun
        if n_tokens:
            loop.prefill([1] * n_tokens)
            loop.decode(32)
        return ready_s, warm_s, rss_bytes(loop.pid)


def rss_bytes(pid: int | None) -> int | None:
    """Memory that a process holds, None where the system does not tell."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return None
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024
