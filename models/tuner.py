"""Which settings are fastest on this machine for this model; measured once, remembered.

Decode and prefill speed at depth differ by a factor of three between settings, and which wins depends on
processor, compiler and model. A chat's work is scored: an answer decoded and a message prefilled behind a few
thousand tokens, and a conversation's first prompt. The depth is made of copied KV rows, not of prefill, so it takes
seconds. All of it runs beside a process that works as much as the window does while it paints.
"""

from __future__ import annotations

import contextlib
import math
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from models.busy import ForeignLoad, Painter
from models.errors import EngineError, ModelError
from models.fingerprint import LLAMA_BUILD
from models.kvstatus import StoredKv, stored_by_flash_attention
from models.llama import Context, ContextSettings, Model
from models.measuring import MAX_STEPS, TimeUp, decoding, prefilling, timed_context
from models.tuning import (
    FOREIGN_LIMIT,
    FULL_UBATCH,
    MESSAGE_TOKENS,
    PROMPT_TOKENS,
    KvType,
    Rates,
    Trial,
    Tuned,
    Tuning,
    cores,
    remember,
    remembered,
)

KV_MARGIN = 1.1
"""So much faster the other flash attention mode has to be before stored KV is given up for it."""
LITTLE_KV = 1_000
"""So many tokens on disk are no reason to stay with the slower mode: they are computed anew in seconds."""
_NOISE = 1.03
"""A smaller gain is no reason to evaluate fewer tokens together."""
_BLOCK = 32
# io_magic, seq_id, n_stream, cell_count; then per cell: pos, n_seq_id, seq_id.
_CELLS_AT = 16
_CELL_BYTES = 12

Told = Callable[[int, int], None]
"""Receives trials done and planned."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is tried: seconds in all, depth and first prompt in tokens, windows of decoding that the best is of.

    `is_wide`: all reasonable thread counts and sizes of a batch, not only half of the processors.
    """

    budget_s: float
    depth: int = 2_048
    n_prompt: int = 256
    n_windows: int = 2
    is_wide: bool = False


AUTOMATIC = Effort(8.0)
ASKED = Effort(20.0, is_wide=True)
THOROUGH = Effort(60.0, depth=4_096, n_prompt=512, n_windows=5, is_wide=True)


def tune(
    model: Model, weights: str, cache_dir: Path, *, gpu_layers: int, kv_type: KvType = "f16", progress: Told
) -> Tuning:
    """The remembered choice, or a measured one (at most about 8 s). With layers on a GPU: flash attention, all cores.

    `weights` is the content hash of the model's files. What was measured beside busy programs holds for `DOUBTFUL_S`.
    """
    usual = Tuning(bool(gpu_layers) or kv_type != "f16", threads=cores(), threads_batch=cores(), kv_type=kv_type)
    if gpu_layers:
        return usual
    kept = remembered(cache_dir, weights, kv_type)
    if kept and kept.holds_at(time.time()):
        return kept.choice
    stored = stored_by_flash_attention(cache_dir / "kv", weights, kv_type, LLAMA_BUILD)
    tuned = measure(model, AUTOMATIC, kv_type, stored=stored, progress=progress)
    if tuned is None:
        return kept.choice if kept else usual
    remember(cache_dir, weights, tuned)
    return tuned.choice


