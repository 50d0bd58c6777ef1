"""llama.cpp through its low-level API: load, tokenize, evaluate, sample, export and import KV rows.

The only module that imports llama_cpp. Plain synchronous code for the engine process; every foreign failure
becomes an error of ours here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
from llama_cpp import llama_cpp as lib

from models.engine import Sampling
from models.errors import EngineError, ModelError
from models.stats import KvShape

BUILD = f"llama-cpp-python {llama_cpp.__version__}"
N_BATCH = 512
_PENALTY_WINDOW = 64
_ABORTED = 2
_WARM_UP_TOKENS = 24


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """How a context is made: tokens of context, flash attention, threads."""

    n_ctx: int
    flash_attention: bool
    threads: int


class Model:
    """Loaded weights and their vocabulary. Owns the native model until `close`."""

    def __init__(self, path: Path, *, gpu_layers: int, progress: Callable[[float], None]) -> None:
        """Load a GGUF; `progress` receives 0..1. Raises `ModelError` in one sentence."""
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        # Kept on self: ctypes callbacks must outlive the native code that calls them.
        self._on_progress = lib.llama_progress_callback(lambda done, _data: _told(progress, done))
        params.progress_callback = self._on_progress
        handle = lib.llama_model_load_from_file(bytes(path), params)
        if not handle:
            raise ModelError(f"{path.name} cannot be loaded: it is damaged, cut short or of an unknown kind.")
        self.handle = handle
        self.vocab = lib.llama_model_get_vocab(handle)
        self._pieces: dict[int, bytes] = {}

    def close(self) -> None:
        """Free the weights."""
        lib.llama_model_free(self.handle)

    def metadata(self, key: str) -> str | None:
        """A GGUF metadata value as text."""
        size = 256
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = lib.llama_model_meta_val_str(self.handle, key.encode(), buffer, size)
            if n < size:
                return None if n < 0 else buffer.value.decode("utf-8", "replace")
            size = n + 1

    @property
    def architecture(self) -> str:
        """The architecture's name in the GGUF header."""
        return self.metadata("general.architecture") or "unknown"

    @property
    def chat_template(self) -> str | None:
        """The default chat template, None if the file has none."""
        template = lib.llama_model_chat_template(self.handle, None)
        return None if template is None else template.decode("utf-8", "replace")

    @property
    def kv_shape(self) -> KvShape:
        """The dense formula's inputs (f16 K and V)."""
        heads = max(lib.llama_model_n_head(self.handle), 1)
        declared = self.metadata(f"{self.architecture}.attention.key_length")
        width = int(declared) if declared else lib.llama_model_n_embd(self.handle) // heads
        return KvShape(lib.llama_model_n_layer(self.handle), lib.llama_model_n_head_kv(self.handle), width)

    @property
    def memory_kind(self) -> str:
        """'dense', 'sliding window', 'hybrid' or 'recurrent': what its state consists of."""
        if lib.llama_model_is_recurrent(self.handle):
            return "recurrent"
        if lib.llama_model_is_hybrid(self.handle):
            return "hybrid"
        return "sliding window" if lib.llama_model_n_swa(self.handle) > 0 else "dense"

    @property
    def n_ctx_train(self) -> int:
        """Tokens of context the model was trained with."""
        return int(lib.llama_model_n_ctx_train(self.handle))

    @property
    def sliding_window(self) -> int:
        """Tokens a sliding-window layer sees, 0 if there is none."""
        return int(lib.llama_model_n_swa(self.handle))

    @property
    def n_params(self) -> int:
        """Number of parameters."""
        return int(lib.llama_model_n_params(self.handle))

    @property
    def weights_bytes(self) -> int:
        """Bytes of all tensors."""
        return int(lib.llama_model_size(self.handle))

    @property
    def n_vocab(self) -> int:
        """Tokens in the vocabulary."""
        return int(lib.llama_vocab_n_tokens(self.vocab))

    @property
    def bos_to_add(self) -> int | None:
        """The BOS id if the tokenizer wants one in front."""
        return int(lib.llama_vocab_bos(self.vocab)) if lib.llama_vocab_get_add_bos(self.vocab) else None

    def token_text(self, which: str) -> str:
        """The text of the 'bos' or 'eos' token, empty if the vocabulary has none."""
        token = lib.llama_vocab_bos(self.vocab) if which == "bos" else lib.llama_vocab_eos(self.vocab)
        text = lib.llama_vocab_get_text(self.vocab, token) if token >= 0 else None
        return "" if text is None else text.decode("utf-8", "replace")

    def tokenize(self, text: str, special: bool) -> list[int]:
        """Token ids of a text, no BOS; control tokens are recognised only if `special`."""
        data = text.encode("utf-8", "replace")
        capacity = len(data) + 8
        while True:
            ids = (lib.llama_token * capacity)()
            n = lib.llama_tokenize(self.vocab, data, len(data), ids, capacity, False, special)
            if n >= 0:
                return list(ids[:n])
            if -n <= capacity:
                raise EngineError("This text cannot be tokenized by the model.")
            capacity = -n

    def piece(self, token: int) -> bytes:
        """The bytes of a token; control tokens are empty. The buffer grows: pieces may be long."""
        known = self._pieces.get(token)
        if known is not None:
            return known
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = lib.llama_token_to_piece(self.vocab, token, buffer, size, 0, False)
            if n >= 0:
                return self._pieces.setdefault(token, buffer.raw[:n])
            size = -n

    def ends_generation(self, token: int) -> bool:
        """True for end-of-turn and end-of-text tokens."""
        return bool(lib.llama_vocab_is_eog(self.vocab, token))


