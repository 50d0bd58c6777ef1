"""Writes a small model of random weights in one type, as wide as real ones are, for measuring what the type costs."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from models.gguf_header import MAGIC, TENSOR_TYPES

WIDTH, FEED_FORWARD, HEADS, KV_HEADS, LAYERS, VOCABULARY = 2_048, 5_632, 32, 8, 2, 512
N_MULTIPLIED = LAYERS * WIDTH * (2 * WIDTH + 2 * WIDTH * KV_HEADS // HEADS + 3 * FEED_FORWARD) + VOCABULARY * WIDTH
"""Weights that each token is multiplied by."""

PROBED = ("Q4_0", "Q4_1", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "BF16", "F16")
"""Types of weights, as quantizations are called; those with `_M` mix two."""

_CHUNK_BLOCKS = 4_096
_ALIGNMENT = 32
_SCALE = 0.004
_NUMBERS = {name: number for number, (name, _, _) in TENSOR_TYPES.items()}
# Where a block has 16-bit factors: all other bits may be anything. These make numbers around 0, as wide as a model's.
_FACTORS: Mapping[str, tuple[tuple[int, float], ...]] = {
    "Q4_0": ((0, _SCALE),),
    "Q4_1": ((0, _SCALE), (2, -7.5 * _SCALE)),
    "Q8_0": ((0, _SCALE / 16),),
    "Q4_K": ((0, _SCALE / 32), (2, 7.5 * _SCALE / 32)),
    "Q5_K": ((0, _SCALE / 64), (2, 15.5 * _SCALE / 64)),
    "Q6_K": ((208, _SCALE / 256),),
}
_U32, _F32, _STRING = 4, 6, 8


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    type_name: str

    @property
    def n_bytes(self) -> int:
        """Bytes of its data."""
        _, block, block_bytes = TENSOR_TYPES[_NUMBERS[self.type_name]]
        n = 1
        for length in self.shape:
            n *= length
        return n // block * block_bytes


def multiplied_bytes(quantization: str) -> int:
    """Bytes of the matrices in the layers, by all of which each token is multiplied."""
    return sum(one.n_bytes for one in _tensors(quantization) if one.name.startswith("blk.") and one.type_name != "F32")


def write_probe(path: Path, quantization: str) -> None:
    """Write the model, which takes 50 to 190 MB. Raises OSError."""
    tensors = list(_tensors(quantization))
    with path.open("xb") as file:
        header = _header(tensors)
        file.write(header + bytes(-len(header) % _ALIGNMENT))
        for tensor in tensors:
            left = tensor.n_bytes
            for chunk in _data(tensor.type_name):
                file.write(chunk[:left])
                left -= min(left, len(chunk))
                if not left:
                    break
            file.write(bytes(-tensor.n_bytes % _ALIGNMENT))


def _tensors(quantization: str) -> Iterator[_Tensor]:
    """As llama.cpp mixes them: in `_M`, half of the matrices that matter most and the output are in a better type."""
    usual = quantization.removesuffix("_M")
    better = "Q6_K" if quantization.endswith("_M") else usual
    kv_width = WIDTH * KV_HEADS // HEADS
    yield _Tensor("token_embd.weight", (WIDTH, VOCABULARY), "F32")
    yield _Tensor("output_norm.weight", (WIDTH,), "F32")
    yield _Tensor("output.weight", (WIDTH, VOCABULARY), better)
    for i in range(LAYERS):
        mixed = better if i % 2 == 0 else usual
        yield _Tensor(f"blk.{i}.attn_norm.weight", (WIDTH,), "F32")
        yield _Tensor(f"blk.{i}.ffn_norm.weight", (WIDTH,), "F32")
        yield _Tensor(f"blk.{i}.attn_q.weight", (WIDTH, WIDTH), usual)
        yield _Tensor(f"blk.{i}.attn_k.weight", (WIDTH, kv_width), usual)
        yield _Tensor(f"blk.{i}.attn_v.weight", (WIDTH, kv_width), mixed)
        yield _Tensor(f"blk.{i}.attn_output.weight", (WIDTH, WIDTH), usual)
        yield _Tensor(f"blk.{i}.ffn_gate.weight", (WIDTH, FEED_FORWARD), usual)
        yield _Tensor(f"blk.{i}.ffn_up.weight", (WIDTH, FEED_FORWARD), usual)
        yield _Tensor(f"blk.{i}.ffn_down.weight", (FEED_FORWARD, WIDTH), mixed)


def _header(tensors: list[_Tensor]) -> bytes:
    metadata: dict[str, int | float | str] = {
        "general.architecture": "llama",
        "general.alignment": _ALIGNMENT,
        "llama.context_length": 4_096,
        "llama.embedding_length": WIDTH,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": VOCABULARY,
        "tokenizer.ggml.model": "none",
    }
    parts = [MAGIC, struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), _value(value)]
    offset = 0
    for tensor in tensors:
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        parts += [_text(tensor.name), shape, struct.pack("<IQ", _NUMBERS[tensor.type_name], offset)]
        offset += -(-tensor.n_bytes // _ALIGNMENT) * _ALIGNMENT
    return b"".join(parts)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _value(value: int | float | str) -> bytes:
    match value:
        case str():
            return struct.pack("<I", _STRING) + _text(value)
        case int():
            return struct.pack("<II", _U32, value)
        case float():
            return struct.pack("<If", _F32, value)


def _data(type_name: str) -> Iterable[bytes]:
    """The same random blocks again and again: what is in them does not change how long they take."""
    _, block, block_bytes = TENSOR_TYPES[_NUMBERS[type_name]]
    source = random.Random(type_name)
    if type_name in _FACTORS:
        data = bytearray(source.randbytes(_CHUNK_BLOCKS * block_bytes))
        for place, factor in _FACTORS[type_name]:
            for start in range(place, len(data), block_bytes):
                struct.pack_into("<e", data, start, factor)
    else:
        numbers = [source.gauss(0, 0.02) if type_name != "F32" else 1.0 for _ in range(_CHUNK_BLOCKS * 32 // block)]
        single = struct.pack(f"<{len(numbers)}f", *numbers)
        if type_name == "F16":
            data = bytearray(struct.pack(f"<{len(numbers)}e", *numbers))
        elif type_name == "BF16":
            # The upper half of a single precision number.
            data = bytearray(b"".join(single[i + 2 : i + 4] for i in range(0, len(single), 4)))
        else:
            data = bytearray(single)
    while True:
        yield bytes(data)
