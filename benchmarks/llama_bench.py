"""Running llama-bench and reading what it says."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.errors import EngineError

_MODES = {-1: "auto", 0: "off", 1: "on"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One test of it: prompt tokens or generated ones, at a depth; tokens a second, one for each repetition."""

    n_prompt: int
    n_gen: int
    n_depth: int
    tokens_per_s: tuple[float, ...]
    flash_attention: str
    threads: int


def run(program: Path, model: Path, flags: Sequence[str]) -> list[Cell]:
    """Return the tests that the flags ask for. Raises `EngineError`."""
    done = subprocess.run(
        [str(program), "-m", str(model), "-o", "json", *flags], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise EngineError(f"llama-bench failed: {done.stderr[-2000:]}")
    return [
        Cell(
            test["n_prompt"],
            test["n_gen"],
            test["n_depth"],
            tuple(test["samples_ts"]),
            _MODES[int(test["flash_attn"])],
            test["n_threads"],
        )
        for test in json.loads(done.stdout)
    ]
