"""How likely a model finds each token of a text, for comparing two models over one vocabulary."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from models.errors import EngineError, ModelError
from models.llama.model import Model
from models.llama.native import lib

Rows: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.float32]]"


class Scorer:
    """Logits behind every token of one text, read chunk by chunk. Owns a context until `close`."""

    def __init__(self, model: Model, n_ctx: int, *, chunk: int, threads: int) -> None:
        """For a text of at most `n_ctx` tokens in chunks of at most `chunk`. Raises `ModelError`."""
        params = lib.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = chunk
        params.n_outputs_max = params.n_outputs_max_per_seq = chunk
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        self._n_vocab = model.n_vocab
        self._handle = lib.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise ModelError("There is not enough memory to compare the models.")
        self._batch = lib.llama_batch_init(chunk, 0, 1)
        self._n_done = 0

    def close(self) -> None:
        """Free the context."""
        lib.llama_batch_free(self._batch)
        lib.llama_free(self._handle)

    def logits(self, tokens: Sequence[int]) -> Rows:
        """Evaluate the text's next tokens; returns a copy of (tokens x vocabulary) logits. Raises `EngineError`."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = self._n_done + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 1
        if lib.llama_decode(self._handle, batch) != 0:
            raise EngineError("The text could not be evaluated.")
        self._n_done += len(tokens)
        floats = ctypes.cast(lib.llama_get_logits(self._handle), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(floats, (len(tokens), self._n_vocab)).astype(np.float32, copy=True)


def log_softmax(logits: Rows) -> Rows:
    """Natural logarithms of probabilities, row by row."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    total: Rows = np.exp(shifted).sum(axis=1, keepdims=True)
    found: Rows = shifted - np.log(total)
    return found
