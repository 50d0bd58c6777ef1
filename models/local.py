"""One local model answering prompts: the synchronous heart of the engine process."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from models import misses
from models.answers import implied_ends, implied_stops, n_reasoning_tokens, stripped, with_marks
from models.cost import Estimate
from models.decoding import Answer, Decoded, Ending, decode_answer, respell, sampler_of
from models.engine import (
    Emit,
    Failed,
    Finished,
    Loaded,
    Phase,
    Prepared,
    Progress,
    Prompt,
    Role,
    Sampling,
    Stored,
    TokenRun,
    TurnStats,
)
from models.errors import PromptTooLong
from models.kvwriter import Written
from models.loading import LocalSettings, load
from models.misses import Cause
from models.residency import Outcome, Request, Residency
from models.spelling import lost_characters
from models.stats import tpot_floor
from models.tokenruns import AnswerGlue, answer_glue, ends_of, joined, opening_ids, tokenize_entries

_GRAMMAR_LIMIT_S = 10.0


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
        loaded = load(settings, emit)
        self._model, self._glue, self._context = loaded.model, loaded.glue, loaded.context
        self._fingerprint = loaded.fingerprint
        tokenize, ends = self._model.tokenize, self._model.ends_generation
        self._text_of = with_marks(self._model.piece, self._glue.reasoning, tokenize)
        self._implied_stops = implied_stops(self._glue, tokenize, self._text_of, ends)
        self._implied_ends = implied_ends(self._glue, tokenize, self._text_of, ends)
        self._next_prompt = next_prompt
        self._grammar_limit_s = grammar_limit_s
        self._openings: dict[Role, list[int]] = {}
        self._cancel_lock = threading.Lock()
        self._is_closing = False
        self._residency = Residency(
            self._context,
            loaded.kv.store,
            off_reason=loaded.kv.reason or misses.OFF,
            is_awaited=lambda: next_prompt() is not None,
        )
        # The window takes the model as ready; only a first request within this tenth of a second waits for it.
        # Other memory kinds are measured there, and their figures are part of what is announced.
        if self._model.memory_kind != "dense":
            self._residency.warm_up()
        self._bytes_per_token = loaded.bytes_per_token
        self.info = loaded.info(load_s=time.monotonic() - begun)
        emit(Loaded(self.info))
        if self._model.memory_kind == "dense":
            self._residency.warm_up()

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
        history = joined(runs)
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
            self._residency.capture([*ends_of(runs)[:-1], len(tokens)], self._stored(emit))
            self._residency.tidy()
        else:
            self._stored(emit)(Written(0, None))

    def generate(self, prompt: Prompt, sampling: Sampling, emit: Emit) -> None:
        """Answer a prompt; emits the events of `Engine.generate`, `Stored` from the KV writer's thread.

        Raises `PromptTooLong` and `GrammarError` before anything is evaluated, the latter also where an answer cannot
        go on.
        """
        runs = self._runs(prompt)
        begun = runs[-1] if prompt.entries[-1].role == "assistant" else None
        if begun:
            prompt, runs = replace(prompt, entries=prompt.entries[:-1]), runs[:-1]
        glue = answer_glue(
            prompt.entries[-1].role,
            self._glue,
            self._model.tokenize,
            may_reason=prompt.may_reason,
            has_grammar=sampling.grammar is not None,
        )
        if begun:
            glue = replace(glue, opening=begun.ids[: begun.body_start], start=begun.body)
        tokens = [*joined(runs), *glue.opening, *glue.start]
        room = self._check_room(len(tokens) + len(glue.closing) + 1) + 1
        seed = random.SystemRandom().getrandbits(31) if sampling.seed is None else sampling.seed
        sampling_with = sampler_of(
            sampling, seed, self._model, self._context, emit, grammar_limit_s=self._grammar_limit_s
        )
        with sampling_with as (sampler, watched), self._residency.undisturbed():
            outcome = self._ensure(tokens, len(tokens) - 1, prompt, runs, emit)
            prefilled_at = time.monotonic()
            stats = replace(self._stats(outcome, len(tokens)), seed=seed)
            if outcome.is_complete:
                emit(replace(self._prepared(outcome, prompt, runs), opening=glue.opening, closing=glue.closing))
                sampler.remember(self._context.tokens)
                answer = Answer(
                    self._model,
                    self._text_of,
                    emit,
                    start=glue.start,
                    ending=self._ending(sampling),
                    room=room,
                    max_tokens=sampling.max_tokens,
                )
                decoded = decode_answer(answer, self._context, sampler, watched)
                first_decode_s = None if decoded.text_at is None else decoded.text_at - prefilled_at
                finished = self._finished(prompt, decoded, glue, replace(stats, first_decode_s=first_decode_s))
            else:
                run = TokenRun((*glue.opening, *glue.closing), len(glue.opening), len(glue.opening))
                finished = Finished("cancelled", "", run, replace(stats, output_tokens=0))
        with self._cancel_lock:
            is_stripped = finished.stats.stripped_tokens is not None
            self._is_closing = prompt.store_kv and (is_stripped or self.info.kv_note is None)
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
                f"This needs {n_needed:,} tokens and the context holds {self._context.n_ctx:,}: shorten the message, "
                f"leave out turns by a fork, or choose a larger context (--ctx, up to {self._model.n_ctx_train:,})."
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
            tokens, reusable, n_history, ends_of(runs), keeps=prompt.store_kv, cause_at=lambda at: _cause(runs, at)
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
                lost_characters(self._glue.body(entry.role, entry.text), run.body, self._text_of)
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

    def _ending(self, sampling: Sampling) -> Ending:
        """What ends the answer; a grammar says itself where that is."""
        implied = self._implied_stops if sampling.grammar is None else ()
        return Ending(sampling.stop, implied, self._implied_ends)

    def _finished(self, prompt: Prompt, decoded: Decoded, glue: AnswerGlue, stats: TurnStats) -> Finished:
        """The answer as it is told, and the run that later prompts contain."""
        begin = len(glue.opening)
        run = TokenRun((*glue.opening, *decoded.ids, *glue.closing), begin, begin + len(decoded.ids))
        shorter = None
        if prompt.reasoning == "strip":
            shorter = stripped(
                run, decoded.text, glue.past_opening, self._text_of, lambda cut: respell(self._model, cut)
            )
        stats = replace(
            stats,
            output_tokens=decoded.n_output,
            tpot_s=decoded.tpot_s,
            tpot_floor_s=tpot_floor(self.info, (stats.prompt_tokens or 0) + decoded.n_output / 2),
            cpu_share=None if self.info.gpu_layers else decoded.cpu_share,
            kv_bytes=self._context.kv_bytes,
            reasoning_tokens=n_reasoning_tokens(decoded.ids, decoded.text, self._text_of),
            stripped_tokens=None if shorter is None else len(run.ids) - len(shorter.ids),
        )
        return Finished(decoded.reason, decoded.text, shorter or run, stats)

    def _stored(self, emit: Emit) -> Callable[[Written], None]:
        return lambda written: emit(Stored(written.n_bytes, self._fingerprint, written.tip, written.note))

    def _close_turn(
        self, prompt: Prompt, runs: tuple[TokenRun, ...], finished: Finished, emit: Emit, *, stored: bool
    ) -> None:
        """Evaluate the last sampled token, the closing glue, and what the next message begins with in any case.

        So the next turn starts at a stored point and evaluates little but the message. A prompt that waits already
        does not wait for this: if it goes on with this conversation it contains the glue, and then its own end is
        early enough to put both turns on disk. An answer without its reasoning is evaluated behind the question, in
        the place of what was decoded.
        """
        done = self._stored(emit)
        if not (stored and prompt.store_kv):
            done(Written(0, None))
            return
        runs = (*runs, finished.run)
        history = joined(runs)
        tokens = [*history, *self._ahead("assistant", len(history))]
        if finished.stats.stripped_tokens is not None and self._next_prompt():
            self.hurry()  # this takes as long as the answer has tokens
        # Little is missing, and nothing is looked up for that; but a memory that cannot rewind to the question begins
        # at the last point that is stored.
        self._residency.ensure(Request(tokens, len(tokens), 0, keeps=False), lambda _phase, _done, _total: None)
        following = self._next_prompt()
        if following and following.store_kv and _known_tokens(following)[: len(history)] == history:
            done(Written(0, self._residency.tip))
            return
        n_resident = len(self._context.tokens)
        self._residency.capture([*(end for end in ends_of(runs)[:-1] if end < n_resident), n_resident], done)
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
