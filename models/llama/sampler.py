"""How the next token is chosen from logits."""

from __future__ import annotations

from collections.abc import Sequence

from models.engine import Sampling
from models.llama.grammar import Grammar
from models.llama.model import Model
from models.llama.native import lib

_PENALTY_WINDOW = 64


class Sampler:
    """A native sampler chain: penalties, top-k, top-p, min-p, temperature, seed; greedy at temperature 0.

    With a grammar the token that the chain picks is tried; only if the grammar does not allow it, all that it does not
    allow are taken out and the chain picks again: asking for one token is cheap, for all of them it is not.
    """

    def __init__(self, model: Model, sampling: Sampling, seed: int, recent: Sequence[int] = ()) -> None:
        """`recent` as in `remember`. Raises `GrammarError`."""
        self.grammar = None if sampling.grammar is None else Grammar(model, sampling.grammar)
        self.handle = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        self._has_penalty = sampling.repeat_penalty != 1.0
        if self._has_penalty:
            self._add(
                lib.llama_sampler_init_penalties(model.n_vocab, _PENALTY_WINDOW, sampling.repeat_penalty, 0.0, 0.0)
            )
        if sampling.temperature <= 0:
            self._add(lib.llama_sampler_init_greedy())
        else:
            if sampling.top_k > 0:
                self._add(lib.llama_sampler_init_top_k(sampling.top_k))
            if sampling.top_p < 1:
                self._add(lib.llama_sampler_init_top_p(sampling.top_p, 1))
            if sampling.min_p > 0:
                self._add(lib.llama_sampler_init_min_p(sampling.min_p, 1))
            self._add(lib.llama_sampler_init_temp(sampling.temperature))
            self._add(lib.llama_sampler_init_dist(seed))
        self.remember(recent)

    def remember(self, recent: Sequence[int]) -> None:
        """Take in the newest prompt tokens, which the repeat penalty counts too."""
        for token in recent[-_PENALTY_WINDOW:] if self._has_penalty else ():
            lib.llama_sampler_accept(self.handle, token)

    def choose(self, logits: memoryview[float]) -> int:
        """Choose a token that the grammar allows. Raises `GrammarError` where there is none."""
        assert self.grammar is not None, "without a grammar the library chooses by itself"
        candidates = self.grammar.candidates
        candidates.fill(logits)
        token = candidates.picked_by(self.handle)
        refused: list[int] = []
        while not self.grammar.allows(token):
            refused.append(token)
            candidates.fill(logits)
            self.grammar.mask(refused)
            token = candidates.picked_by(self.handle)
        lib.llama_sampler_accept(self.handle, token)
        self.grammar.accept(token)
        return token

    def _add(self, step: object) -> None:
        lib.llama_sampler_chain_add(self.handle, step)

    def close(self) -> None:
        """Free the chain and its steps, and the grammar."""
        lib.llama_sampler_free(self.handle)
        if self.grammar:
            self.grammar.close()
