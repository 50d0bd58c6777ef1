"""Tiny models with random weights, one for each kind of memory, so that all of it is tested without a download."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from gguf import GGUFWriter, TokenType

KINDS = ("dense", "sliding window", "hybrid", "recurrent", "moe")
UNKNOWN = "hybrid with a window"
"""A kind whose state cannot be taken apart."""

WINDOW = 64
"""Tokens the local layers of the sliding-window model see."""

N_CTX_TRAIN = 8192
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Token ids 0, 1 and 2; the last ends a turn."""

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_ARCHITECTURES = {
    "dense": "llama",
    "sliding window": "gemma3",
    "hybrid": "lfm2",
    "recurrent": "mamba",
    "moe": "qwen3moe",
    UNKNOWN: "lfm2",
}
_MERGES = (
    "Ġ t, h e, Ġ a, i n, r e, o n, Ġt he, e r, Ġ s, a t, Ġ w, Ġ o, e n, Ġ c, i t, i s, a n, o r, e s, Ġ b, e d, Ġ f, "
    "in g, Ġ p, o u, Ġa n, a l, a r, Ġt o, Ġ m, Ġo f, Ġ in, Ġ d, Ġ h, Ġan d, i c, l e, Ġt h, i on, o m, l l, en t, "
    "Ġ n, Ġ l, s t, Ġ re, v e, Ġ e, r o, l y"
)
_EMBD, _HEAD, _HEADS, _KV_HEADS, _FF, _EXPERTS = 64, 32, 2, 1, 128, 4
_CONV, _STATE, _RANK = 4, 16, 4
_RANK_LORA = 4

Tokenizer = Literal["bpe", "spm", "user defined"]
"""Byte-level BPE; SentencePiece, which wants a BOS and puts a space before each text; BPE whose marks are no control
tokens but ones found in any text."""

Extra: TypeAlias = tuple[str, TokenType]
"""One more token of a byte-level BPE vocabulary: its text, and what it is."""

Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"


def build(
    kind: str,
    folder: Path,
    *,
    template: str | None = TEMPLATE,
    tokenizer: Tokenizer = "bpe",
    extra: Sequence[Extra] = (),
) -> Path:
    """Write the model of a kind of memory, the same bytes each time; returns its path. `extra` tokens come last."""
    arch = _ARCHITECTURES[kind]
    name = f"tiny-{kind.replace(' ', '-')}"
    if (template, tokenizer, tuple(extra)) != (TEMPLATE, "bpe", ()):
        name += "-" + hashlib.sha256(f"{template} {tokenizer} {extra}".encode()).hexdigest()[:12]
    path = folder / f"{name}.gguf"
    is_hybrid = arch == "lfm2"
    n_layers = 6 if kind == "sliding window" else 4
    writer = GGUFWriter(path, arch)
    writer.add_name(f"Tiny {kind}")
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(_EMBD)
    writer.add_block_count(n_layers)
    writer.add_layer_norm_rms_eps(1e-5)
    n_vocab = _add_spm_vocabulary(writer) if tokenizer == "spm" else _add_vocabulary(writer, tokenizer, extra)
    if template is not None:
        writer.add_chat_template(template)
    random = _Random(list(_ARCHITECTURES).index(kind))
    tensors = {
        "token_embd.weight": random.matrix(n_vocab, _EMBD, gain=8.0),
        "output.weight": random.matrix(n_vocab, _EMBD, gain=3.0),
        "token_embd_norm.weight" if is_hybrid else "output_norm.weight": random.norm(_EMBD),
    }
    if kind == "recurrent":
        _add_mamba(writer)
    else:
        writer.add_feed_forward_length(_FF)
        writer.add_head_count(_HEADS)
        writer.add_key_length(_HEAD)
        writer.add_value_length(_HEAD)
        writer.add_rope_freq_base(10_000.0)
        writer.add_head_count_kv([0, _KV_HEADS, 0, _KV_HEADS] if is_hybrid else _KV_HEADS)
    if kind in ("sliding window", UNKNOWN):
        writer.add_sliding_window(WINDOW)
    if is_hybrid:
        writer.add_shortconv_l_cache(_CONV)
    elif kind == "moe":
        writer.add_expert_count(_EXPERTS)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(_FF)
    for layer in range(n_layers):
        for name, tensor in _layer(kind, layer, random).items():
            tensors[f"blk.{layer}.{name}"] = tensor
    return _write(writer, tensors, path)


def build_lora(base: Path, folder: Path, scale_seed: int) -> Path:
    """Write an adapter for the dense tiny model `base`, with weights that depend on `scale_seed`; returns its path."""
    path = folder / f"lora-{base.stem}-{scale_seed}.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(_RANK_LORA))
    random = _Random(1000 + scale_seed)
    tensors = {}
    for layer in range(4):
        name = f"blk.{layer}.attn_q.weight"
        tensors[f"{name}.lora_a"] = random.matrix(_RANK_LORA, _EMBD)
        tensors[f"{name}.lora_b"] = random.matrix(_HEADS * _HEAD, _RANK_LORA)
    return _write(writer, tensors, path)


def _write(writer: GGUFWriter, tensors: dict[str, Array], path: Path) -> Path:
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class _Random:
    """Random tensors of a useful scale."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def matrix(self, rows: int, columns: int, *, gain: float = 1.0) -> Array:
        """Weights that keep a vector's length, times `gain`."""
        return self.tensor(rows, columns, scale=gain / columns**0.5)

    def tensor(self, *shape: int, scale: float) -> Array:
        """Normally distributed around 0."""
        return (self._generator.standard_normal(shape) * scale).astype(np.float32)

    def norm(self, width: int) -> Array:
        """Around 1, so that no norm can be left out unnoticed."""
        return (1 + self._generator.standard_normal(width) * 0.1).astype(np.float32)


