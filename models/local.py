"""One local model answering prompts: the synchronous heart of the engine process."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from models import misses
from models.catalog import check_gguf
from models.cost import Estimate
from models.detokenizer import Decoder
from models.engine import (
    GAVE_UP,
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
    Role,
    Sampling,
    Stored,
    TokenRun,
    TurnStats,
)
from models.errors import ModelError, PromptTooLong
from models.fingerprint import weights_hash
from models.fit import available_memory
from models.glue import Glue
from models.kvopen import fingerprint_of, open_kv
from models.kvsettings import DEFAULT_KV, KvSettings
from models.kvwriter import Written
from models.llama import Context, ContextSettings, KvType, Model, Sampler, can_offload
from models.misses import Cause
from models.residency import Outcome, Request, Residency
from models.spelling import lost_characters, spell
from models.stats import default_context, tpot
from models.template import probe
from models.tokenruns import assistant_glue, ids_behind_text, opening_ids, tokenize_entries
from models.tuner import Tuning, cores, tune
from models.watch import Watch

# A token is a few milliseconds of work; announcing each would wake the screen on a core that decodes.
_PIECE_INTERVAL_S = 0.08
_GRAMMAR_LIMIT_S = 10.0
_GRAMMAR_FAILED = 3
"""Exit code of a process that was given up because of a grammar."""

Emit = Callable[[Event], None]
Watched = Callable[[], AbstractContextManager[None]]
"""What a call that may never end runs under."""


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
    kv: KvSettings = DEFAULT_KV
    kv_type: KvType = "f16"
    chat_format: str | None = None
    loras: tuple[tuple[Path, float], ...] = ()


class LocalEngine:
    """A loaded model with its context, template and KV store. All methods run on one thread, except `cancel`."""

    def __init__(
        self,
        settings: LocalSettings,
        emit: Emit,
        *,
        next_prompt: Callable[[], Prompt | None] = lambda: None,
        grammar_limit_s: float = _GRAMMAR_LIMIT_S,
    ) -> None:
        """Load everything, telling `emit` the progress and finally `Loaded`. Raises `ModelError`.

        `next_prompt` is the one that waits behind the running request, if any: what is done for later gives way.
        A grammar that takes longer than `grammar_limit_s` for one token ends the process: some would take forever.
        """
        begun = time.monotonic()
        if settings.gpu_layers and not can_offload():
            settings = replace(settings, gpu_layers=0)  # this build of llama.cpp knows no GPU
        path = settings.model_path
        check_gguf(path)
        emit(Progress("load", 0, 1000))
        weights = self._hash(path, settings.cache_dir, emit)
        self._model = Model(
            path,
            gpu_layers=settings.gpu_layers,
            loras=settings.loras,
            progress=_throttled(lambda share: emit(Progress("load", 300 + int(share * 600), 1000))),
        )
        self._glue = self._probe_template(settings)
        tuning = self._tuning(settings, weights, emit)
        shape = self._model.kv_shape
        n_ctx = settings.n_ctx or default_context(self._model.n_ctx_train, shape.bytes_per_token, available_memory())
        if n_ctx > self._model.n_ctx_train:
            raise ModelError(
                f"This model was trained for a context of {self._model.n_ctx_train:,} tokens and writes nonsense "
                f"beyond it; choose --ctx up to that, not {n_ctx:,}."
            )
        context_settings = ContextSettings(n_ctx, tuning.flash_attention, tuning.threads, settings.kv_type)
        self._context = Context(self._model, context_settings)
        fingerprint = fingerprint_of(
            self._model,
            context_settings,
            weights=weights,
            loras=[(self._hash(lora, settings.cache_dir, emit), scale) for lora, scale in settings.loras],
            gpu_layers=settings.gpu_layers,
        )
        self._fingerprint = fingerprint.digest().hex()
        kv = open_kv(
            self._model,
            context_settings,
            fingerprint,
            cache_dir=settings.cache_dir,
            data_dir=settings.data_dir,
            kv=settings.kv,
            path=path,
            check=lambda: emit(Progress("check", 0, 1)),
        )
        self._next_prompt = next_prompt
        self._grammar_limit_s = grammar_limit_s
        self._openings: dict[Role, list[int]] = {}
        self._cancel_lock = threading.Lock()
        self._is_closing = False
        self._residency = Residency(
            self._context, kv.store, off_reason=kv.reason or misses.OFF, is_awaited=lambda: next_prompt() is not None
        )
        # The window takes the model as ready; only a first request within this tenth of a second waits for it.
        # Other memory kinds are measured there, and their figures are part of what is announced.
        if self._model.memory_kind != "dense":
            self._residency.warm_up()
        self.info = ModelInfo(
            name=self._model.metadata("general.name") or path.stem,
            path=str(path),
            architecture=self._model.architecture,
            n_params=self._model.n_params,
            weights_bytes=self._model.weights_bytes,
            n_ctx=self._context.n_ctx,
            n_ctx_train=self._model.n_ctx_train,
            kv_bytes_per_token=self._bytes_per_token,
            flash_attention=tuning.flash_attention,
            threads=tuning.threads,
            gpu_layers=settings.gpu_layers,
            fingerprint=self._fingerprint,
            supports_system=self._glue.supports_system,
            kv_note=kv.reason,
            load_s=time.monotonic() - begun,
            memory_kind=self._model.memory_kind,
            kv_state_bytes=kv.state_bytes,
            kv_type=settings.kv_type,
            notes=self._glue.notes,
            sampling=self._model.recommended_sampling,
        )
        emit(Loaded(self.info))
        if self._model.memory_kind == "dense":
            self._residency.warm_up()

    def _hash(self, path: Path, cache_dir: Path, emit: Emit) -> str:
        return weights_hash(path, cache_dir, lambda done, n: emit(Progress("load", done * 300 // n, 1000)))

    def _probe_template(self, settings: LocalSettings) -> Glue:
        return probe(
            self._model.chat_template,
            bos_token=self._model.token_text("bos"),
            eos_token=self._model.token_text("eos"),
            cache_dir=settings.cache_dir,
            chat_format=settings.chat_format,
        )

    def _tuning(self, settings: LocalSettings, weights: str, emit: Emit) -> Tuning:
        if settings.kv_type != "f16":
            settings = replace(settings, flash_attention="on")  # quantized V needs it
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

    @property
    def _bytes_per_token(self) -> int:
        """The formula's prediction for a dense cache; for the other kinds what was measured."""
        if self._model.memory_kind == "dense":
            return self._model.kv_shape_of(self._context.settings.kv_type).bytes_per_token
        return self._context.row_bytes

    # --- requests ---

    def cancel(self) -> None:
        """Stop the running request; may be called from any thread. A finished answer is still closed and stored."""
        with self._cancel_lock:
            if not self._is_closing:
                self._context.cancel()

    def hurry(self) -> None:
        """Give way to a prompt that has just come in; may be called from any thread. An answer is never touched."""
        with self._cancel_lock:
            # Where the memory cannot rewind, an aborted batch would take the whole conversation with it.
            if self._is_closing and self._context.kind in ("dense", "sliding window"):
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
        history = _joined(runs)
        self._check_room(len(history))
        # Behind a system prompt alone it would be part of what all conversations share.
        ahead = self._ahead(prompt.entries[-1].role, len(history)) if len(runs) > 1 else []
        tokens = [*history, *ahead]
        with self._residency.undisturbed():
            outcome = self._ensure(tokens, len(tokens), prompt, runs, emit)
        if not outcome.is_complete:
            emit(Failed("cancelled", "Stopped."))
            return
        emit(self._prepared(_without(outcome, len(ahead)), prompt, runs))
        if prompt.store_kv:
            self._residency.capture([*_ends(runs)[:-1], len(tokens)], self._stored(emit))
            self._residency.tidy()
        else:
            self._stored(emit)(Written(0, None))

    def generate(self, prompt: Prompt, sampling: Sampling, emit: Emit) -> None:
        """Answer a prompt; emits the events of `Engine.generate`, `Stored` from the KV writer's thread.

        Raises `PromptTooLong` and `GrammarError` before anything is evaluated, the latter also where an answer cannot
        go on.
        """
        runs = self._runs(prompt)
        opening, closing = assistant_glue(prompt.entries[-1].role, self._glue, self._model.tokenize)
        history = _joined(runs)
        tokens = [*history, *opening]
        room = self._check_room(len(tokens) + len(closing) + 1) + 1
        seed = random.SystemRandom().getrandbits(31) if sampling.seed is None else sampling.seed
        with self._sampler(sampling, seed, emit) as (sampler, watched), self._residency.undisturbed():
            outcome = self._ensure(tokens, len(tokens) - 1, prompt, runs, emit)
            stats = replace(self._stats(outcome, len(tokens)), seed=seed)
            if outcome.is_complete:
                emit(replace(self._prepared(outcome, prompt, runs), opening=opening, closing=closing))
                sampler.remember(self._context.tokens)
                finished = self._decode(sampling, sampler, watched, room, stats, opening, closing, emit)
            else:
                run = TokenRun((*opening, *closing), len(opening), len(opening))
                finished = Finished("cancelled", "", run, replace(stats, output_tokens=0))
        with self._cancel_lock:
            self._is_closing = self.info.kv_note is None and prompt.store_kv
            self._context.clear_cancel()
        try:
            emit(finished)
            self._close_turn(prompt, runs, finished, emit, stored=outcome.is_complete)
        finally:
            with self._cancel_lock:
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

    def _ahead(self, previous: Role, n_history: int) -> list[int]:
        """What every message of a user begins with behind `previous`, if there is room for it."""
        if previous not in self._openings:
            # Behind a question stands an answer, so nothing is certain there.
            known = previous != "user"
            self._openings[previous] = opening_ids(previous, "user", self._glue, self._model.tokenize) if known else []
        opening = self._openings[previous]
        return opening if n_history + len(opening) <= self._context.n_ctx else []

    def _ensure(
        self, tokens: list[int], reusable: int, prompt: Prompt, runs: Sequence[TokenRun], emit: Emit
    ) -> Outcome:
        n_history = sum(len(entry.run.ids) for entry in prompt.entries if entry.run)

        def report(phase: Phase, done: int, total: int) -> None:
            emit(Progress(phase, done, total))

        request = Request(
            tokens, reusable, n_history, _ends(runs), keeps=prompt.store_kv, cause_at=lambda at: _cause(runs, at)
        )
        return self._residency.ensure(request, report)

    def _prepared(self, outcome: Outcome, prompt: Prompt, runs: tuple[TokenRun, ...]) -> Prepared:
        return Prepared(
            resident=outcome.resident,
            restored=outcome.restored,
            prefilled=outcome.prefilled,
            miss_reason=outcome.miss_reason,
            restore_s=outcome.restore_s,
            prefill_s=outcome.prefill_s,
            kv_bytes=self._context.kv_bytes,
            runs=runs,
            lost_characters=sum(
                lost_characters(self._glue.body(entry.role, entry.text), run.body, self._model.piece)
                for entry, run in zip(prompt.entries, runs, strict=True)
                if entry.run is None
            ),
        )

    def _stats(self, outcome: Outcome, n_prompt: int) -> TurnStats:
        return TurnStats(
            prompt_tokens=n_prompt,
            resident_tokens=outcome.resident,
            restored_tokens=outcome.restored,
            prefilled_tokens=outcome.prefilled,
            restore_s=outcome.restore_s,
            prefill_s=outcome.prefill_s,
            kv_bytes_per_token=self._bytes_per_token,
            miss_reason=outcome.miss_reason,
            **_decision(outcome.estimate),
        )

    @contextmanager
    def _sampler(self, sampling: Sampling, seed: int, emit: Emit) -> Iterator[tuple[Sampler, Watched]]:
        """A sampler, and what its calls run under. A grammar's may never end: then the process does, with a word."""
        if sampling.grammar is None:
            with closing(Sampler(self._model, sampling, seed)) as sampler:
                yield sampler, nullcontext
            return

        def give_up() -> None:
            emit(Failed(GAVE_UP, "The grammar takes too long: too many ways through it lead to the same text."))
            os._exit(_GRAMMAR_FAILED)

        watch = Watch(self._grammar_limit_s, is_cancelled=lambda: self._context.is_cancelled, give_up=give_up)
        with closing(watch):
            with watch.over_call():
                sampler = Sampler(self._model, sampling, seed)
            with closing(sampler):
                yield sampler, watch.over_call

    def _decode(
        self,
        sampling: Sampling,
        sampler: Sampler,
        watched: Watched,
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
        ids: list[int] = []
        n_announced = 0
        announced_at = first_at = last_at = 0.0
        reason: FinishReason = "length" if limit == sampling.max_tokens else "context"
        while len(ids) < limit:
            with watched():
                token = context.sample(sampler)
            last_at = time.monotonic()
            first_at = first_at or last_at
            if model.ends_generation(token):
                reason = "end"
                break
            ids.append(token)
            decoder.feed(token)
            if decoder.is_stopped:
                reason = "stop"
                break
            if last_at - announced_at >= _PIECE_INTERVAL_S:
                text, n_tokens = decoder.take()
                if n_tokens:
                    emit(Piece(text, tuple(ids[n_announced : n_announced + n_tokens])))
                    n_announced, announced_at = n_announced + n_tokens, last_at
            if context.is_cancelled or (len(ids) < limit and not context.decode(token)):
                reason = "cancelled"
                break
        decoder.finish()
        n_output = len(ids) + (reason == "end")
        (text, _), tail = decoder.take(), decoder.tail
        whole = decoder.text.removesuffix(tail)
        if decoder.is_stopped:
            # The stop string is not part of the answer: keep the tokens before it, tokenize what a cut token left.
            tail_ids = spell(tail, lambda cut: ids_behind_text(cut, model.tokenize), model.piece, range(model.n_vocab))
            tail = b"".join(map(model.piece, tail_ids)).decode("utf-8", "ignore")
            ids = [*ids[: decoder.kept], *tail_ids]
        text, whole = text + tail, whole + tail
        if text or n_announced < len(ids):
            emit(Piece(text, tuple(ids[n_announced:])))
        run = TokenRun((*opening, *ids, *closing), len(opening), len(opening) + len(ids))
        return Finished(
            reason,
            whole,
            run,
            replace(
                stats,
                output_tokens=n_output,
                tpot_s=tpot(first_at, last_at, n_output),
                kv_bytes=context.kv_bytes,
            ),
        )

    def _stored(self, emit: Emit) -> Callable[[Written], None]:
        return lambda written: emit(Stored(written.n_bytes, self._fingerprint, written.tip, written.note))

    def _close_turn(
        self, prompt: Prompt, runs: tuple[TokenRun, ...], finished: Finished, emit: Emit, *, stored: bool
    ) -> None:
        """Evaluate the last sampled token, the closing glue, and what the next message begins with in any case.

        So the next turn starts at a stored point and evaluates little but the message. A prompt that waits already
        does not wait for this: if it goes on with this conversation it contains the glue, and then its own end is
        early enough to put both turns on disk.
        """
        done = self._stored(emit)
        if not (stored and prompt.store_kv):
            done(Written(0, None))
            return
        runs = (*runs, finished.run)
        history = _joined(runs)
        tokens = [*history, *self._ahead("assistant", len(history))]
        # Nothing is looked up for this: what was evaluated is resident, a handful of tokens is missing.
        self._residency.ensure(Request(tokens, len(tokens), 0, keeps=False), lambda _phase, _done, _total: None)
        following = self._next_prompt()
        if following and following.store_kv and _known_tokens(following)[: len(history)] == history:
            done(Written(0, self._residency.tip))
            return
        n_resident = len(self._context.tokens)
        self._residency.capture([*(end for end in _ends(runs)[:-1] if end < n_resident), n_resident], done)
        self._residency.tidy()


def _without(outcome: Outcome, n_ahead: int) -> Outcome:
    """The outcome as the history alone has it: the tokens put behind it are the last, whichever way they came."""
    prefilled = max(0, outcome.prefilled - n_ahead)
    restored = max(0, outcome.restored - (n_ahead - (outcome.prefilled - prefilled)))
    taken = outcome.prefilled - prefilled + outcome.restored - restored
    return replace(outcome, prefilled=prefilled, restored=restored, resident=outcome.resident - (n_ahead - taken))


def _known_tokens(prompt: Prompt) -> list[int]:
    """Tokens of the messages that have been in the KV cache before."""
    return [token for entry in prompt.entries if entry.run for token in entry.run.ids]


def _joined(runs: Sequence[TokenRun]) -> list[int]:
    return [token for run in runs for token in run.ids]


def _ends(runs: Sequence[TokenRun]) -> list[int]:
    """Positions behind each message."""
    ends, position = [], 0
    for run in runs:
        position += len(run.ids)
        ends.append(position)
    return ends


def _cause(runs: Sequence[TokenRun], at: int) -> Cause:
    """Whether a position lies in what somebody wrote or in the template's glue around it."""
    begin = 0
    for run in runs:
        if begin + run.body_start <= at < begin + run.body_end:
            return "edited text"
        begin += len(run.ids)
    return "template"


def _decision(estimate: Estimate | None) -> dict[str, Any]:
    """What the stats say of a decision between disk and prefill."""
    if estimate is None:
        return {}
    return {
        "restore_decision": "restore" if estimate.restores else "prefill",
        "restore_estimate_s": estimate.restore_s,
        "prefill_estimate_s": estimate.prefill_s,
    }


def _throttled(report: Callable[[float], None]) -> Callable[[float], None]:
    """At most 20 reports a second: the library calls for every tensor."""
    last = [0.0]

    def throttled(share: float) -> None:
        now = time.monotonic()
        if now - last[0] >= 0.05 or share >= 1:
            last[0] = now
            report(share)

    return throttled
