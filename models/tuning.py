"""What was measured and chosen for a model on this machine, and the note it is kept in; without native code."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from models.cachefile import write_atomically
from models.fingerprint import LLAMA_BUILD

KvType = Literal["f16", "q8_0"]

FULL_UBATCH = 512
"""Tokens evaluated together where nothing else was measured to be faster."""
FOREIGN_LIMIT = 0.5
"""Processors that others may use beside a measurement: a window that opens takes up to that, one busy thread takes 1
and slows two decoding threads down four times."""
ANSWER_TOKENS, MESSAGE_TOKENS, PROMPT_TOKENS = 128, 32, 64
"""The work of one turn: an answer, a message, and a conversation's first prompt divided among its turns."""
DOUBTFUL_S = 6 * 3_600
"""So long a doubtful measurement is used: on a machine that is always busy each start would measure again, and change
what stored KV depends on by chance."""
_VERSION = 3


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings of a context. `threads` decode, `threads_batch` prefill, `n_ubatch` tokens are evaluated together."""

    flash_attention: bool
    threads: int
    threads_batch: int
    n_ubatch: int = FULL_UBATCH
    kv_type: KvType = "f16"


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second: of an answer and of a message behind the depth, and of a first prompt."""

    decode: float
    message: float
    prompt: float

    @property
    def turn_s(self) -> float:
        """Seconds that the work of one turn takes; less is better."""
        return ANSWER_TOKENS / self.decode + MESSAGE_TOKENS / self.message + PROMPT_TOKENS / self.prompt


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings and what they gave."""

    tuning: Tuning
    rates: Rates


@dataclass(frozen=True, slots=True)
class Tuned:
    """A measurement. `rates` are those expected of `choice`, behind `depth` tokens.

    `foreign` is how many processors others used meanwhile, None where that cannot be seen. `measured_at` in epoch
    seconds. `reason` says in a word why flash attention is as it is: `measured`, `kv` (stored KV would be lost for less
    than the margin), `needed` (by quantized KV).
    """

    choice: Tuning
    rates: Rates
    trials: tuple[Trial, ...]
    depth: int
    measured_at: float
    foreign: float | None = None
    reason: str = "measured"

    @property
    def is_doubtful(self) -> bool:
        """True if others took so much processor time that it has to be measured again."""
        return self.foreign is not None and self.foreign > FOREIGN_LIMIT

    def holds_at(self, now: float) -> bool:
        """True if it need not be measured again yet; `now` in epoch seconds."""
        return not self.is_doubtful or 0 <= now - self.measured_at < DOUBTFUL_S

    def replaces(self, before: Tuned | None) -> bool:
        """True if it is to be kept in place of another: a doubtful one only if that is doubtful too."""
        return not self.is_doubtful or before is None or before.is_doubtful


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> list[str | int]:
    """What measurements of a machine are remembered under."""
    return [platform.processor(), platform.machine(), _cpu_name(), cores()]


def note_path(cache_dir: Path, weights: str, kv_type: str) -> Path:
    """Where the measurement of a model is kept: for its content, this machine, this build of llama.cpp, and type of KV.

    `weights` is the content hash of the model's files.
    """
    key = json.dumps([_VERSION, weights, kv_type, LLAMA_BUILD, *machine()])
    return cache_dir / "tuning" / (hashlib.sha256(key.encode()).hexdigest() + ".json")


def remembered(cache_dir: Path, weights: str, kv_type: str) -> Tuned | None:
    """What is kept for a model, None if nothing is, or nothing that can be used."""
    try:
        return tuned_from(json.loads(note_path(cache_dir, weights, kv_type).read_bytes()))
    except (OSError, ValueError, RecursionError):
        return None


def remember(cache_dir: Path, weights: str, tuned: Tuned) -> None:
    """Keep a measurement; failing to is not an error: it then holds for this run."""
    write_atomically(note_path(cache_dir, weights, tuned.choice.kv_type), json.dumps(asdict(tuned)).encode())


def forget(cache_dir: Path, weights: str) -> bool:
    """Delete what is kept for a model, of all types of KV; False if there was nothing."""
    was_there = False
    for kv_type in ("f16", "q8_0"):
        with contextlib.suppress(OSError):
            note_path(cache_dir, weights, kv_type).unlink()
            was_there = True
    return was_there


def tuned_from(kept: object) -> Tuned | None:
    """A measurement from its JSON, None if it is none of this machine."""
    try:
        table = _table(kept)
        trials = tuple(
            Trial(_tuning(_table(row["tuning"])), _rates(_table(row["rates"])))
            for row in map(_table, list(table["trials"]))
        )
        foreign = table["foreign"]
        return Tuned(
            choice=_tuning(_table(table["choice"])),
            rates=_rates(_table(table["rates"])),
            trials=trials,
            depth=int(table["depth"]),
            measured_at=_number(table["measured_at"]),
            foreign=None if foreign is None else float(foreign),
            reason=str(table["reason"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _tuning(table: Mapping[str, Any]) -> Tuning:
    threads, threads_batch, n_ubatch = (int(table[name]) for name in ("threads", "threads_batch", "n_ubatch"))
    if not (1 <= threads <= cores() and 1 <= threads_batch <= cores() and 1 <= n_ubatch <= FULL_UBATCH):
        raise ValueError("another machine's")
    kv_type: KvType = "q8_0" if table["kv_type"] == "q8_0" else "f16"
    return Tuning(bool(table["flash_attention"]), threads, threads_batch, n_ubatch, kv_type)


def _rates(table: Mapping[str, Any]) -> Rates:
    return Rates(*(_number(table[name]) for name in ("decode", "message", "prompt")))


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or number <= 0:
        raise ValueError("no measurement")
    return number


def _table(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("not a table")
    return value


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