def _layer(kind: str, layer: int, random: _Random) -> dict[str, Array]:
    if kind == "recurrent":
        return _mamba_layer(random)
    tensors = {"attn_norm.weight": random.norm(_EMBD), "ffn_norm.weight": random.norm(_EMBD)}
    if _ARCHITECTURES[kind] == "lfm2" and layer % 2 == 0:
        tensors["shortconv.conv.weight"] = random.tensor(_EMBD, _CONV, scale=0.7)
        tensors["shortconv.in_proj.weight"] = random.matrix(3 * _EMBD, _EMBD)
        tensors["shortconv.out_proj.weight"] = random.matrix(_EMBD, _EMBD, gain=2.0)
    else:
        # The gains make attention sharp enough for the context to decide the next token.
        tensors["attn_q.weight"] = random.matrix(_HEADS * _HEAD, _EMBD, gain=1.5)
        tensors["attn_k.weight"] = random.matrix(_KV_HEADS * _HEAD, _EMBD, gain=1.5)
        tensors["attn_v.weight"] = random.matrix(_KV_HEADS * _HEAD, _EMBD, gain=2.0)
        tensors["attn_output.weight"] = random.matrix(_EMBD, _HEADS * _HEAD, gain=2.0)
        if kind != "dense":
            tensors["attn_q_norm.weight"] = random.norm(_HEAD)
            tensors["attn_k_norm.weight"] = random.norm(_HEAD)
    if kind == "sliding window":
        tensors["post_attention_norm.weight"] = random.norm(_EMBD) * np.float32(2.0)
        tensors["post_ffw_norm.weight"] = random.norm(_EMBD)
    if kind == "moe":
        tensors["ffn_gate_inp.weight"] = random.matrix(_EXPERTS, _EMBD, gain=2.0)
        for name, shape in (("gate", (_FF, _EMBD)), ("down", (_EMBD, _FF)), ("up", (_FF, _EMBD))):
            tensors[f"ffn_{name}_exps.weight"] = random.tensor(_EXPERTS, *shape, scale=shape[1] ** -0.5)
    else:
        tensors["ffn_gate.weight"] = random.matrix(_FF, _EMBD)
        tensors["ffn_down.weight"] = random.matrix(_EMBD, _FF)
        tensors["ffn_up.weight"] = random.matrix(_FF, _EMBD)
    return tensors


def _mamba_layer(random: _Random) -> dict[str, Array]:
    inner = 2 * _EMBD
    decay = -np.tile(np.arange(1, _STATE + 1, dtype=np.float32), (inner, 1))
    return {
        "attn_norm.weight": random.norm(_EMBD),
        "ssm_in.weight": random.matrix(2 * inner, _EMBD, gain=1.5),
        "ssm_conv1d.weight": random.tensor(inner, _CONV, scale=0.6),
        "ssm_conv1d.bias": random.tensor(inner, scale=0.1),
        "ssm_x.weight": random.matrix(_RANK + 2 * _STATE, inner),
        "ssm_dt.weight": random.matrix(inner, _RANK),
        # softplus of about -3.5 is 0.03: the slowest states remember a few dozen tokens.
        "ssm_dt.bias": random.tensor(inner, scale=0.5) - np.float32(3.5),
        "ssm_a": decay,
        "ssm_d": random.norm(inner),
        "ssm_out.weight": random.matrix(_EMBD, inner, gain=2.0),
    }


def _add_mamba(writer: GGUFWriter) -> None:
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(_CONV)
    writer.add_ssm_inner_size(2 * _EMBD)
    writer.add_ssm_state_size(_STATE)
    writer.add_ssm_time_step_rank(_RANK)


def _byte_characters() -> list[str]:
    """The character that stands for each byte in a byte-level BPE vocabulary."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def _tokens() -> list[str]:
    return [*CONTROL, *_byte_characters(), *("".join(merge.split()) for merge in _MERGES.split(", "))]


def _add_vocabulary(writer: GGUFWriter, tokenizer: Tokenizer, extra: Sequence[Extra]) -> int:
    characters = _byte_characters()
    plain = _tokens()
    # Only ordinary tokens are written in the characters that stand for bytes.
    tokens = [
        *plain,
        *("".join(characters[b] for b in text.encode()) if of == TokenType.NORMAL else text for text, of in extra),
    ]
    marks = TokenType.USER_DEFINED if tokenizer == "user defined" else TokenType.CONTROL
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    ordinary = [TokenType.NORMAL] * (len(plain) - len(CONTROL))
    writer.add_token_types([marks] * len(CONTROL) + ordinary + [of for _text, of in extra])
    writer.add_token_merges(_MERGES.split(", "))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    return len(tokens)


def _add_spm_vocabulary(writer: GGUFWriter) -> int:
    """Unknown, BOS and EOS, all bytes, then words and letters, those that are joined first in front."""
    letters = [chr(code) for code in range(0x21, 0x7F)]
    words = ["he", "ll", "hell", "hello", "▁hello", "IN", "ST", "INST", "▁▁", *("▁" + letter for letter in letters)]
    words += ["▁", *letters]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(place) for place in range(len(words))])
    writer.add_token_types(types + [TokenType.NORMAL] * len(words))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    return len(tokens)
