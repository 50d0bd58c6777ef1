"""One answer, token by token: sample, decode, announce, until the model, a limit or the user ends it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace

from models.detokenizer import Decoder
from models.detokenizer import Piece as TextOf
from models.engine import GAVE_UP, Emit, Failed, FinishReason, Piece, Sampling
from models.llama import Context, Model, Sampler
from models.pace import Pace
from models.speculation import Guesser
from models.spelling import spell
from models.stats import tpot
from models.tokenruns import ids_behind_text
from models.watch import Watch

# A token is a few milliseconds of work; announcing each would wake the screen on a core that decodes.
_PIECE_INTERVAL_S = 0.08
_GRAMMAR_FAILED = 3
"""Exit code of a process that was given up because of a grammar."""

Watched = Callable[[], AbstractContextManager[None]]
"""What a call that may never end runs under."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What ends an answer: stop strings that the user gave, and what stands for the end in this vocabulary.

    `implied` are texts and `ids` tokens of the closing glue where that holds no end-of-generation token: an answer
    that comes to them has ended by itself.
    """

    stops: tuple[str, ...] = ()
    implied: tuple[str, ...] = ()
    ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Decoded:
    """An answer's body, its text as `Finished` has it. `n_output` counts what was sampled, its end included.

    `text_at` is when its first text was told (monotonic s), None if there is none. `cpu_share` is how much of the
    processor time that all threads asked for they got, from 0 to 1. `sampling_s` is what choosing its tokens took, in
    sum; `n_guessed` tokens were evaluated before they were chosen, and `n_guessed_right` of them were chosen then, None
    where nothing may be guessed.
    """

    reason: FinishReason
    text: str
    ids: tuple[int, ...]
    n_output: int
    tpot_s: float | None
    text_at: float | None
    cpu_share: float | None
    sampling_s: float | None = None
    n_guessed: int | None = None
    n_guessed_right: int | None = None


class Answer:
    """One answer as it grows: its ids, its text, what was told of it, and what ends it."""

    def __init__(
        self,
        model: Model,
        text_of: TextOf,
        emit: Emit,
        *,
        start: tuple[int, ...],
        ending: Ending,
        room: int,
        max_tokens: int | None,
    ) -> None:
        """Begin behind `start`, which the body begins with; `text_of` gives a token's bytes as they stand in answers.

        At most `max_tokens` (None: no limit) and no more than `room`, which leaves room for the closing glue.
        """
        self._model = model
        self._emit = emit
        self._ending = ending
        self._n_start = len(start)
        self._limit = len(start) + (room if max_tokens is None else min(room, max_tokens))
        self._reason_at_limit: FinishReason = "length" if self._limit - len(start) == max_tokens else "context"
        self._decoder = Decoder(text_of, (*ending.stops, *ending.implied))
        self._decoder.begin(start)
        self.ids = list(start)
        """What was sampled is behind the first `start`."""
        self.reason: FinishReason | None = None if self._limit > len(start) else self._reason_at_limit
        self._n_announced = 0
        self._announced_at = self._first_at = self._last_at = 0.0
        self._text_at: float | None = None

    def take(self, token: int) -> bool:
        """Append a sampled token; False if the answer ends with it. Then `reason` says why."""
        now = self._last_at = time.monotonic()
        self._first_at = self._first_at or now
        ending, decoder = self._ending, self._decoder
        if self._model.ends_generation(token) or token in ending.ids:
            self.reason = "end"
            return False
        self.ids.append(token)
        decoder.feed(token)
        if decoder.is_stopped:
            self.reason = "stop" if decoder.stop in ending.stops else "end"
            return False
        if now - self._announced_at >= _PIECE_INTERVAL_S and self._announce():
            self._announced_at = now
        if len(self.ids) >= self._limit:
            self.reason = self._reason_at_limit
            return False
        return True

    @property
    def n_left(self) -> int:
        """How many more tokens it may have."""
        return self._limit - len(self.ids)

    def cancel(self) -> None:
        """End it because somebody wants it to."""
        self.reason = "cancelled"

    def finish(self, *, cpu_share: float | None = None) -> Decoded:
        """Make text and ids final, and tell what was not told yet."""
        assert self.reason is not None, "an answer that goes on has no end"
        decoder = self._decoder
        n_output = len(self.ids) - self._n_start + (self.reason == "end" and not decoder.is_stopped)
        text = self._settle()
        each_s = tpot(self._first_at, self._last_at, n_output)
        return Decoded(self.reason, text, tuple(self.ids), n_output, each_s, self._text_at, cpu_share)

    def _announce(self) -> bool:
        """Tell what is settled; False if that is no token yet."""
        text, n_tokens = self._decoder.take()
        if n_tokens:
            self._tell(text, self._n_announced + n_tokens)
        return n_tokens > 0

    def _tell(self, text: str, end: int) -> None:
        told_at = None
        if text and self._text_at is None:
            told_at = self._text_at = time.monotonic()
        self._emit(Piece(text, tuple(self.ids[self._n_announced : end]), told_at))
        self._n_announced = end

    def _settle(self) -> str:
        """Make text and ids final and tell what was not told yet; returns the whole text."""
        decoder = self._decoder
        decoder.finish()
        (text, _), tail = decoder.take(), decoder.tail
        whole = decoder.text.removesuffix(tail)
        if decoder.is_stopped:
            # The stop string is not part of the answer: keep the tokens before it, tokenize what a cut token left.
            tail_ids = respell(self._model, tail)
            tail = b"".join(map(self._model.piece, tail_ids)).decode("utf-8", "ignore")
            self.ids[decoder.kept :] = tail_ids
        if text + tail or self._n_announced < len(self.ids):
            self._tell(text + tail, len(self.ids))
        return whole + tail


def decode_answer(
    answer: Answer,
    context: Context,
    sampler: Sampler,
    watched: Watched,
    guesser: Guesser | None = None,
    pace: Pace | None = None,
) -> Decoded:
    """Sample and decode behind what the context holds, until the answer ends or is cancelled.

    With a `guesser`, guesses are evaluated together with the token that they follow. Every token is sampled from the
    logits behind the answer so far, guessed or not; the rest of the guesses is taken back at the first wrong one. How
    many threads decode is what `pace` says.
    """
    meter = _Meter(context, sampler, watched, guesser, pace)
    ahead: deque[int] = deque()  # guesses that the context holds behind the answer
    at = -1
    while answer.reason is None:
        token = meter.sample(at)
        goes_on = answer.take(token)
        if guesser:
            guesser.add(token)
        if ahead and token == ahead[0] and goes_on:
            ahead.popleft()
            at += 1
            continue
        context.take_back(len(ahead))
        ahead.clear()
        if not goes_on:
            break
        if context.is_cancelled:
            answer.cancel()
            break
        ahead.extend(guesser.guesses(min(answer.n_left, context.n_free) - 1) if guesser else ())
        at = 0 if ahead else -1
        if not meter.decode(token, ahead):
            answer.cancel()
    return meter.finish(answer)


class _Meter:
    """Samples and decodes, and counts what that takes."""

    def __init__(
        self, context: Context, sampler: Sampler, watched: Watched, guesser: Guesser | None, pace: Pace | None
    ) -> None:
        self._context = context
        self._sampler = sampler
        self._watched = watched
        self._guesser = guesser
        self._pace = pace
        self._sampling_s = self._wanted_s = self._cpu_s = 0.0

    def sample(self, at: int) -> int:
        begun = time.monotonic()
        with self._watched():
            token = self._context.sample(self._sampler, at)
        self._sampling_s += time.monotonic() - begun
        return token

    def decode(self, token: int, guesses: Sequence[int]) -> bool:
        """Evaluate a token and what is guessed behind it; False if cancelled."""
        begun, cpu_begun = time.monotonic(), time.process_time()
        is_done = self._context.decode_guessed(token, guesses) if guesses else self._context.decode(token)
        took_s = time.monotonic() - begun
        cpu_s = time.process_time() - cpu_begun
        self._wanted_s += took_s * self._context.threads
        self._cpu_s += cpu_s
        if self._pace and is_done and not guesses:
            self._context.use_threads(self._pace.took(took_s, cpu_s))
        if self._guesser and is_done:
            self._guesser.took(1 + len(guesses), took_s)
        return is_done

    def finish(self, answer: Answer) -> Decoded:
        # Threads that wait for each other spin: what is missing was given to other programs.
        decoded = answer.finish(cpu_share=min(1.0, self._cpu_s / self._wanted_s) if self._wanted_s else None)
        return replace(
            decoded,
            sampling_s=self._sampling_s,
            n_guessed=self._guesser.n_guessed if self._guesser else None,
            n_guessed_right=self._guesser.n_right if self._guesser else None,
        )


def respell(model: Model, text: str) -> list[int]:
    """Return token ids, none of them a control token's, for a text that a cut token has left."""
    return spell(text, lambda cut: ids_behind_text(cut, model.tokenize), model.piece, range(model.n_vocab))


@contextmanager
def sampler_of(
    sampling: Sampling, seed: int, model: Model, context: Context, emit: Emit, *, grammar_limit_s: float
) -> Iterator[tuple[Sampler, Watched]]:
    """A sampler, and what its calls run under. A grammar's may never end: then the process does, with a word."""
    if sampling.grammar is None:
        with closing(Sampler(model, sampling, seed)) as sampler:
            yield sampler, nullcontext
        return

    def give_up() -> None:
        emit(Failed(GAVE_UP, "The grammar takes too long: too many ways through it lead to the same text."))
        os._exit(_GRAMMAR_FAILED)

    with closing(Watch(grammar_limit_s, is_cancelled=lambda: context.is_cancelled, give_up=give_up)) as watch:
        with watch.over_call():
            sampler = Sampler(model, sampling, seed)
        with closing(sampler):
            yield sampler, watch.over_call
