"""What a conversion costs: how far apart two models over one vocabulary are on a text."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from models.errors import ModelError
from models.llama import Model
from models.llama.scoring import Scorer, log_softmax

_CHUNK = 64
_MAX_TOKENS = 1_024
_PROSE = Path(__file__).with_name("prose.txt")


@dataclass(frozen=True, slots=True)
class Loss:
    """How a converted model differs from its source over `n_tokens` of a text.

    The mean Kullback-Leibler divergence of its next-token probabilities (nats), in what share of the places both find
    the same token likeliest (0 to 1), and how surprised each is by the text (perplexity).
    """

    n_tokens: int
    mean_kl: float
    top1_agreement: float
    perplexity_before: float
    perplexity_after: float


def compare(source: Model, converted: Model, *, threads: int, progress: Callable[[int, int], None]) -> Loss:
    """Measure the loss on the text that ships with the program. `progress` receives tokens done and in all.

    Raises `EngineError`, also where what a model computes are no numbers.
    """
    tokens = source.tokenize(_PROSE.read_text(encoding="utf-8"), False)
    bos = source.bos_to_add
    n_ctx = min(_MAX_TOKENS, source.n_ctx_train)
    tokens = [*([] if bos is None else [bos]), *tokens][:n_ctx]
    if converted.n_vocab != source.n_vocab or len(tokens) < _CHUNK:
        raise ModelError(
            "The models cannot be compared: their vocabularies differ, or spell the text in too few tokens."
        )
    n_same, kl, nll_before, nll_after = 0, 0.0, 0.0, 0.0
    with (
        closing(Scorer(source, n_ctx, chunk=_CHUNK, threads=threads)) as before,
        closing(Scorer(converted, n_ctx, chunk=_CHUNK, threads=threads)) as after,
    ):
        for start in range(0, len(tokens), _CHUNK):
            chunk, following = tokens[start : start + _CHUNK], tokens[start + 1 : start + _CHUNK + 1]
            p, q = log_softmax(before.logits(chunk)), log_softmax(after.logits(chunk))
            n_same += int((p.argmax(axis=1) == q.argmax(axis=1)).sum())
            kl += float((math.e**p * (p - q)).sum())
            rows = range(len(following))
            nll_before -= float(p[rows, following].sum())
            nll_after -= float(q[rows, following].sum())
            progress(start + len(chunk), len(tokens))
    n = len(tokens)
    if not math.isfinite(kl + nll_before + nll_after):
        raise ModelError("What one of the models computes are no numbers: choose another type.")
    return Loss(n, max(0.0, kl / n), n_same / n, math.exp(nll_before / (n - 1)), math.exp(nll_after / (n - 1)))
