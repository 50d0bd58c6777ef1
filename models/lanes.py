"""Continuous batching: questions that are answered together, one batch after another, each leaving when it is done.

A step evaluates the newest token of every answer, and behind them pieces of prompts that are still to be read. What
questions share is evaluated once: a newcomer branches from the sequence that shares most with it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Protocol

from models.decoding import Answer, Watched, sampler_of
from models.engine import Emit, Failed, Finished, ModelInfo, Progress, Stored
from models.errors import EngineError, GrammarError
from models.llama import PREFIX, Branches, Context, Model, Part, Sampler
from models.questions import Question, Questions
from models.residency import Outcome, Residency
from models.stats import common_prefix

# Pieces of prompts beside running answers are small, so that no answer stands still for long.
_PIECE = 128
# Fewer shared tokens are evaluated again rather than waited for.
_WORTH_WAITING = 32
# What an answer is expected to take where nothing limits it; one that takes more may have to begin again.
_USUAL_ANSWER = 256


class Settled(Protocol):
    """What is done with a finished answer whose KV is kept: its tokens are the context's resident prefix then."""

    def __call__(self, question: Question, finished: Finished, emit: Emit) -> None:
        """Tell it, close the turn, and store it."""
        ...


@dataclass(slots=True)
class _Lane:
    """One question on its way to its answer. `wanted` is what must be evaluated before its next token is sampled."""

    key: int
    question: Question
    emit: Emit
    wanted: list[int]
    answer: Answer
    held: ExitStack = field(default_factory=ExitStack)
    sampler: Sampler | None = None
    watched: Watched | None = None
    outcome: Outcome | None = None
    n_reused: int = 0
    admitted_at: float = 0.0
    prefilled_at: float = 0.0
    sampling_s: float = 0.0
    is_prepared: bool = False

    @property
    def n_reserved(self) -> int:
        """Cells it will need, as far as that is known."""
        limit = self.question.sampling.max_tokens or _USUAL_ANSWER
        return len(self.question.tokens) + max(len(self.answer.ids), min(limit, _USUAL_ANSWER, self.question.room))


