"""A model's weights and vocabulary."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from models.engine import Sampling
from models.errors import EngineError, ModelError
from models.llama.native import lib
from models.stats import KvShape

MemoryKind = Literal["dense", "sliding window", "hybrid", "recurrent"]
"""What a model's state consists of: rows of every token; rows of the newest only, in some layers; rows and a state that
cannot be rewound; such a state alone."""

KvType = Literal["f16", "q8_0"]
"""How K and V elements are kept."""


class Model:
    """Loaded weights with their adapters, and their vocabulary. Owns the native model until `close`."""

    def __init__(
        self,
        path: Path,
        *,
        gpu_layers: int,
        progress: Callable[[float], None],
        loras: Sequence[tuple[Path, float]] = (),
    ) -> None:
        """Load a GGUF and LoRA adapters with their scales; `progress` receives 0..1.

        Raises `ModelError` in one sentence.
        """
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
        self.is_offloaded = gpu_layers != 0
        """True if some of it is on a GPU, which may still compute when a call has returned."""
        self._pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}
        self._unspoken: frozenset[int] | None = None
        self.adapters = [(self._adapter(file), scale) for file, scale in loras]

    def _adapter(self, path: Path) -> Any:
        adapter = lib.llama_adapter_lora_init(self.handle, bytes(path))
        if not adapter:
            self.close()
            raise ModelError(f"{path.name} cannot be loaded: it is damaged, or no LoRA adapter for this model.")
        return adapter

    def close(self) -> None:
        """Free the weights, and the adapters with them."""
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
        """The dense formula's inputs (f16 K and V); see `Context.row_bytes` for other kinds of memory."""
        heads = max(lib.llama_model_n_head(self.handle), 1)
        declared = self.metadata(f"{self.architecture}.attention.key_length")
        width = int(declared) if declared else lib.llama_model_n_embd(self.handle) // heads
        return KvShape(lib.llama_model_n_layer(self.handle), lib.llama_model_n_head_kv(self.handle), width)

    def kv_shape_of(self, kv_type: KvType) -> KvShape:
        """The dense formula's inputs with this type of K and V."""
        return replace(self.kv_shape, type_k=kv_type, type_v=kv_type)

    @property
    def memory_kind(self) -> MemoryKind:
        """What its state consists of; mixtures of experts are dense."""
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

    @property
    def unspoken(self) -> frozenset[int]:
        """Control tokens that end nothing: text to a grammar, but not to whoever reads the answer."""
        if self._unspoken is None:
            vocab = self.vocab
            self._unspoken = frozenset(
                token
                for token in range(self.n_vocab)
                if lib.llama_vocab_is_control(vocab, token) and not lib.llama_vocab_is_eog(vocab, token)
            )
        return self._unspoken

    @property
    def recommended_sampling(self) -> Sampling:
        """What the file's `general.sampling.*` keys say, where it makes sense; else the usual values."""
        ours = Sampling()
        return replace(
            ours,
            temperature=self._recommended("temp", ours.temperature, 0, 5),
            top_k=int(self._recommended("top_k", ours.top_k, 0, 1 << 20)),
            top_p=self._recommended("top_p", ours.top_p, 0.01, 1),
            min_p=self._recommended("min_p", ours.min_p, 0, 0.99),
            repeat_penalty=self._recommended("penalty_repeat", ours.repeat_penalty, 0.5, 2),
        )

    def _recommended(self, key: str, ours: float, least: float, most: float) -> float:
        """Values that are no number, or would make every answer nonsense, count for nothing."""
        try:
            value = float(self.metadata(f"general.sampling.{key}") or "")
        except ValueError:
            return ours
        # The file has 32 bits: 0.95 comes as 0.949999988079071.
        return round(value, 6) if least <= value <= most else ours

    def ends_generation(self, token: int) -> bool:
        """True for end-of-turn and end-of-text tokens."""
        known = self._ends.get(token)
        return self._ends.setdefault(token, bool(lib.llama_vocab_is_eog(self.vocab, token))) if known is None else known


def _told(progress: Callable[[float], None], share: float) -> bool:
    """Report and go on: false would end the load."""
    progress(share)
    return True
