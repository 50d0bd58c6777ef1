"""What was tried as judge of the task policy: each method turns items into numbers that a small model is fitted to.

The language model's methods evaluate on a context of their own, as an engine would on a scratch sequence.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from llama_cpp import llama_cpp as lib

from models.llama import Model
from models.similarity import Similarity, excerpt

_LM_CHARACTERS = 250
_SMALL_TALK = ("hi", "Hello! How can I help you today?")
_FOLLOW = "also again another instead why how that it this these them too ok thanks no same and but auch und warum aber"
_CUES = frozenset(
    (
        _FOLLOW + " también y pero gracias aussi et mais merci 그럼 그리고 근데 왜 아니 もっと なぜ でも 那 再 为什么"
    ).split()
)
_SWITCHES = re.compile(
    r"by the way|unrelated|separate|different|one more|another thing|anyway|übrigens|anderes|por cierto|cambiando"
    r"|sinon|au fait|autre|그런데|다른|별개|딴|아 참|아 맞다|ところで|話は変わ|别的|另外|对了|顺便",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Item:
    """A labelled draft with its conversation's task line and last turn; `kind` is for reports only."""

    group: str
    language: str
    task: str
    question: str
    answer: str
    draft: str
    is_other: bool
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Method:
    """Columns that are standardised, and a block (vectors) that is used as it is; seconds for one judgement."""

    columns: np.ndarray
    block: np.ndarray
    seconds: float


def measured(items: Sequence[Item], columns: Callable[[Item], Sequence[float]]) -> Method:
    """Compute columns item by item, with the median time of one."""
    rows, seconds = [], []
    for item in items:
        begun = time.perf_counter()
        rows.append(columns(item))
        seconds.append(time.perf_counter() - begun)
    return Method(np.array(rows, float), np.zeros((len(items), 0)), float(np.median(seconds)))


# --- words ---


def length(item: Item) -> list[float]:
    """The draft's length."""
    return [np.log1p(len(item.draft))]


def lexical(item: Item) -> list[float]:
    """Shared words and character trigrams, words that follow on or switch, question marks, length."""
    words = set(re.findall(r"\w+", item.draft.lower()))
    context = f"{item.task} {item.question} {item.answer}".lower()
    grams, others = _grams(item.draft.lower()), _grams(context)
    return [
        len(words & set(re.findall(r"\w+", context))) / max(1, len(words)),
        len(grams & others) / max(1, len(grams)),
        len(words & _CUES) / max(1, len(words)),
        float(bool(_SWITCHES.search(item.draft))),
        float("?" in item.draft),
        *length(item),
    ]


def _grams(text: str) -> set[str]:
    return {text[i : i + 3] for i in range(len(text) - 2)}


# --- the language model's table of token embeddings ---


