"""Formulas of the KV cache and of a turn's timing; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.engine import ModelInfo

# Bytes of one element by GGML type name: f16 is 2; q8_0 packs 32 elements in 34 bytes.
_ELEMENT_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32}


@dataclass(frozen=True, slots=True)
class KvShape:
    """What decides the size of a dense KV cache: layers, KV heads, head width (elements), element types."""

    n_layers: int
    n_kv_heads: int
    head_dim: int
    type_k: str = "f16"
    type_v: str = "f16"

    @property
    def bytes_per_token(self) -> int:
        """Layers x KV heads x head width x bytes per element, K and V added."""
        width = self.n_layers * self.n_kv_heads * self.head_dim
        return round(width * (_ELEMENT_BYTES[self.type_k] + _ELEMENT_BYTES[self.type_v]))


def element_bytes(type_name: str) -> float:
    """Bytes of one element of K or V of this GGML type."""
    return _ELEMENT_BYTES[type_name]


def tpot(first_token_s: float, last_token_s: float, n_tokens: int) -> float | None:
    """Time per output token in seconds: (last - first) / (tokens - 1); None below two tokens."""
    return None if n_tokens < 2 else (last_token_s - first_token_s) / (n_tokens - 1)


def tpot_floor(info: ModelInfo, depth: float) -> float | None:
    """Least seconds a decoded token behind `depth` tokens can take: the bytes it must read / the speed of reading.

    Those are the active weights, the KV of all tokens before, and a recurrent state; of a sliding window's KV nothing
    is counted, so that the floor stays one. None where the bytes or the speed are unknown.
    """
    if info.active_bytes is None or not info.read_bytes_per_s:
        return None
    kv_bytes = 0.0 if info.memory_kind == "sliding window" else info.kv_bytes_per_token * depth
    return (info.active_bytes + kv_bytes + info.kv_state_bytes) / info.read_bytes_per_s


def memory_share(tpot_s: float | None, floor_s: float | None) -> float | None:
    """How much of the memory's speed decoding uses, from 0 to 1; a busy moment may have measured that too low.

    None where one of the two is unknown, or nothing was decoded.
    """
    return min(1.0, floor_s / tpot_s) if tpot_s and floor_s is not None else None


def default_context(n_ctx_train: int, kv_bytes_per_token: int, available_bytes: int) -> int:
    """Tokens of context: min(trained, 32,768, largest power of two whose KV fits 40 % of available memory)."""
    fitting = max(int(available_bytes * 0.4) // max(kv_bytes_per_token, 1), 512)
    return min(n_ctx_train, 32_768, 1 << (fitting.bit_length() - 1))


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    limit = min(len(a), len(b))
    for i in range(limit):
        if a[i] != b[i]:
            return i
    return limit