class Lanes:
    """Questions over the branches of one context, in the order they came. All but `cancel` belong to one thread."""

    def __init__(
        self,
        context: Context,
        model: Model,
        residency: Residency,
        questions: Questions,
        info: ModelInfo,
        settled: Settled,
        *,
        grammar_limit_s: float,
        is_cancelled: Callable[[int], bool],
    ) -> None:
        """`is_cancelled` tells, by its key, whether a question's answer is not wanted any more."""
        self._context = context
        self._model = model
        self._residency = residency
        self._questions = questions
        self._info = info
        self._settled = settled
        self._grammar_limit_s = grammar_limit_s
        self._is_cancelled = is_cancelled
        self._branches = Branches(context)
        self._waiting: deque[_Lane] = deque()
        self._running: dict[int, _Lane] = {}
        """By branch, in the order of their admission. A branch that has tokens and is not here is kept to share."""
        self._has_overflowed = False
        """True from when somebody had to give way until another one ends: coming back earlier would help nobody."""

    @property
    def is_busy(self) -> bool:
        """True while a question is not answered."""
        return bool(self._waiting or self._running)

    def is_alone(self, key: int) -> bool:
        """True if this is the only question: its evaluation may be broken off."""
        lanes = [*self._running.values(), *self._waiting]
        return len(lanes) == 1 and lanes[0].key == key

    def add(self, key: int, question: Question, emit: Emit) -> None:
        """Put a question in line; its events are those of `Engine.generate`. Raises `GrammarError`."""
        lane = _Lane(key, question, emit, list(question.tokens), self._questions.answer(question, emit))
        sampling_with = sampler_of(
            question.sampling, question.seed, self._model, self._context, emit, grammar_limit_s=self._grammar_limit_s
        )
        lane.sampler, lane.watched = lane.held.enter_context(sampling_with)
        self._waiting.append(lane)

    def step(self) -> None:
        """Evaluate one batch. What the engine cannot do fails the questions that it was for."""
        try:
            self._end(self._is_cancelled)  # first, so that nothing is restored for who has gone
            self._admit()
            parts = self._plan()
            if not parts:
                return
            came_to = self._branches.evaluate(parts)
            if came_to == "no room":
                self._make_room()
            elif came_to == "done":
                self._sample(parts)
        except EngineError as exc:
            self.fail(exc.kind, str(exc))

    def fail(self, kind: str, message: str) -> None:
        """End all questions that are under way; where there are none, the first that waits is the one that failed."""
        failing = list(self._running.values())
        if not failing and self._waiting:
            failing = [self._waiting.popleft()]
        self._running.clear()
        for lane in failing:
            lane.held.close()
            lane.emit(Failed(kind, message))
        self.give_back()

    def give_back(self) -> None:
        """Free what no answer needs; nothing may be under way."""
        assert not self._running, "answers would be lost"
        for branch in range(len(self._branches)):
            self._branches.drop(branch)

    def make_room(self, n: int) -> None:
        """Free `n` cells beside the resident prefix: of what is kept to share, then of the newest questions."""
        while self._branches.n_free < n and (self._drop_idle() or self._put_back()):
            pass

    def close(self) -> None:
        """Cancel what is under way, and free what is native."""
        self._end(lambda _key: True)
        self._branches.close()

    # --- coming and going ---

    def _admit(self) -> None:
        """Let in who waits, in order, as long as there are a branch and cells for them."""
        while self._waiting:
            lane = self._waiting[0]
            place = self._place()
            if place is None:
                return
            source, n = self._source(lane)
            if self._is_worth_waiting(lane, n):
                return
            if not self._has_room(lane, n, source):
                return
            self._waiting.popleft()
            self._begin(lane, place, source, n)

    def _place(self) -> int | None:
        """A branch that nobody needs, an empty one before one that is kept to share."""
        free = [branch for branch in range(len(self._branches)) if branch not in self._running]
        return min(free, key=lambda branch: len(self._branches.tokens(branch)), default=None)

    def _source(self, lane: _Lane) -> tuple[int, int]:
        """The sequence that shares most with a question, and how many tokens."""
        reusable = len(lane.wanted) - 1
        shared = [(common_prefix(self._branches.tokens(i), lane.wanted), i) for i in range(PREFIX, len(self._branches))]
        n, source = max(shared)
        return source, min(n, reusable)

    def _is_worth_waiting(self, lane: _Lane, n: int) -> bool:
        """True if another question is about to evaluate what this one shares with it."""
        coming = max((common_prefix(other.wanted, lane.wanted) for other in self._running.values()), default=0)
        return min(coming, len(lane.wanted) - 1) - n >= _WORTH_WAITING

    def _has_room(self, lane: _Lane, n: int, source: int) -> bool:
        """Whether there are cells for a question; who is alone has all of them."""
        if not self._running:
            return True
        if self._has_overflowed:
            return False
        growing = sum(
            max(0, other.n_reserved - len(self._branches.tokens(branch))) for branch, other in self._running.items()
        )
        n_needed = lane.n_reserved - n + growing
        if n_needed > self._branches.n_free:
            self._drop_idle(but=source)
        return n_needed <= self._branches.n_free

    def _drop_idle(self, *, but: int | None = None) -> bool:
        """Free the branches that are kept to share; False if there was none."""
        idle = [
            branch
            for branch in range(len(self._branches))
            if branch not in self._running and branch != but and self._branches.tokens(branch)
        ]
        for branch in idle:
            self._branches.drop(branch)
        return bool(idle)

    def _begin(self, lane: _Lane, place: int, source: int, n: int) -> None:
        lane.admitted_at = lane.admitted_at or time.monotonic()
        self._running[place] = lane  # from here on it hears of what fails
        if place != source:
            self._branches.drop(place)
        found = self._recalled(lane.question, source) if self._may_be_stored(lane, n) else None
        source, n = self._source(lane)  # the resident prefix may be another one now
        n = self._branches.fork(place, source, n)
        if found is None or source != PREFIX:
            found = Outcome(n, 0, 0, 0.0, 0.0, found.miss_reason if found else None, is_complete=True)
        lane.outcome, lane.n_reused = lane.outcome or found, n
        lane.emit(Progress("prefill", 0, len(lane.wanted) - n))

    def _may_be_stored(self, lane: _Lane, n: int) -> bool:
        """True if more than the `n` tokens that are here may be on disk, and matters enough to look."""
        question = lane.question
        n_known = len(question.tokens) if question.prompt.store_kv else question.request.n_history
        return n < min(n_known, len(question.tokens) - 1) and not lane.is_prepared

    def _recalled(self, question: Question, source: int) -> Outcome | None:
        """Make what is stored of a question the resident prefix; None if there are no cells for that."""
        request = question.request
        self._residency.cut(min(common_prefix(self._context.tokens, request.tokens), request.reusable))
        n_needed = len(question.tokens) - len(self._context.tokens)
        if n_needed > self._branches.n_free:
            self._drop_idle(but=source)
        if n_needed > self._branches.n_free:
            return None
        return self._residency.reuse(request, lambda _phase, _done, _total: None)

    def _end(self, is_cancelled: Callable[[int], bool]) -> None:
        for branch, lane in list(self._running.items()):
            # Ending the one before it may have made it wait.
            if is_cancelled(lane.key) and branch in self._running:
                lane.answer.cancel()
                self._finish(self._running.pop(branch), branch)
        for lane in [lane for lane in self._waiting if is_cancelled(lane.key)]:
            self._waiting.remove(lane)
            lane.answer.cancel()
            self._finish(lane, None)

    def _make_room(self) -> None:
        """Free cells for those that came first: of what is kept to share, of the newest, of the prefix."""
        if self._drop_idle():
            return
        if len(self._running) > 1:
            self._put_back()
        elif self._context.tokens:
            self._residency.cut(0)
        else:
            raise EngineError("The context is full.")

    def _put_back(self) -> bool:
        """Let the newest question wait again; False if none is under way."""
        newest = next(reversed(self._running), None)
        if newest is None:
            return False
        self._waiting.appendleft(self._running.pop(newest))
        self._branches.drop(newest)
        self._has_overflowed = True
        return True

    # --- a step ---

    def _plan(self) -> list[Part]:
        """One token of each answer, then pieces of prompts as far as the batch has room."""
        missing = {branch: lane.wanted[len(self._branches.tokens(branch)) :] for branch, lane in self._running.items()}
        answering = [branch for branch, lane in self._running.items() if len(missing[branch]) == 1]
        room = self._context.n_batch - len(answering)
        if answering:
            room = min(room, _PIECE)
        parts = [Part(branch, missing[branch]) for branch in answering]
        for branch, tokens in missing.items():
            if len(tokens) > 1 and room:
                parts.append(Part(branch, tokens[:room]))
                room -= min(room, len(tokens))
        return parts

    def _sample(self, parts: Sequence[Part]) -> None:
        """Let each answer that has logits take its next token, and those that end with it leave."""
        ended = []
        at = -1
        for part in parts:
            at += len(part.tokens)
            lane = self._running[part.branch]
            n_missing = len(lane.wanted) - len(self._branches.tokens(part.branch))
            if n_missing:
                n_wanted = len(lane.wanted) - lane.n_reused
                lane.emit(Progress("prefill", n_wanted - n_missing, n_wanted))
                continue
            if not lane.is_prepared:
                self._tell_prepared(part.branch, lane)
            try:
                goes_on = lane.answer.reason is None and lane.answer.take(self._chosen(lane, at))
            except GrammarError as exc:
                self._running.pop(part.branch)
                lane.held.close()
                lane.emit(Failed(exc.kind, str(exc)))
                continue
            if goes_on:
                lane.wanted.append(lane.answer.ids[-1])
            else:
                ended.append(part.branch)
        # What closes a turn is evaluated too, and takes the logits of the others with it.
        for branch in ended:
            # The one before it may have needed its cells: then it ends when it has them again.
            if branch in self._running:
                self._finish(self._running.pop(branch), branch)

    def _chosen(self, lane: _Lane, at: int) -> int:
        assert lane.sampler is not None
        assert lane.watched is not None
        begun = time.monotonic()
        with lane.watched():
            token = self._context.sample(lane.sampler, at)
        lane.sampling_s += time.monotonic() - begun
        return token

    # --- what is told ---

    def _tell_prepared(self, branch: int, lane: _Lane) -> None:
        assert lane.outcome is not None
        lane.is_prepared = True
        lane.prefilled_at = time.monotonic()
        reused = lane.outcome.resident + lane.outcome.restored
        lane.outcome = replace(
            lane.outcome,
            prefilled=len(lane.question.tokens) - reused,
            prefill_s=lane.prefilled_at - lane.admitted_at - lane.outcome.restore_s,
        )
        assert lane.sampler is not None
        lane.sampler.remember(lane.question.tokens)
        lane.emit(self._questions.asked(lane.question, lane.outcome, kv_bytes=self._branches.kv_bytes(branch)))

    def _finish(self, lane: _Lane, branch: int | None) -> None:
        """End an answer; its branch is free, and kept to share until it is needed. None: it had to leave it before."""
        lane.held.close()
        self._has_overflowed = False
        outcome = lane.outcome or Outcome(0, 0, 0, 0.0, 0.0, None, is_complete=False)
        stats = self._questions.stats(lane.question, outcome)
        if lane.is_prepared:
            decoded = replace(lane.answer.finish(), sampling_s=lane.sampling_s)
            if decoded.text_at is not None:
                stats = replace(stats, first_decode_s=decoded.text_at - lane.prefilled_at)
            kv_bytes = 0 if branch is None else self._branches.kv_bytes(branch)
            finished = self._questions.finished(lane.question, decoded, stats, self._info, kv_bytes=kv_bytes)
        else:
            finished = self._questions.cancelled(lane.question, stats)
        if branch is not None and lane.is_prepared and lane.question.prompt.store_kv:
            self._branches.adopt(branch)
            self._residency.forget_place()
            try:
                self._settled(lane.question, finished, lane.emit)
            except EngineError as exc:
                lane.emit(Failed(exc.kind, str(exc)))  # the others' branches are whole
        else:
            lane.emit(finished)
            lane.emit(Stored(0, self._info.fingerprint, None))