def measure(
    model: Model, effort: Effort, kv_type: KvType, *, stored: Mapping[bool, StoredKv], progress: Told
) -> Tuned | None:
    """Try settings one after another and choose; None if no context could be made with any.

    `stored` is KV on disk under each flash attention mode.
    """
    load = ForeignLoad()
    with Painter():
        trials = _Trials(model, effort, progress)
        usual = Tuning(flash_attention=kv_type != "f16", threads=cores(), threads_batch=cores(), kv_type=kv_type)
        for n in (cores(), max(1, cores() // 2)):
            first = replace(usual, threads=n, threads_batch=n)
            if trials.run([first] if kv_type != "f16" else [first, replace(first, flash_attention=True)]):
                break
            # Threads that wait for each other while others have their processors: fewer of them may still get through.
            trials.start_over()
        else:
            return None
        best = choose(trials.done, stored)[0]
        trials.run([replace(best, threads=k, threads_batch=k) for k in _thread_counts(effort) if k < n])
        if effort.is_wide:
            best = choose(trials.done, stored)[0]
            trials.run([replace(best, n_ubatch=n) for n in (256, 128)])
            if kv_type != "f16":
                trials.run([replace(best, kv_type="f16")])
    foreign = load.cores_used()
    allowed = [trial for trial in trials.done if trial.tuning.kv_type == kv_type]
    # Beside busy programs the faster mode is a matter of chance.
    margin = math.inf if foreign is not None and foreign > FOREIGN_LIMIT else KV_MARGIN
    choice, rates, reason = choose(allowed, stored, margin)
    return Tuned(choice, rates, tuple(trials.done), trials.depth, time.time(), foreign, reason)


def choose(
    trials: Sequence[Trial], stored: Mapping[bool, StoredKv], margin: float = KV_MARGIN
) -> tuple[Tuning, Rates, str]:
    """Return the best settings of trials of one KV type, what they are expected to give, and why (`Tuned.reason`).

    Flash attention by the first trials, which differ in nothing else; then threads for decoding and for prefill apart,
    since they do not depend on each other. `margin` stands in place of `KV_MARGIN`.
    """
    flash, reason = _flash_attention(trials, stored, margin)
    same = [trial for trial in trials if trial.tuning.flash_attention == flash]
    decoding = max(same, key=lambda trial: trial.rates.decode)
    whole = min((trial for trial in same if trial.tuning.n_ubatch == FULL_UBATCH), key=_prefill_s)
    prefilling = min(
        (trial for trial in same if trial.tuning.threads_batch == whole.tuning.threads_batch), key=_prefill_s
    )
    if _prefill_s(whole) <= _prefill_s(prefilling) * _NOISE:
        prefilling = whole
    choice = replace(prefilling.tuning, threads=decoding.tuning.threads)
    return choice, replace(prefilling.rates, decode=decoding.rates.decode), reason


def _flash_attention(trials: Sequence[Trial], stored: Mapping[bool, StoredKv], margin: float) -> tuple[bool, str]:
    first = trials[0].tuning
    if first.kv_type != "f16":
        return True, "needed"
    alike = [trial for trial in trials if replace(trial.tuning, flash_attention=first.flash_attention) == first]
    fastest = min(alike, key=lambda trial: trial.rates.turn_s)
    other = next((trial for trial in alike if trial is not fastest), fastest)
    mine, kept = fastest.tuning.flash_attention, other.tuning.flash_attention
    if (
        _n_stored(stored, kept) > _n_stored(stored, mine) + LITTLE_KV
        and other.rates.turn_s < fastest.rates.turn_s * margin
    ):
        return kept, "kv"
    return mine, "measured"


def _n_stored(stored: Mapping[bool, StoredKv], flash_attention: bool) -> int:
    return stored[flash_attention].n_tokens if flash_attention in stored else 0


def _prefill_s(trial: Trial) -> float:
    return MESSAGE_TOKENS / trial.rates.message + PROMPT_TOKENS / trial.rates.prompt


def _thread_counts(effort: Effort) -> list[int]:
    """Fewer than all processors: the halves, and for a wide look all that may be best."""
    n = cores()
    wide = [n - 1, n * 3 // 4, n // 4, 1] if effort.is_wide else []
    return sorted({count for count in (n // 2, *wide) if 1 <= count < n}, reverse=True)


class _Trials:
    """Runs trials until the time is used up. A trial is not begun if it would end behind that."""

    def __init__(self, model: Model, effort: Effort, progress: Told) -> None:
        self.done: list[Trial] = []
        limit = model.n_ctx_train // 2
        # Only rows of a dense model can be put at other positions.
        self.depth = min(effort.depth if model.memory_kind == "dense" else _BLOCK, limit)
        self._n_prompt = min(effort.n_prompt, limit)
        self._model = model
        self._effort = effort
        self._progress = progress
        self._deadline = time.monotonic() + effort.budget_s
        self._n_begun = self._n_planned = 0
        self._longest_s = 0.0

    def start_over(self) -> None:
        """Drop what was tried, and how long that took: what others need not take as long."""
        self.done.clear()
        self._longest_s = 0.0

    def run(self, tunings: Sequence[Tuning]) -> bool:
        """Try settings; those that cannot be had are left out. True if none was."""
        n_before = len(self.done)
        self._n_planned += len(tunings)
        for tuning in tunings:
            self._progress(self._n_begun, self._n_planned)
            self._n_begun += 1
            begun = time.monotonic()
            if begun + self._longest_s > self._deadline:
                break
            try:
                rates = self._rates(tuning, begun)
            except (EngineError, ModelError):
                continue
            self.done.append(Trial(tuning, rates))
            self._longest_s = max(self._longest_s, time.monotonic() - begun)
        return len(self.done) == n_before + len(tunings)

    def _rates(self, tuning: Tuning, begun: float) -> Rates:
        """Tokens a second of each kind of work, the most telling first. Raises `TimeUp` if it is over before those.

        One trial takes a third of the time at most: what it does then is broken off.
        """
        n_prompt, n_vocab = self._n_prompt, self._model.n_vocab
        room = (self._effort.n_windows * MAX_STEPS) + 8 * _BLOCK
        settings = ContextSettings(
            max(self.depth, n_prompt) + room,
            tuning.flash_attention,
            tuning.threads,
            tuning.kv_type,
            tuning.threads_batch,
            tuning.n_ubatch,
        )
        until = min(begun + self._effort.budget_s / 3, self._deadline)
        with timed_context(self._model, settings, until) as context:
            context.decode(0)  # the first use of weights and threads costs what later ones do not
            context.clear()
            message = prompt = prefilling(context, _BLOCK, n_vocab)
            if self.depth > _BLOCK:
                _fill(context, self.depth)
            decode = max(decoding(context) for _ in range(self._effort.n_windows))
            with contextlib.suppress(TimeUp):
                message = max(prefilling(context, MESSAGE_TOKENS, n_vocab) for _ in range(2))
                context.clear()
                prompt = prefilling(context, n_prompt, n_vocab)
        return Rates(decode, message, prompt)


def _fill(context: Context, depth: int) -> None:
    """Make `depth` tokens resident: the rows of the first block are loaded again and again at new positions."""
    tokens = context.tokens[:_BLOCK]
    rows = context.export_rows(0, _BLOCK)
    for start in range(len(context.tokens), depth - _BLOCK + 1, _BLOCK):
        for i in range(_BLOCK):
            struct.pack_into("<i", rows, _CELLS_AT + i * _CELL_BYTES, start + i)
        if not context.import_rows(memoryview(rows), start, tokens, start, start + _BLOCK):
            raise EngineError("The measuring payload was refused.")
