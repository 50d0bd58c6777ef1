"""A model with random weights in Q4_0, as large as one that people use, so that memory traffic is realistic.

The quantized blocks are written directly: nothing is quantized. Vocabulary and chat template are another model's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_BLOCK, _BLOCK_BYTES = 32, 18
_STD = 0.02
# Nibbles are uniform from -8 to 7, so this scale gives weights the deviation that is usual at initialization.
_SCALE = _STD / 4.61


@dataclass(frozen=True, slots=True)
class Shape:
    """A dense Llama: the usual sizes."""

    n_layers: int = 30
    n_embd: int = 1536
    n_ff: int = 8960
    n_heads: int = 12
    n_kv_heads: int = 2
    n_ctx: int = 8192


def write(path: Path, like: Path, shape: Shape) -> None:
    """Write the model to `path`, with the vocabulary of the GGUF `like`."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random weights")
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layers)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.n_embd // shape.n_heads)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    n_vocab = _copy_vocabulary(writer, gguf.GGUFReader(like))
    ones = np.ones(shape.n_embd, dtype=np.float32)
    n_kv = shape.n_embd // shape.n_heads * shape.n_kv_heads
    _add(writer, rng, "token_embd.weight", n_vocab, shape.n_embd)
    writer.add_tensor("output_norm.weight", ones)
    for i in range(shape.n_layers):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{norm}.weight", ones)
        for name, n_out, n_in in (
            ("attn_q", shape.n_embd, shape.n_embd),
            ("attn_k", n_kv, shape.n_embd),
            ("attn_v", n_kv, shape.n_embd),
            ("attn_output", shape.n_embd, shape.n_embd),
            ("ffn_gate", shape.n_ff, shape.n_embd),
            ("ffn_up", shape.n_ff, shape.n_embd),
            ("ffn_down", shape.n_embd, shape.n_ff),
        ):
            _add(writer, rng, f"blk.{i}.{name}.weight", n_out, n_in)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, rng: np.random.Generator, name: str, n_out: int, n_in: int) -> None:
    """Add a matrix of random blocks."""
    blocks = rng.integers(0, 256, (n_out, n_in // _BLOCK, _BLOCK_BYTES), dtype=np.uint8)
    blocks[:, :, :2] = np.frombuffer(np.float16(_SCALE).tobytes(), dtype=np.uint8)
    writer.add_tensor(
        name, blocks.reshape(n_out, n_in // _BLOCK * _BLOCK_BYTES), raw_dtype=gguf.GGMLQuantizationType.Q4_0
    )


def _copy_vocabulary(writer: gguf.GGUFWriter, source: gguf.GGUFReader) -> int:
    """Copy everything about tokens; returns how many there are."""
    n_vocab = 0
    for name, field in source.fields.items():
        if not name.startswith("tokenizer."):
            continue
        value: Any = field.contents()
        if name == "tokenizer.ggml.tokens":
            n_vocab = len(value)
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, field.types[0])
    return n_vocab