class Context:
    """One KV cache with one resident token prefix (sequence 0) and one scratch sequence (1).

    Invariant: `tokens` are exactly the positions [0, len(tokens)) of sequence 0.
    """

    def __init__(self, model: Model, settings: ContextSettings) -> None:
        """Allocate the cache; raises `ModelError` when there is not enough memory."""
        params = lib.llama_context_default_params()
        params.n_ctx = settings.n_ctx
        params.n_batch = params.n_ubatch = N_BATCH
        params.n_seq_max = 2
        params.kv_unified = True
        params.flash_attn_type = (
            lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if settings.flash_attention else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        params.n_threads = params.n_threads_batch = settings.threads
        params.no_perf = True
        handle = lib.llama_init_from_model(model.handle, params)
        if not handle:
            raise ModelError(
                f"There is not enough memory for a context of {settings.n_ctx:,} tokens; choose a smaller --ctx."
            )
        self.settings = settings
        self.tokens: list[int] = []
        self._model = model
        self._handle = handle
        self._memory = lib.llama_get_memory(handle)
        self._cancelled = ctypes.create_string_buffer(2)
        self._one = (lib.llama_token * 1)()
        # A small context takes smaller batches, and aborts the process on a larger one.
        self._n_batch = min(N_BATCH, int(lib.llama_n_batch(handle)))
        self._chunk = (lib.llama_token * N_BATCH)()
        # Polled by native code between graph nodes. A C function costs nothing there, a Python one would take the
        # interpreter lock each time: strlen is true exactly if the first byte of the flag is set.
        libc = (
            ctypes.CDLL(None) if hasattr(ctypes, "pythonapi") and not hasattr(ctypes, "windll") else ctypes.cdll.msvcrt
        )
        self._abort = ctypes.cast(libc.strlen, lib.ggml_abort_callback)
        lib.llama_set_abort_callback(handle, self._abort, ctypes.cast(self._cancelled, ctypes.c_void_p))

    def close(self) -> None:
        """Free the cache."""
        lib.llama_free(self._handle)

    @property
    def n_ctx(self) -> int:
        """Tokens the cache can hold."""
        return int(lib.llama_n_ctx(self._handle))

    @property
    def kv_bytes(self) -> int:
        """Bytes the resident sequence would take in a file: what its KV really uses."""
        return int(lib.llama_state_seq_get_size(self._handle, 0)) if self.tokens else 0

    # --- cancel (called from the reader thread) ---

    def cancel(self) -> None:
        """Abort the running evaluation within milliseconds; stays set until `clear_cancel`."""
        self._cancelled[0] = b"\x01"

    def clear_cancel(self) -> None:
        """Allow evaluations again."""
        self._cancelled[0] = b"\x00"

    @property
    def is_cancelled(self) -> bool:
        """True between `cancel` and `clear_cancel`."""
        return self._cancelled[0] != b"\x00"

    # --- evaluation ---

    def prefill(self, tokens: Sequence[int], progress: Callable[[int], None]) -> bool:
        """Append tokens in batches of N_BATCH; `progress` receives the tokens done. False if cancelled on the way.

        What was evaluated before a cancel stays resident. Raises `EngineError`.
        """
        done = 0
        while done < len(tokens):
            if self.is_cancelled:
                return False
            n = min(self._n_batch, len(tokens) - done)
            self._chunk[:n] = list(tokens[done : done + n])
            if not self._decode(self._chunk, n):
                return False
            done += n
            progress(done)
        return True

    def decode(self, token: int) -> bool:
        """Append one token; False if cancelled."""
        self._one[0] = token
        return self._decode(self._one, 1)

    def _decode(self, array: ctypes.Array[ctypes.c_int32], n: int) -> bool:
        result = lib.llama_decode(self._handle, lib.llama_batch_get_one(array, n))
        if result == 0:
            self.tokens.extend(array[:n])
            return True
        if result == _ABORTED:
            end = lib.llama_memory_seq_pos_max(self._memory, 0) + 1
            self.tokens.extend(array[: max(0, end - len(self.tokens))])
            self.keep(min(end, len(self.tokens)))
            return False
        self.clear()
        raise EngineError(f"The engine could not evaluate the prompt (llama_decode gave {result}).")

    def warm_up(self) -> None:
        """Run a short batch and one step: the first use of weights, buffers and threads costs what later ones do not.

        Leaves the cache empty.
        """
        self.prefill([0] * _WARM_UP_TOKENS, lambda _done: None)
        self.decode(0)
        self.clear()

    def sample(self, sampler: Sampler) -> int:
        """Choose the next token from the logits of the last evaluated one."""
        return int(lib.llama_sampler_sample(sampler.handle, self._handle, -1))

    # --- the resident prefix ---

    def keep(self, n: int) -> None:
        """Cut the resident prefix to its first `n` tokens; a memory that cannot rewind is emptied instead."""
        if n >= len(self.tokens):
            return
        removed = lib.llama_memory_seq_rm(self._memory, 0, n, -1) if n else False
        if not removed or not self._holds(n):
            self.clear()
            return
        del self.tokens[n:]

    def clear(self) -> None:
        """Empty the cache, scratch included."""
        lib.llama_memory_clear(self._memory, True)
        self.tokens.clear()

    def _holds(self, n: int) -> bool:
        low = lib.llama_memory_seq_pos_min(self._memory, 0)
        high = lib.llama_memory_seq_pos_max(self._memory, 0)
        return bool(low == 0 and high == n - 1)

    # --- KV rows as bytes ---

    def export_rows(self, start: int, end: int) -> bytearray:
        """The KV rows of positions [start, end) as the library's own bytes. Dense models only.

        The range is copied to the scratch sequence (metadata only) and read there. Raises `EngineError`.
        """
        lib.llama_memory_seq_cp(self._memory, 0, 1, start, end)
        try:
            size = lib.llama_state_seq_get_size(self._handle, 1)
            rows = bytearray(size)
            target = (ctypes.c_uint8 * size).from_buffer(rows)
            if lib.llama_state_seq_get_data(self._handle, target, size, 1) != size:
                raise EngineError("The KV rows could not be read.")
            return rows
        finally:
            lib.llama_memory_seq_rm(self._memory, 1, -1, -1)

    def import_rows(self, payload: memoryview, start: int, tokens: Sequence[int], begin: int, end: int) -> bool:
        """Append positions [begin, end) from rows that hold [start, start + len(tokens)). Dense models only.

        `payload` must be verified already: native code checks its shape, not its content. `begin` must be where the
        resident prefix ends. False if the library refused or holds other positions than asked; then the cache is
        emptied, because a failed load may leave cells behind.
        """
        assert begin == len(self.tokens), "rows must continue the resident prefix"
        size = len(payload)
        source = (ctypes.c_uint8 * size).from_buffer(payload)
        loaded = lib.llama_state_seq_set_data(self._handle, source, size, 1)
        if (
            loaded != size
            or lib.llama_memory_seq_pos_min(self._memory, 1) != start
            or lib.llama_memory_seq_pos_max(self._memory, 1) != start + len(tokens) - 1
        ):
            self.clear()
            return False
        lib.llama_memory_seq_cp(self._memory, 1, 0, begin, end)
        lib.llama_memory_seq_rm(self._memory, 1, -1, -1)
        if not self._holds(end):
            self.clear()
            return False
        self.tokens.extend(tokens[begin - start : end - start])
        return True


class Sampler:
    """A native sampler chain: penalties, top-k, top-p, min-p, temperature, seed; greedy at temperature 0."""

    def __init__(self, model: Model, sampling: Sampling, seed: int, recent: Sequence[int]) -> None:
        """`recent` are the newest prompt tokens, which the repeat penalty counts too."""
        self.handle = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        if sampling.repeat_penalty != 1.0:
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
        for token in recent[-_PENALTY_WINDOW:] if sampling.repeat_penalty != 1.0 else ():
            lib.llama_sampler_accept(self.handle, token)

    def _add(self, step: object) -> None:
        lib.llama_sampler_chain_add(self.handle, step)

    def close(self) -> None:
        """Free the chain and its steps."""
        lib.llama_sampler_free(self.handle)


def can_offload() -> bool:
    """True if this build of the library can put layers on a GPU."""
    return bool(lib.llama_supports_gpu_offload())


def _told(progress: Callable[[float], None], share: float) -> bool:
    """Report and go on: false would end the load."""
    progress(share)
    return True


def quiet_logs(write: Callable[[str], None]) -> object:
    """Send the library's log lines to `write`; returns the callback, which must be kept alive."""
    callback = lib.llama_log_callback(lambda _level, text, _data: write(text.decode("utf-8", "replace")))
    lib.llama_log_set(callback, ctypes.c_void_p(0))
    return callback
