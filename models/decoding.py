"""The token loop of one answer: sample, decode, announce, until the model, a limit or the user ends it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass

from models.detokenizer import Decoder
from models.detokenizer import Piece as TextOf
from models.engine import GAVE_UP, Emit, Failed, FinishReason, Piece, Sampling
from models.llama import Context, Model, Sampler
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
    processor time that all threads asked for they got, from 0 to 1.
    """

    reason: FinishReason
    text: str
    ids: tuple[int, ...]
    n_output: int
    tpot_s: float | None
    text_at: float | None
    cpu_share: float | None


class Decoding:
    """The loop over one context. `text_of` gives the bytes of a token as they stand in answers."""

    def __init__(self, context: Context, model: Model, text_of: TextOf, emit: Emit) -> None:
        self._context = context
        self._model = model
        self._text_of = text_of
        self._emit = emit
        self._ids: list[int] = []
        self._n_announced = 0
        self._text_at: float | None = None
        self._wall_s = self._cpu_s = 0.0

    def run(
        self,
        sampler: Sampler,
        watched: Watched,
        *,
        start: tuple[int, ...],
        ending: Ending,
        room: int,
        max_tokens: int | None,
    ) -> Decoded:
        """Decode behind `start`, which the context holds already and the body begins with.

        At most `max_tokens` (None: no limit) and no more than `room`, which leaves room for the closing glue.
        """
        context, ids = self._context, self._ids
        decoder = Decoder(self._text_of, (*ending.stops, *ending.implied))
        decoder.begin(start)
        ids.extend(start)
        announced_at = first_at = last_at = 0.0
        limit = len(start) + (room if max_tokens is None else min(room, max_tokens))
        reason: FinishReason = "length" if limit - len(start) == max_tokens else "context"
        while len(ids) < limit:
            with watched():
                token = context.sample(sampler)
            last_at = time.monotonic()
            first_at = first_at or last_at
            if self._model.ends_generation(token) or token in ending.ids:
                reason = "end"
                break
            ids.append(token)
            decoder.feed(token)
            if decoder.is_stopped:
                reason = "stop" if decoder.stop in ending.stops else "end"
                break
            if last_at - announced_at >= _PIECE_INTERVAL_S and self._announce(decoder):
                announced_at = last_at
            if context.is_cancelled or (len(ids) < limit and not self._decode(token)):
                reason = "cancelled"
                break
        n_output = len(ids) - len(start) + (reason == "end" and not decoder.is_stopped)
        text = self._settle(decoder)
        each_s = tpot(first_at, last_at, n_output)
        return Decoded(reason, text, tuple(self._ids), n_output, each_s, self._text_at, self._cpu_share)

    def _decode(self, token: int) -> bool:
        begun, cpu_begun = time.monotonic(), time.process_time()
        is_done = self._context.decode(token)
        self._wall_s += time.monotonic() - begun
        self._cpu_s += time.process_time() - cpu_begun
        return is_done

    @property
    def _cpu_share(self) -> float | None:
        """Threads that wait for each other spin: what is missing was given to other programs."""
        wanted_s = self._wall_s * self._context.settings.threads
        return min(1.0, self._cpu_s / wanted_s) if wanted_s else None

    def _announce(self, decoder: Decoder) -> bool:
        """Tell what is settled; False if that is no token yet."""
        text, n_tokens = decoder.take()
        if n_tokens:
            self._tell(text, self._n_announced + n_tokens)
        return n_tokens > 0

    def _tell(self, text: str, end: int) -> None:
        self._emit(Piece(text, tuple(self._ids[self._n_announced : end])))
        self._n_announced = end
        if text and self._text_at is None:
            self._text_at = time.monotonic()

    def _settle(self, decoder: Decoder) -> str:
        """Make text and ids final and tell what was not told yet; returns the whole text."""
        decoder.finish()
        (text, _), tail = decoder.take(), decoder.tail
        whole = decoder.text.removesuffix(tail)
        if decoder.is_stopped:
            # The stop string is not part of the answer: keep the tokens before it, tokenize what a cut token left.
            tail_ids = respell(self._model, tail)
            tail = b"".join(map(self._model.piece, tail_ids)).decode("utf-8", "ignore")
            self._ids[decoder.kept :] = tail_ids
        if text + tail or self._n_announced < len(self._ids):
            self._tell(text + tail, len(self._ids))
        return whole + tail


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
