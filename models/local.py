"""One local model answering prompts: the synchronous heart of the engine process."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from models.catalog import check_gguf
from models.detokenizer import Decoder
from models.engine import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Loaded,
    ModelInfo,
    Phase,
    Piece,
    Prepared,
    Progress,
    Prompt,
    Sampling,
    Stored,
    TokenRun,
    TurnStats,
)
from models.errors import ModelError, PromptTooLong
from models.fingerprint import Fingerprint, weights_hash
from models.kvstore import KvStore, load_mac_key
from models.llama import BUILD, Context, ContextSettings, Model, Sampler, can_offload
from models.residency import Outcome, Residency
from models.stats import default_context, tpot
from models.template import Glue, assistant_glue, probe, tokenize_entries
from models.tuner import Tuning, cores, tune

# A token is a few milliseconds of work; announcing each would wake the screen on a core that decodes.
_PIECE_INTERVAL_S = 0.08

Emit = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """What the user chose; None means measured or computed here."""

    model_path: Path
    cache_dir: Path
    data_dir: Path
    n_ctx: int | None = None
    gpu_layers: int = 0
    threads: int | None = None
    flash_attention: Literal["auto", "on", "off"] = "auto"


class LocalEngine:
    """A loaded model with its context, template and KV store. All methods run on one thread, except `cancel`."""

    def __init__(self, settings: LocalSettings, emit: Emit) -> None:
        """Load everything, telling `emit` the progress and finally `Loaded`. Raises `ModelError`."""
        begun = time.monotonic()
        if settings.gpu_layers and not can_offload():
            settings = replace(settings, gpu_layers=0)  # this build of llama.cpp knows no GPU
        path = settings.model_path
        check_gguf(path)
        emit(Progress("load", 0, 1000))
        weights = weights_hash(path, settings.cache_dir, lambda done, n: emit(Progress("load", done * 300 // n, 1000)))
        self._model = Model(
            path,
            gpu_layers=settings.gpu_layers,
            progress=_throttled(lambda share: emit(Progress("load", 300 + int(share * 600), 1000))),
        )
        self._glue = self._probe_template(settings.cache_dir)
        tuning = self._tuning(settings, weights, emit)
        shape = self._model.kv_shape
        n_ctx = settings.n_ctx or default_context(self._model.n_ctx_train, shape.bytes_per_token, _available_memory())
        if n_ctx > self._model.n_ctx_train:
            raise ModelError(
                f"This model was trained for a context of {self._model.n_ctx_train:,} tokens and writes nonsense "
                f"beyond it; choose --ctx up to that, not {n_ctx:,}."
            )
        self._context = Context(self._model, ContextSettings(n_ctx, tuning.flash_attention, tuning.threads))
        fingerprint = Fingerprint(
            weights=weights,
            llama_build=BUILD,
            architecture=self._model.architecture,
            layers=shape.n_layers,
            kv_heads=shape.n_kv_heads,
            head_width=shape.head_dim,
            type_k=shape.type_k,
            type_v=shape.type_v,
            flash_attention=tuning.flash_attention,
            rope_base=float(self._model.metadata(f"{self._model.architecture}.rope.freq_base") or 0),
            rope_scale=float(self._model.metadata(f"{self._model.architecture}.rope.scaling.factor") or 0),
            sliding_window=self._model.sliding_window,
            gpu_layers=settings.gpu_layers,
        )
        self._fingerprint = fingerprint.digest().hex()
        store, note = self._open_store(settings, fingerprint)
        self._cancel_lock = threading.Lock()
        self._is_closing = False
        self._residency = Residency(self._context, store, shape.bytes_per_token)
        self.info = ModelInfo(
            name=self._model.metadata("general.name") or path.stem,
            path=str(path),
            architecture=self._model.architecture,
            n_params=self._model.n_params,
            weights_bytes=self._model.weights_bytes,
            n_ctx=self._context.n_ctx,
            n_ctx_train=self._model.n_ctx_train,
            kv_bytes_per_token=shape.bytes_per_token,
            flash_attention=tuning.flash_attention,
            threads=tuning.threads,
            gpu_layers=settings.gpu_layers,
            fingerprint=self._fingerprint,
            supports_system=self._glue.supports_system,
            kv_note=note,
            load_s=time.monotonic() - begun,
        )
        # The window takes the model as ready; only a first request within this tenth of a second waits for it.
        emit(Loaded(self.info))
        self._residency.warm_up()

    def _probe_template(self, cache_dir: Path) -> Glue:
        template = self._model.chat_template
        if template is None:
            raise ModelError("The model file has no chat template, so its turns cannot be built; choose a chat model.")
        return probe(
            template,
            bos_token=self._model.token_text("bos"),
            eos_token=self._model.token_text("eos"),
            cache_dir=cache_dir,
        )

    def _tuning(self, settings: LocalSettings, weights: str, emit: Emit) -> Tuning:
        if settings.flash_attention != "auto" and settings.threads:
            return Tuning(settings.flash_attention == "on", settings.threads)
        tuning = tune(
            self._model,
            weights,
            settings.cache_dir,
            gpu_layers=settings.gpu_layers,
            progress=lambda done, n: emit(Progress("tune", done, n)),
        )
        if settings.flash_attention != "auto":
            tuning = replace(tuning, flash_attention=settings.flash_attention == "on")
        return replace(tuning, threads=min(settings.threads or tuning.threads, 4 * cores()))

    def _open_store(self, settings: LocalSettings, fingerprint: Fingerprint) -> tuple[KvStore | None, str | None]:
        kind = self._model.memory_kind
        if kind != "dense":
            return None, f"KV is not kept on disk for {kind} models yet"
        try:
            key = load_mac_key(settings.data_dir)
            return KvStore(settings.cache_dir / "kv", key, fingerprint, clock=time.time), None
        except OSError as exc:
            return None, f"KV cannot be kept on disk: {exc.strerror}"

    # --- requests ---

    def cancel(self) -> None:
        """Stop the running request; may be called from any thread. A finished answer is still closed and stored."""
        with self._cancel_lock:
            if not self._is_closing:
                self._context.cancel()

    def clear_cancel(self) -> None:
        """Forget a cancel that came too late."""
        self._context.clear_cancel()

    def count(self, text: str) -> int:
        """Tokens of a message body."""
        return len(self._model.tokenize(text, False))

    def prepare(self, prompt: Prompt, emit: Emit) -> None:
        """Make a history resident and keep what had to be prefilled; emits the events of `Engine.prepare`."""
        runs = self._runs(prompt)
        tokens = _joined(runs)
        self._check_room(len(tokens))
        outcome = self._ensure(tokens, len(tokens), prompt, emit)
        if not outcome.is_complete:
            emit(Failed("cancelled", "Stopped."))
            return
        emit(self._prepared(outcome, runs))
        if prompt.store_kv:
            self._residency.capture(_ends(runs), self._stored(emit))
        else:
            self._stored(emit)(0, None)

    def generate(self, prompt: Prompt, sampling: Sampling, emit: Emit) -> None:
        """Answer a prompt; emits the events of `Engine.generate`, `Stored` from the KV writer's thread.

        Raises `PromptTooLong` before anything is evaluated.
        """
        runs = self._runs(prompt)
        opening, closing = assistant_glue(prompt.entries[-1].role, self._glue, self._model.tokenize)
        history = _joined(runs)
        tokens = [*history, *opening]
        room = self._check_room(len(tokens) + len(closing) + 1) + 1
        outcome = self._ensure(tokens, len(tokens) - 1, prompt, emit)
        seed = random.SystemRandom().getrandbits(31) if sampling.seed is None else sampling.seed
        stats = replace(self._stats(outcome, len(tokens)), seed=seed)
        if outcome.is_complete:
            emit(replace(self._prepared(outcome, runs), opening=opening, closing=closing))
            finished = self._decode(sampling, seed, room, stats, opening, closing, emit)
        else:
            run = TokenRun((*opening, *closing), len(opening), len(opening))
            finished = Finished("cancelled", "", run, replace(stats, output_tokens=0))
        with self._cancel_lock:
            self._is_closing = self.info.kv_note is None
            self._context.clear_cancel()
        try:
            emit(finished)
            self._close_turn(prompt, runs, finished, emit, stored=outcome.is_complete)
        finally:
            self._is_closing = False

    def close(self) -> None:
        """Write pending KV."""
        self._residency.close()

    # --- steps ---

    def _runs(self, prompt: Prompt) -> tuple[TokenRun, ...]:
        return tokenize_entries(prompt.entries, self._glue, self._model.tokenize, self._model.bos_to_add)

    def _check_room(self, n_needed: int) -> int:
        """Tokens left in the context; raises `PromptTooLong`."""
        room = self._context.n_ctx - n_needed
        if room < 0:
            raise PromptTooLong(
                f"The conversation needs {n_needed:,} tokens and the context holds {self._context.n_ctx:,}; "
                "start a new session, or a larger context with --ctx."
            )
        return room

    def _ensure(self, tokens: list[int], reusable: int, prompt: Prompt, emit: Emit) -> Outcome:
        n_history = sum(len(entry.run.ids) for entry in prompt.entries if entry.run)

        def report(phase: Phase, done: int, total: int) -> None:
            emit(Progress(phase, done, total))

        return self._residency.ensure(tokens, reusable=reusable, n_history=n_history, report=report)

    def _prepared(self, outcome: Outcome, runs: tuple[TokenRun, ...]) -> Prepared:
        return Prepared(
            resident=outcome.resident,
            restored=outcome.restored,
            prefilled=outcome.prefilled,
            miss_reason=outcome.miss_reason,
            restore_s=outcome.restore_s,
            prefill_s=outcome.prefill_s,
            kv_bytes=self._context.kv_bytes,
            runs=runs,
        )

    def _stats(self, outcome: Outcome, n_prompt: int) -> TurnStats:
        return TurnStats(
            prompt_tokens=n_prompt,
            resident_tokens=outcome.resident,
            restored_tokens=outcome.restored,
            prefilled_tokens=outcome.prefilled,
            restore_s=outcome.restore_s,
            prefill_s=outcome.prefill_s,
            kv_bytes_per_token=self._model.kv_shape.bytes_per_token,
            miss_reason=outcome.miss_reason,
        )

    def _decode(
        self,
        sampling: Sampling,
        seed: int,
        room: int,
        stats: TurnStats,
        opening: tuple[int, ...],
        closing: tuple[int, ...],
        emit: Emit,
    ) -> Finished:
        """The token loop. `room` tokens may be decoded so that the closing glue still fits."""
        context, model = self._context, self._model
        limit = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
        decoder = Decoder(model.piece, sampling.stop)
        sampler = Sampler(model, sampling, seed, context.tokens)
        ids: list[int] = []
        pending: list[str] = []
        n_announced = 0
        announced_at = first_at = last_at = 0.0
        reason: FinishReason = "length" if limit == sampling.max_tokens else "context"
        try:
            while len(ids) < limit:
                token = context.sample(sampler)
                last_at = time.monotonic()
                first_at = first_at or last_at
                if model.ends_generation(token):
                    reason = "end"
                    break
                ids.append(token)
                pending.append(decoder.feed(token))
                if decoder.is_stopped:
                    reason = "stop"
                    break
                if last_at - announced_at >= _PIECE_INTERVAL_S and any(pending):
                    emit(Piece("".join(pending), tuple(ids[n_announced:])))
                    pending.clear()
                    n_announced, announced_at = len(ids), last_at
                if context.is_cancelled or (len(ids) < limit and not context.decode(token)):
                    reason = "cancelled"
                    break
        finally:
            sampler.close()
        pending.append(decoder.finish())
        n_output = len(ids) + (reason == "end")
        if decoder.is_stopped:
            # The stop string is not part of the answer: keep the tokens before it, tokenize what a cut token left.
            ids = [*ids[: decoder.kept], *model.tokenize(decoder.tail, False)]
        if any(pending) or n_announced < len(ids):
            emit(Piece("".join(pending), tuple(ids[n_announced:])))
        run = TokenRun((*opening, *ids, *closing), len(opening), len(opening) + len(ids))
        return Finished(
            reason,
            decoder.text,
            run,
            replace(
                stats,
                output_tokens=n_output,
                tpot_s=tpot(first_at, last_at, n_output),
                kv_bytes=context.kv_bytes,
            ),
        )

    def _stored(self, emit: Emit) -> Callable[[int, str | None], None]:
        return lambda n_bytes, tip: emit(Stored(n_bytes, self._fingerprint, tip))

    def _close_turn(
        self, prompt: Prompt, runs: tuple[TokenRun, ...], finished: Finished, emit: Emit, *, stored: bool
    ) -> None:
        """Evaluate the last sampled token and the closing glue, so that the next turn starts at a stored point."""
        done = self._stored(emit)
        if not (stored and prompt.store_kv):
            done(0, None)
            return
        runs = (*runs, finished.run)
        tokens = _joined(runs)
        closed = self._residency.ensure(
            tokens, reusable=len(tokens), n_history=0, report=lambda _phase, _done, _total: None
        )
        if closed.is_complete:
            self._residency.capture(_ends(runs), done)
        else:
            done(0, None)


def _joined(runs: Sequence[TokenRun]) -> list[int]:
    return [token for run in runs for token in run.ids]


def _ends(runs: Sequence[TokenRun]) -> list[int]:
    """Positions behind each message."""
    ends, position = [], 0
    for run in runs:
        position += len(run.ids)
        ends.append(position)
    return ends


def _throttled(report: Callable[[float], None]) -> Callable[[float], None]:
    """At most 20 reports a second: the library calls for every tensor."""
    last = [0.0]

    def throttled(share: float) -> None:
        now = time.monotonic()
        if now - last[0] >= 0.05 or share >= 1:
            last[0] = now
            report(share)

    return throttled


def _available_memory() -> int:
    """Bytes of memory that can be had without swapping; 4 GiB where the system does not tell."""
    try:
        with Path("/proc/meminfo").open() as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return 4 << 30
