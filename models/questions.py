"""A prompt as one model understands it: its tokens before the answer, and what is told of the answer behind it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from models.answers import implied_ends, implied_stops, n_reasoning_tokens, stripped, with_marks
from models.cost import Estimate
from models.decoding import Answer, Decoded, Ending, respell
from models.engine import Emit, Entry, Finished, ModelInfo, Prepared, Prompt, Sampling, TokenRun, TurnStats
from models.errors import PromptTooLong
from models.loading import LoadedModel
from models.misses import Cause
from models.residency import Outcome, Request
from models.spelling import lost_characters
from models.stats import tpot_floor
from models.tokenruns import AnswerGlue, answer_glue, ends_of, joined, tokenize_entries


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt that is to be answered, in tokens.

    `prompt` is without the answer that is to go on, if there is one: that is in `glue`. `tokens` are all that stands
    before the first sampled token, of which at most `room` may follow. `seed` is the one that is used.
    """

    prompt: Prompt
    runs: tuple[TokenRun, ...]
    glue: AnswerGlue
    tokens: tuple[int, ...]
    room: int
    sampling: Sampling
    seed: int

    @property
    def request(self) -> Request:
        """What has to be resident before the answer: one token must be evaluated to have logits."""
        return request_of(self.prompt, self.runs, self.tokens, len(self.tokens) - 1)


class Questions:
    """Reads prompts for one model, and says what is told of their answers."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._model, self._glue, self._context = loaded.model, loaded.glue, loaded.context
        self._bytes_per_token = loaded.bytes_per_token
        tokenize, ends = self._model.tokenize, self._model.ends_generation
        self._text_of = with_marks(self._model.piece, self._glue.reasoning, tokenize)
        self._implied_stops = implied_stops(self._glue, tokenize, self._text_of, ends)
        self._implied_ends = implied_ends(self._glue, tokenize, self._text_of, ends)

    def runs(self, entries: Sequence[Entry]) -> tuple[TokenRun, ...]:
        """The token runs of messages."""
        return tokenize_entries(entries, self._glue, self._model.tokenize, self._model.bos_to_add)

    def room(self, n_needed: int) -> int:
        """Tokens left in the context; raises `PromptTooLong`."""
        room = self._context.n_ctx - n_needed
        if room < 0:
            raise PromptTooLong(
                f"This needs {n_needed:,} tokens and the context holds {self._context.n_ctx:,}: shorten the message, "
                f"leave out turns by a fork, or choose a larger context (--ctx, up to {self._model.n_ctx_train:,})."
            )
        return room

    def read(self, prompt: Prompt, sampling: Sampling) -> Question:
        """Read a prompt that is to be answered. Raises `PromptTooLong`."""
        runs = self.runs(prompt.entries)
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
        tokens = (*joined(runs), *glue.opening, *glue.start)
        room = self.room(len(tokens) + len(glue.closing) + 1) + 1
        seed = random.SystemRandom().getrandbits(31) if sampling.seed is None else sampling.seed
        return Question(prompt, runs, glue, tokens, room, sampling, seed)

    def answer(self, question: Question, emit: Emit) -> Answer:
        """The answer to a question, of which nothing is there yet but what it begins with."""
        return Answer(
            self._model,
            self._text_of,
            emit,
            start=question.glue.start,
            ending=self._ending(question.sampling),
            room=question.room,
            max_tokens=question.sampling.max_tokens,
        )

    # --- what is told ---

    def prepared(self, outcome: Outcome, prompt: Prompt, runs: tuple[TokenRun, ...], *, kv_bytes: int) -> Prepared:
        """That a prompt is resident."""
        return Prepared(
            resident=outcome.resident,
            restored=outcome.restored,
            prefilled=outcome.prefilled,
            miss_reason=outcome.miss_reason,
            restore_s=outcome.restore_s,
            prefill_s=outcome.prefill_s,
            kv_bytes=kv_bytes,
            runs=runs,
            lost_characters=sum(
                lost_characters(self._glue.body(entry.role, entry.text), run.body, self._text_of)
                for entry, run in zip(prompt.entries, runs, strict=True)
                if entry.run is None
            ),
        )

    def asked(self, question: Question, outcome: Outcome, *, kv_bytes: int) -> Prepared:
        """That a question is resident."""
        prepared = self.prepared(outcome, question.prompt, question.runs, kv_bytes=kv_bytes)
        return replace(prepared, opening=question.glue.opening, closing=question.glue.closing)

    def stats(self, question: Question, outcome: Outcome) -> TurnStats:
        """What is known of a turn before its answer."""
        return TurnStats(
            prompt_tokens=len(question.tokens),
            resident_tokens=outcome.resident,
            restored_tokens=outcome.restored,
            prefilled_tokens=outcome.prefilled,
            restore_s=outcome.restore_s,
            restore_read_s=outcome.restore_read_s,
            restore_verify_s=outcome.restore_verify_s,
            restore_copy_s=outcome.restore_copy_s,
            prefill_s=outcome.prefill_s,
            kv_bytes_per_token=self._bytes_per_token,
            miss_reason=outcome.miss_reason,
            seed=question.seed,
            **_decision(outcome.estimate),
        )

    def finished(
        self, question: Question, decoded: Decoded, stats: TurnStats, info: ModelInfo, *, kv_bytes: int
    ) -> Finished:
        """The answer as it is told, and the run that later prompts contain."""
        glue = question.glue
        begin = len(glue.opening)
        run = TokenRun((*glue.opening, *decoded.ids, *glue.closing), begin, begin + len(decoded.ids))
        shorter = None
        if question.prompt.reasoning == "strip":
            shorter = stripped(
                run, decoded.text, glue.past_opening, self._text_of, lambda cut: respell(self._model, cut)
            )
        stats = replace(
            stats,
            output_tokens=decoded.n_output,
            tpot_s=decoded.tpot_s,
            tpot_floor_s=tpot_floor(info, (stats.prompt_tokens or 0) + decoded.n_output / 2),
            cpu_share=None if info.gpu_layers else decoded.cpu_share,
            sampling_s=decoded.sampling_s,
            speculated_tokens=decoded.n_guessed,
            accepted_tokens=decoded.n_guessed_right,
            kv_bytes=kv_bytes,
            reasoning_tokens=n_reasoning_tokens(decoded.ids, decoded.text, self._text_of),
            stripped_tokens=None if shorter is None else len(run.ids) - len(shorter.ids),
        )
        return Finished(decoded.reason, decoded.text, shorter or run, stats)

    def cancelled(self, question: Question, stats: TurnStats) -> Finished:
        """What is told of a question that was stopped before its answer."""
        glue = question.glue
        run = TokenRun((*glue.opening, *glue.closing), len(glue.opening), len(glue.opening))
        return Finished("cancelled", "", run, replace(stats, output_tokens=0))

    def _ending(self, sampling: Sampling) -> Ending:
        """What ends the answer; a grammar says itself where that is."""
        implied = self._implied_stops if sampling.grammar is None else ()
        return Ending(sampling.stop, implied, self._implied_ends)


def request_of(prompt: Prompt, runs: Sequence[TokenRun], tokens: Sequence[int], reusable: int) -> Request:
    """What has to be resident for a prompt, and what of it was evaluated in an earlier turn."""
    n_history = sum(len(entry.run.ids) for entry in prompt.entries if entry.run)
    return Request(
        tokens, reusable, n_history, ends_of(runs), keeps=prompt.store_kv, cause_at=lambda at: _cause(runs, at)
    )


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
