"""What the header of a model file tells before it is loaded; kept, so that each file is read once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from models.cachefile import write_atomically
from models.errors import ModelError
from models.gguf_header import Header, Skipped, Value, read_header

MODEL = "model"
"""The `kind` of what can answer; a projector or an adapter is part of something else."""

_VERSION = 1
_MAX_KNOWN = 4096
_MAX_TITLE = 200
_MAX_NUMBER = 1 << 40

_FILE_TYPE_NAMES = (
    "0:F32 1:F16 2:Q4_0 3:Q4_1 7:Q8_0 8:Q5_0 9:Q5_1 10:Q2_K 11:Q3_K_S 12:Q3_K_M 13:Q3_K_L 14:Q4_K_S 15:Q4_K_M "
    "16:Q5_K_S 17:Q5_K_M 18:Q6_K 19:IQ2_XXS 20:IQ2_XS 21:Q2_K_S 22:IQ3_XS 23:IQ3_XXS 24:IQ1_S 25:IQ4_NL "
    "26:IQ3_S 27:IQ3_M 28:IQ2_S 29:IQ2_M 30:IQ4_XS 31:IQ1_M 32:BF16 36:TQ1_0 37:TQ2_0 38:MXFP4_MOE 39:NVFP4 "
    "40:Q1_0"
)
_FILE_TYPES = {int(number): name for number, name in (item.split(":") for item in _FILE_TYPE_NAMES.split())}
_GUESSED = 1024

# In this order: some templates have the markers of another kind too.
_TEMPLATES = (
    ("gpt-oss harmony", ("<|start|>", "<|channel|>")),
    ("llama3", ("<|start_header_id|>",)),
    ("deepseek", ("<｜Assistant｜>",)),
    ("gemma", ("<start_of_turn>",)),
    ("phi", ("<|im_start|>", "<|im_sep|>")),
    ("phi", ("<|assistant|>", "<|end|>")),
    ("chatml", ("<|im_start|>",)),
    ("other", ("<<SYS>>",)),
    ("mistral", ("[INST]",)),
)

# As llama.cpp treats them. Those that are in no line are unknown here.
_ARCHITECTURES = {
    "recurrent": "mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7",
    "hybrid": (
        "jamba falcon-h1 plamo2 granitehybrid lfm2 lfm2moe nemotron_h nemotron_h_moe qwen3next kimi-linear "
        "qwen35 qwen35moe qwen4exp deepseek4 bailingmoe3 kimi-k3 glm5-next minimax-01"
    ),
    "sliding window": "gemma2 gemma3 gemma3n gemma4 gpt-oss cohere2 smallthinker llama4",
    "dense": (
        "llama mistral3 qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe phi2 phi3 phimoe gemma gpt2 gptneox "
        "starcoder starcoder2 stablelm command-r olmo olmoe granite granitemoe internlm2 falcon mpt bloom minicpm "
        "deepseek deepseek2 glm4 glm4moe chatglm exaone nemotron smollm3 ernie4_5 ernie4_5-moe hunyuan-dense "
        "hunyuan-moe dots1 bailingmoe bailingmoe2 seed_oss arcee baichuan orion xverse apertus arctic dbrx"
    ),
}
_MEMORY = {name: kind for kind, names in _ARCHITECTURES.items() for name in names.split()}
_WINDOW_UNSAID = ("gemma2", "llama4")
"""They have a window even if the header has no word of it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a model file, or of all files of a split model together; None: the header does not say.

    `kind` is `model`, or what else the file is part of (`adapter`, `mmproj`, ...). `kv_elements` is how many numbers
    one token adds to the KV cache, K and V together; 0 for a recurrent model. `memory` is `dense`, `sliding window`,
    `hybrid`, `recurrent`, or `unknown`. `missing_bytes` are those the file should have and has not.
    """

    size_bytes: int
    kind: str = MODEL
    title: str | None = None
    architecture: str | None = None
    n_params: int = 0
    quantization: str | None = None
    n_ctx_train: int | None = None
    template: str = "none"
    tokenizer: str | None = None
    tokenizer_pre: str | None = None
    n_vocab: int | None = None
    memory: str = "unknown"
    kv_elements: int | None = None
    missing_bytes: int = 0


def facts_of(header: Header, size_bytes: int) -> Facts:
    """Return what a header says about a file of this size."""
    metadata = header.metadata
    architecture = _text(metadata, "general.architecture")
    tokens = metadata.get("tokenizer.ggml.tokens")
    return Facts(
        size_bytes=size_bytes,
        kind=_kind(metadata, architecture),
        title=_text(metadata, "general.name"),
        architecture=architecture,
        n_params=sum(header.params_by_type.values()),
        quantization=_quantization(header),
        n_ctx_train=_whole(metadata, f"{architecture}.context_length"),
        template=template_kind(metadata.get("tokenizer.chat_template")),
        tokenizer=_text(metadata, "tokenizer.ggml.model"),
        tokenizer_pre=_text(metadata, "tokenizer.ggml.pre"),
        n_vocab=tokens.n if isinstance(tokens, Skipped) else _whole(metadata, f"{architecture}.vocab_size"),
        memory=_memory(metadata, architecture or ""),
        kv_elements=_kv_elements(metadata, architecture or ""),
        missing_bytes=max(0, (header.size_bytes or 0) - size_bytes),
    )


def together(parts: Iterable[Facts]) -> Facts:
    """Return the facts of a split model: the first file has the metadata, all of them have tensors."""
    first, *others = parts
    n_params = first.n_params + sum(part.n_params for part in others)
    # A first file may hold metadata alone.
    quantization = first.quantization or next((part.quantization for part in others if part.quantization), None)
    return replace(
        first,
        size_bytes=first.size_bytes + sum(part.size_bytes for part in others),
        n_params=n_params,
        quantization=quantization,
        missing_bytes=first.missing_bytes + sum(part.missing_bytes for part in others),
    )


def template_kind(template: object) -> str:
    """Name a chat template by its markers: `none` without one, `other` if none of them is in it."""
    if not isinstance(template, str) or not template.strip():
        return "none"
    return next((kind for kind, markers in _TEMPLATES if all(marker in template for marker in markers)), "other")


class FactsCache:
    """Facts by file, kept in one small file; a file that changed is read again. Not for several threads."""

    def __init__(self, cache_dir: Path) -> None:
        self._path = cache_dir / "models" / "facts.json"
        self._has_news = False
        self._known: dict[str, Any] = {}
        try:
            kept = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return
        if isinstance(kept, dict) and kept.get("version") == _VERSION and isinstance(kept.get("files"), dict):
            self._known = kept["files"]

    def facts(self, path: Path) -> Facts:
        """Return the facts of a file. Raises `ModelError` in one sentence if it cannot be used."""
        try:
            stat = path.stat()
        except OSError as exc:
            raise ModelError(f"{path.name} cannot be read: {exc.strerror or exc}.") from exc
        identity = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
        known = self._known.get(str(path))
        if isinstance(known, dict) and known.get("identity") == identity:
            error, facts = known.get("error"), _facts_from(known.get("facts"))
            if isinstance(error, str):
                raise ModelError(error)
            if facts:
                return facts
        try:
            facts = facts_of(read_header(path), stat.st_size)
        except ModelError as exc:
            # What the system refused is asked again: rights change without a trace in the file.
            if not isinstance(exc.__cause__, OSError):
                self._learn(path, {"identity": identity, "error": str(exc)})
            raise
        self._learn(path, {"identity": identity, "facts": asdict(facts)})
        return facts

    def save(self) -> None:
        """Keep what was learned; failing to do so is not an error."""
        if self._has_news:
            newest = dict(list(self._known.items())[-_MAX_KNOWN:])
            write_atomically(self._path, json.dumps({"version": _VERSION, "files": newest}).encode())
            self._has_news = False

    def _learn(self, path: Path, what: dict[str, Any]) -> None:
        self._known.pop(str(path), None)
        self._known[str(path)] = what
        self._has_news = True


_TYPES = {field.name: (int if "int" in str(field.type) else str, "None" in str(field.type)) for field in fields(Facts)}


def _facts_from(kept: object) -> Facts | None:
    """What the cache holds, None if anything in it is not what was written."""
    if not isinstance(kept, dict) or kept.keys() != _TYPES.keys():
        return None
    for name, (kind, is_optional) in _TYPES.items():
        if type(kept[name]) is not kind and not (is_optional and kept[name] is None):
            return None
    return Facts(**kept)


# --- metadata ---


def _text(metadata: Mapping[str, Value], key: str) -> str | None:
    value = metadata.get(key)
    return value[:_MAX_TITLE] if isinstance(value, str) and value else None


def _whole(metadata: Mapping[str, Value], key: str) -> int | None:
    value = metadata.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _MAX_NUMBER else None


def _layers(metadata: Mapping[str, Value], key: str, n_layers: int) -> list[int] | None:
    """A number for each layer, from one number or an array of them."""
    value = metadata.get(key)
    if isinstance(value, tuple):
        numbers = [number for number in value if isinstance(number, int) and 0 <= number <= _MAX_NUMBER]
        return numbers if len(numbers) == n_layers else None
    number = _whole(metadata, key)
    return None if number is None else [number] * n_layers


def _kind(metadata: Mapping[str, Value], architecture: str | None) -> str:
    if architecture == "clip":
        return "mmproj"
    return _text(metadata, "general.type") or MODEL


def _quantization(header: Header) -> str | None:
    file_type = _whole(header.metadata, "general.file_type")
    if file_type is not None and (name := _FILE_TYPES.get(file_type & ~_GUESSED)):
        return name
    counts = Counter(header.params_by_type).most_common(1)
    return counts[0][0] if counts else None


def _memory(metadata: Mapping[str, Value], architecture: str) -> str:
    """As llama.cpp treats the architecture; `unknown` unless that is certain."""
    kind = _MEMORY.get(architecture, "unknown")
    window = _whole(metadata, f"{architecture}.attention.sliding_window")
    if kind == "dense":
        return "unknown" if window else kind
    if kind == "sliding window":
        return kind if window or (window is None and architecture in _WINDOW_UNSAID) else "unknown"
    return kind


def _kv_elements(metadata: Mapping[str, Value], architecture: str) -> int | None:
    """Numbers that one token adds to the KV cache: the sum over layers of KV heads x (key width + value width)."""
    if _MEMORY.get(architecture) == "recurrent":
        return 0
    n_layers = _whole(metadata, f"{architecture}.block_count")
    if not n_layers or n_layers > _MAX_KNOWN:
        return None
    heads = _layers(metadata, f"{architecture}.attention.head_count", n_layers)
    said = f"{architecture}.attention.head_count_kv"
    kv_heads = _layers(metadata, said, n_layers) if said in metadata else heads
    if heads is None or kv_heads is None or (kv_heads := _attending(metadata, architecture, kv_heads)) is None:
        return None
    width = _whole(metadata, f"{architecture}.embedding_length") or 0
    default = width // max(*heads, 1)
    widths = [_whole(metadata, f"{architecture}.attention.{name}_length") or default for name in ("key", "value")]
    local = [_whole(metadata, f"{architecture}.attention.{name}_length_swa") for name in ("key", "value")]
    if local == [None, None]:
        return sum(kv_heads) * sum(widths) if all(widths) else None
    # Layers with a window have another width; which ones, an array says.
    pattern = metadata.get(f"{architecture}.attention.sliding_window_pattern")
    if not isinstance(pattern, tuple) or len(pattern) < len(kv_heads):
        return None
    local_width = sum(own or other for own, other in zip(local, widths, strict=True))
    return sum(n * (local_width if is_local else sum(widths)) for n, is_local in zip(kv_heads, pattern, strict=False))


def _attending(metadata: Mapping[str, Value], architecture: str, kv_heads: list[int]) -> list[int] | None:
    """KV heads of the layers that keep rows of their own; None where the header does not say which ones do."""
    # The last layers of some models use the rows of earlier ones.
    shared = _whole(metadata, f"{architecture}.attention.shared_kv_layers") or 0
    own = kv_heads[: max(0, len(kv_heads) - shared)]
    is_said = isinstance(metadata.get(f"{architecture}.attention.head_count_kv"), tuple)
    if _MEMORY.get(architecture) != "hybrid" or architecture == "falcon-h1" or is_said:
        return own
    interval = _whole(metadata, f"{architecture}.full_attention_interval")
    return own[interval - 1 :: interval] if interval else None