class TokenVectors:
    """Averages of a GGUF's token embeddings, rare tokens first, without what is common to all of them."""

    def __init__(self, path: Path, model: Model) -> None:
        tensor = next(t for t in GGUFReader(path).tensors if t.name == "token_embd.weight")
        table = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        # Merges are learned in the order of their frequency, so an id says how rare its token is.
        rarity = 1 - 1e-3 / (1e-3 + 1 / (np.arange(len(table)) + 30))
        self._table, self._weights, self._model = table, 1 - rarity, model
        sample = table[:: max(1, len(table) // 4000)]
        self._common = np.linalg.svd(sample - sample.mean(0), full_matrices=False)[2][:1]
        self._mean = sample.mean(0)

    def columns(self, item: Item) -> list[float]:
        """Cosines with task, question and answer; the best match of each token of the draft, averaged."""
        rows, vector = self._of(item.draft)
        others = [self._of(text) for text in (item.task, item.question, item.answer)]
        context = np.vstack([other for other, _ in others])
        best = (_unit(rows) @ _unit(context).T).max(1).mean()
        return [*(float(_unit(vector) @ _unit(other)) for _, other in others), float(best)]

    def _of(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        ids = self._model.tokenize(excerpt(text), False) or [0]
        rows = self._table[ids] - self._mean
        rows = rows - (rows @ self._common.T) @ self._common
        return rows, self._weights[ids] @ rows


def _unit(vectors: np.ndarray) -> np.ndarray:
    unit: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)
    return unit


# --- the language model's own probabilities ---


class Scratch:
    """Probabilities of texts on a context that holds nothing else."""

    def __init__(self, model: Model, n_ctx: int = 1024) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
        params.n_threads = params.n_threads_batch = 2
        self._handle = lib.llama_init_from_model(model.handle, params)
        self._memory = lib.llama_get_memory(self._handle)
        self._batch = lib.llama_batch_init(n_ctx, 0, 1)
        self._model = model

    def close(self) -> None:
        """Free the context."""
        lib.llama_batch_free(self._batch)
        lib.llama_free(self._handle)

    def log_likelihoods(self, prefix: Sequence[int], continuation: Sequence[int]) -> np.ndarray:
        """Natural log probability of each token of a continuation behind a prefix of at least one token."""
        lib.llama_memory_clear(self._memory, False)
        tokens, batch, first = [*prefix, *continuation][:-1], self._batch, len(prefix) - 1
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, i >= first
            batch.seq_id[i][0] = 0
        batch.n_tokens = len(tokens)
        assert lib.llama_decode(self._handle, batch) == 0, "a scratch evaluation fits its context"
        found = []
        for i, token in enumerate(continuation, first):
            pointer = lib.llama_get_logits_ith(self._handle, i)
            logits = np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self._model.n_vocab,))
            top = float(logits.max())
            found.append(float(logits[token]) - top - float(np.log(np.exp(logits - top).sum(dtype=np.float64))))
        return np.array(found)

    def information(self, item: Item) -> list[float]:
        """What the last turn tells about the draft, in nats a token: against the draft behind small talk."""
        draft = [*self._ids(item.draft[:_LM_CHARACTERS]), *self._ids("<|im_end|>", True)]
        turn = self._turn(item.question[:_LM_CHARACTERS], item.answer[-_LM_CHARACTERS:])
        gain = self.log_likelihoods(turn, draft) - self.log_likelihoods(self._turn(*_SMALL_TALK), draft)
        return [float(gain.mean()), float(gain.sum() / np.sqrt(len(gain))), *length(item)]

    def yes_no(self, item: Item) -> list[float]:
        """How much likelier 'Yes' than 'No' answers whether the draft goes on with the task."""
        text = (
            f"<|im_start|>user\nTask: {item.task}\nLast message: {item.question[:_LM_CHARACTERS]}\n"
            f"Next message: {item.draft[:_LM_CHARACTERS]}\n"
            "Does the next message go on with the task? Answer Yes or No.<|im_end|>\n<|im_start|>assistant\n"
        )
        ids = self._ids(text, True)
        yes, no = (float(self.log_likelihoods(ids, self._ids(word)[:1])[0]) for word in ("Yes", "No"))
        return [yes - no]

    def _turn(self, question: str, answer: str) -> list[int]:
        start, end = self._ids("<|im_start|>", True), self._ids("<|im_end|>", True)
        line = self._ids("\n")
        user = [*start, *self._ids("user\n")]
        return [
            *(*user, *self._ids(question), *end, *line),
            *(*start, *self._ids("assistant\n"), *self._ids(answer), *end, *line),
            *user,
        ]

    def _ids(self, text: str, special: bool = False) -> list[int]:
        return self._model.tokenize(text, special)


# --- the sentence encoder ---


def cosines(similarity: Similarity, items: Sequence[Item]) -> Method:
    """Cosines with task, question and answer as the product computes them."""

    def columns(item: Item) -> list[float]:
        scores = similarity.scores(item.draft, item.task, item.question, item.answer)
        return [scores.to_task, scores.to_question, scores.to_answer] if scores else [0.0, 0.0, 0.0]

    return measured(items, columns)
