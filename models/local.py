"""One local model answering prompts: the synchronous heart of the engine process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from models import misses
from models.decoding import decode_answer, sampler_of
from models.engine import (
    Ahead,
    Emit,
    Failed,
    Finished,
    Loaded,
    Phase,
    Progress,
    Prompt,
    Role,
    Sampling,
    Stored,
)
from models.kvwriter import Written
from models.lanes import Lanes
from models.loading import LocalSettings, load
from models.pace import Pace
from models.questions import Question, Questions, request_of
from models.readahead import read_ahead
from models.residency import Outcome, Report, Request, Residency
from models.speculation import Speculation
from models.stats import common_prefix
from models.tokenruns import ends_of, joined, opening_ids
from models.typeahead import draft_tokens, may_fit
from models.weights import LoadingWeights

_GRAMMAR_LIMIT_S = 10.0


class LocalEngine:
    """A loaded model with its context, template and KV store. All methods run on one thread, except `cancel`."""

    def __init__(
        self,
        settings: LocalSettings,
        emit: Emit,
        loading: LoadingWeights | None = None,
        *,
        next_prompt: Callable[[], Prompt | None] = lambda: None,
        is_awaited: Callable[[], bool] = lambda: False,
        is_cancelled: Callable[[int], bool] = lambda _key: False,
        grammar_limit_s: float = _GRAMMAR_LIMIT_S,
    ) -> None:
        """Load everything, telling `emit` the progress and finally `Loaded`. Raises `ModelError`.

        `loading` are the weights, where that was begun before this module was imported.

        `next_prompt` is the one that waits behind the running request, if any: what is done for later gives way.
        `is_cancelled` says of a question that was put to `join` that nobody wants its answer any more.
        `is_awaited` says that any request does, and a draft that is read ahead gives way to that.
        A grammar that takes longer than `grammar_limit_s` for one token ends the process: some would take forever.
        """
        begun = time.monotonic()
        loaded = load(settings, emit, loading)
        self._model, self._glue, self._context = loaded.model, loaded.glue, loaded.context
        self._fingerprint = loaded.fingerprint
        self._next_prompt = next_prompt
        self._is_awaited = is_awaited
        self._grammar_limit_s = grammar_limit_s
        self._openings: dict[Role, list[int]] = {}
        self._cancel_lock = threading.Lock()
        self._is_closing = self._is_ahead = False
        # Where the memory cannot rewind, a wrong guess could not be taken back.
        may_guess = settings.speculation == "auto" and self._model.memory_kind in ("dense", "sliding window")
        self._speculation = Speculation() if may_guess else None
        # What others take of the processors says nothing about layers on a GPU.
        self._pace = None if settings.gpu_layers else Pace(self._context.settings.threads)
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
        self._questions = Questions(loaded)
        self.info = loaded.info(load_s=time.monotonic() - begun)
        self._lanes: Lanes | None = None
        if self.info.n_parallel > 1:
            self._lanes = Lanes(
                self._context,
                self._model,
                self._residency,
                self._questions,
                self.info,
                self._settle,
                grammar_limit_s=grammar_limit_s,
                is_cancelled=is_cancelled,
            )
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

    def give_way(self) -> None:
        """End the reading of a draft for a request that has just come in; may be called from any thread."""
        with self._cancel_lock:
            if self._is_ahead:
                self._context.cancel()

    def clear_cancel(self) -> None:
        """Forget a cancel that came too late."""
        self._context.clear_cancel()

    def count(self, text: str) -> int:
        """Tokens of a message body."""
        return len(self._model.tokenize(text, False))

    def prepare(self, prompt: Prompt, emit: Emit) -> None:
        """Make a history resident and keep what had to be prefilled; emits the events of `Engine.prepare`."""
        if self._lanes:
            self._lanes.give_back()
        runs = self._questions.runs(prompt.entries)
        history = joined(runs)
        self._questions.room(len(history))
        # Behind a system prompt alone it would be part of what all conversations share.
        ahead = self._ahead(prompt.entries[-1].role, len(history)) if len(runs) > 1 else []
        tokens = [*history, *ahead]
        with self._residency.undisturbed():
            request = request_of(prompt, runs, tokens, len(tokens))
            outcome = self._residency.ensure(request, self._report_to(emit))
        if not outcome.is_complete:
            emit(Failed("cancelled", "Stopped."))
            return
        known = _without(outcome, len(ahead))
        emit(self._questions.prepared(known, prompt, runs, kv_bytes=self._context.kv_bytes))
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
        question = self._questions.read(prompt, sampling)
        sampling_with = sampler_of(
            sampling, question.seed, self._model, self._context, emit, grammar_limit_s=self._grammar_limit_s
        )
        with sampling_with as (sampler, watched), self._residency.undisturbed():
            outcome = self._residency.ensure(question.request, self._report_to(emit))
            prefilled_at = time.monotonic()
            stats = self._questions.stats(question, outcome)
            if outcome.is_complete:
                emit(self._questions.asked(question, outcome, kv_bytes=self._context.kv_bytes))
                sampler.remember(self._context.tokens)
                guesses = self._speculation if self._may_guess(sampling) else None
                guesser = guesses.begin(self._context.tokens) if guesses else None
                answer = self._questions.answer(question, emit)
                decoded = decode_answer(answer, self._context, sampler, watched, guesser, self._pace)
                first_decode_s = None if decoded.text_at is None else decoded.text_at - prefilled_at
                stats = replace(stats, first_decode_s=first_decode_s)
                kv_bytes = self._context.kv_bytes
                finished = self._questions.finished(question, decoded, stats, self.info, kv_bytes=kv_bytes)
            else:
                finished = self._questions.cancelled(question, stats)
        self._settle(question, finished, emit, stored=outcome.is_complete)

    def _may_guess(self, sampling: Sampling) -> bool:
        """True if guesses cannot change the answer, or nobody relies on its coming again.

        Without flash attention a batch rounds differently from single steps.
        """
        is_free = sampling.temperature > 0 and sampling.seed is None
        return sampling.grammar is None and (self.info.flash_attention or is_free)

    # --- several questions at once ---

    @property
    def answers_together(self) -> bool:
        """True if questions are put to `join`, and answered by `step` while `is_busy`."""
        return self._lanes is not None

    @property
    def is_busy(self) -> bool:
        """True while a question that has joined is not answered."""
        return self._lanes is not None and self._lanes.is_busy

    def join(self, key: int, prompt: Prompt, sampling: Sampling, emit: Emit) -> None:
        """Answer a prompt together with others; emits what `generate` does. Raises `PromptTooLong`, `GrammarError`."""
        assert self._lanes is not None, "one question is answered at a time"
        self._lanes.add(key, self._questions.read(prompt, sampling), emit)

    def step(self) -> None:
        """Evaluate the next batch of those that have joined."""
        assert self._lanes is not None, "nobody can have joined"
        self._lanes.step()

    def cancel_joined(self, key: int) -> None:
        """Hurry to the next step if a batch is evaluated for this question only; may be called from any thread."""
        if self._lanes and self._lanes.is_alone(key):
            self.cancel()

    def fail_joined(self, kind: str, message: str) -> None:
        """End those that have joined and are under way, or the first that waits."""
        if self._lanes:
            self._lanes.fail(kind, message)

    def _settle(self, question: Question, finished: Finished, emit: Emit, *, stored: bool = True) -> None:
        """Tell the answer's end, then close the turn behind it."""
        with self._cancel_lock:
            is_stripped = finished.stats.stripped_tokens is not None
            self._is_closing = question.prompt.store_kv and (is_stripped or self.info.kv_note is None)
            self._context.clear_cancel()
        try:
            emit(finished)
            self._close_turn(question, finished, emit, stored=stored)
        finally:
            with self._cancel_lock:
                self._is_closing = False
                self._context.clear_cancel()  # a hurry that was for this is none for what follows

    def anticipate(self, prompt: Prompt, tell: Callable[[Ahead], None]) -> None:
        """Read a draft ahead, see `Engine.anticipate`; `tell` hears how far it is, batch by batch."""
        if self.is_busy or self._is_awaited() or not may_fit(prompt.entries[-1].text, self._context.n_ctx):
            return
        draft = draft_tokens(prompt.entries, self._questions.runs)
        if draft.n_whole >= self._context.n_ctx:
            return
        if self._lanes:
            self._lanes.give_back()
        with self._cancel_lock:
            self._is_ahead = True
        try:
            read_ahead(self._context, self._residency, draft, tell, self._is_awaited)
        finally:
            with self._cancel_lock:
                self._is_ahead = False

    def close(self) -> None:
        """Write pending KV."""
        if self._lanes:
            self._lanes.close()
        self._residency.close()

    # --- steps ---

    def _ahead(self, previous: Role, n_history: int) -> list[int]:
        """What every message of a user begins with behind `previous`, if there is room for it."""
        if previous not in self._openings:
            # Behind a question stands an answer, so nothing is certain there.
            known = previous != "user"
            self._openings[previous] = opening_ids(previous, "user", self._glue, self._model.tokenize) if known else []
        opening = self._openings[previous]
        return opening if n_history + len(opening) <= self._context.n_ctx else []

    def _report_to(self, emit: Emit) -> Report:
        def report(phase: Phase, done: int, total: int) -> None:
            emit(Progress(phase, done, total, self._residency.left_s))

        return report

    def _stored(self, emit: Emit) -> Callable[[Written], None]:
        return lambda written: emit(Stored(written.n_bytes, self._fingerprint, written.tip, written.note))

    def _close_turn(self, question: Question, finished: Finished, emit: Emit, *, stored: bool) -> None:
        """Evaluate the last sampled token, the closing glue, and what the next message begins with in any case.

        So the next turn starts at a stored point and evaluates little but the message. A prompt that waits already
        does not wait for this: if it goes on with this conversation it contains the glue, and then its own end is
        early enough to put both turns on disk. An answer without its reasoning is evaluated behind the question, in
        the place of what was decoded.
        """
        done = self._stored(emit)
        if not (stored and question.prompt.store_kv):
            done(Written(0, None))
            return
        runs = (*question.runs, finished.run)
        history = joined(runs)
        tokens = [*history, *self._ahead("assistant", len(history))]
        if self._lanes:
            self._residency.cut(common_prefix(self._context.tokens, tokens))
            self._lanes.make_room(len(tokens) - len(self._context.tokens))
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
