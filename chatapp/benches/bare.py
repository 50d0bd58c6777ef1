"""The other side of a measurement: the bare loop over the low-level API, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import models
from models import hugepages
from models.engine import ModelInfo
from models.errors import EngineError

PROGRAM = Path(models.__file__).with_name("llama") / "bare.py"


class Bare:
    """The running loop, with the settings that the product's engine uses."""

    def __init__(self, process: subprocess.Popen[str], load_s: float) -> None:
        self._process = process
        self.load_s = load_s
        """Weights and context, as the loop itself measures it."""

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def prefill(self, ids: Sequence[int], *, keep: int = 0) -> float:
        """Evaluate `ids[keep:]` behind the first `keep`, which must be resident; returns seconds."""
        return float(ask(self._process, {"op": "prefill", "ids": list(ids), "keep": keep})["s"])

    def decode(self, n_tokens: int) -> float:
        """Decode greedily; returns seconds per output token."""
        return float(ask(self._process, {"op": "decode", "n": n_tokens})["tpot_s"])

    def step(self, *, width: int = 1, repeats: int = 16) -> float:
        """Return the median seconds of evaluating `width` tokens at once, nothing sampled."""
        return float(ask(self._process, {"op": "steps", "n": repeats, "width": width})["step_s"])


@contextmanager
def bare_loop(info: ModelInfo, *, has_huge_pages: bool = True) -> Iterator[Bare]:
    """Run the loop with this model and these settings, and with memory pages as the engine has them or the usual ones.

    Raises `EngineError`, also for models it is not made for.
    """
    if info.server or not Path(info.path).is_file():
        raise EngineError("This is measured beside the bare library, with a model file: name --engine llama.")
    if info.memory_kind in ("hybrid", "recurrent"):
        raise EngineError("This model's memory cannot go back to where an answer began: choose another with --model.")
    process = start(hugepages.environment() if has_huge_pages else None)
    try:
        loaded = ask(
            process,
            {
                "op": "load",
                "model": info.path,
                "gpu_layers": info.gpu_layers,
                "n_ctx": info.n_ctx,
                "threads": info.threads,
                "flash_attention": info.flash_attention,
                "kv_type": info.kv_type,
            },
        )
        yield Bare(process, float(loaded["load_s"]))
    finally:
        process.kill()
        process.communicate()


def start(environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start the loop's process, in this environment or in ours; the first thing it is asked must be to load."""
    return subprocess.Popen(
        [sys.executable, "-P", str(PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def ask(process: subprocess.Popen[str], request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request. Raises `EngineError`."""
    assert process.stdin is not None, "stdin was asked for as a pipe"
    assert process.stdout is not None, "stdout was asked for as a pipe"
    try:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
    except OSError as exc:
        raise EngineError("The bare loop ended: its own words on stderr say why.") from exc
    line = process.stdout.readline()
    if not line:
        raise EngineError("The bare loop ended: its own words on stderr say why.")
    answer: dict[str, Any] = json.loads(line)
    return answer
