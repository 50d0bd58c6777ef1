"""The small model of the judge's benchmark: logistic regression, and who asks for something about the last answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.similarity import Similarity, excerpt

STRENGTH = 0.1
"""Inverse of the penalty on weights."""
BLOCK_SCALE = 8.0
_REQUEST_STRENGTH = 1.0
"""Chosen by ten folds over the requests themselves: what they lose to a weaker penalty is next to nothing."""


def fit(x: np.ndarray, y: np.ndarray, strength: float = STRENGTH) -> np.ndarray:
    """Weights with the bias last, by Newton's method; the penalty is on all but the bias."""
    x = np.hstack([x, np.ones((len(x), 1))])
    penalty = np.full(x.shape[1], 1 / strength)
    penalty[-1] = 1e-9
    weights = np.zeros(x.shape[1])
    for _ in range(25):
        p = 1 / (1 + np.exp(-x @ weights))
        gradient = x.T @ (p - y) + penalty * weights
        step = np.linalg.solve((x.T * (p * (1 - p))) @ x + np.diag(penalty), gradient)
        weights -= step
        if np.abs(step).max() < 1e-8:
            break
    return weights


def vectors_of(similarity: Similarity, drafts: Iterable[str]) -> np.ndarray:
    """A row for each draft."""
    return np.array([vector for draft in drafts for vector in similarity.encode([excerpt(draft)])], float)


@dataclass(frozen=True, slots=True)
class Requests:
    """Vectors of requests that fit behind any answer (`is_about` 1), and of such that only sound like them (0)."""

    vectors: np.ndarray
    is_about: np.ndarray

    def weights(self, others: np.ndarray) -> np.ndarray:
        """Weights of a vector with the bias last; `others` are vectors of drafts that begin another task."""
        x = np.vstack([self.vectors, others]) * BLOCK_SCALE
        weights = fit(x, np.concatenate([self.is_about, np.zeros(len(others))]), _REQUEST_STRENGTH)
        weights[:-1] *= BLOCK_SCALE
        return weights

    def discount(self, drafts: np.ndarray, others: np.ndarray) -> np.ndarray:
        """What is taken from the log-odds of drafts, as `sessions.policy` does."""
        weights = self.weights(others)
        return np.asarray(np.maximum(0, drafts @ weights[:-1] + weights[-1]))


def read_requests(path: Path, similarity: Similarity) -> Requests:
    """The labelled requests of a file, whatever their language."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    about: Sequence[str] = [draft for row in rows for draft in row["same"]]
    other: Sequence[str] = [draft for row in rows for draft in row["other"]]
    labels = np.array([1.0] * len(about) + [0.0] * len(other))
    return Requests(vectors_of(similarity, [*about, *other]), labels)
