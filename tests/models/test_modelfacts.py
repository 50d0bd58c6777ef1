import ctypes
import json
import os
from pathlib import Path
from typing import Any

import gguf as reference
import pytest
from llama_cpp import llama_cpp as lib

from models import modelfacts
from models.errors import ModelError
from models.gguf_header import read_header
from models.llama import Model
from models.modelfacts import Facts, FactsCache, facts_of, template_kind, together
from tests.models import tiny_models
from tests.models.ggufs import Simple, gguf, llama, tensor
from tests.models.helpers import KV_BYTES_PER_TOKEN, starter

ASKS = {"hybrid": "llm_arch_is_hybrid", "recurrent": "llm_arch_is_recurrent"}


def facts(folder: Path, metadata: dict[str, Simple], *tensors: bytes) -> Facts:
    """The facts of a file with this header."""
    path = folder / "m.gguf"
    path.write_bytes(gguf(metadata, tensors))
    return facts_of(read_header(path), path.stat().st_size)


def of(architecture: str, **keys: Simple) -> dict[str, Simple]:
    """Metadata of an architecture; `attention__x` is the key `ARCHITECTURE.attention.x`."""
    own = {f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()}
    return {"general.architecture": architecture, **own}


# --- against llama.cpp, and by hand ---


@pytest.mark.parametrize("kind", [*tiny_models.KINDS, tiny_models.UNKNOWN])
def test_the_facts_are_those_llama_cpp_finds(tmp_path: Path, native_log: list[str], kind: str) -> None:
    """Memory kind, parameters, context, vocabulary and KV, for a model of each kind of memory."""
    assert native_log is not None
    path = tiny_models.build(kind, tmp_path)
    found = facts_of(read_header(path), path.stat().st_size)
    model = Model(path, gpu_layers=0, progress=lambda _share: None)
    try:
        assert found.memory == model.memory_kind
        assert (found.n_params, found.n_ctx_train, found.n_vocab) == (model.n_params, model.n_ctx_train, model.n_vocab)
        assert found.architecture == model.architecture
        if kind in ("dense", "moe", "sliding window"):
            assert found.kv_elements == model.kv_shape.bytes_per_token // 2
    finally:
        model.close()
    assert (found.template, found.tokenizer, found.tokenizer_pre) == ("chatml", "gpt2", "smollm")
    assert (found.kind, found.missing_bytes) == ("model", 0)


def test_layers_without_attention_have_no_kv(tmp_path: Path) -> None:
    """Two of the hybrid's four layers attend, with one head of 32; the recurrent one keeps no rows."""
    hybrid, recurrent = (tiny_models.build(kind, tmp_path) for kind in ("hybrid", "recurrent"))
    assert facts_of(read_header(hybrid), 0).kv_elements == 2 * (32 + 32)
    assert facts_of(read_header(recurrent), 0).kv_elements == 0


def test_the_starters_facts() -> None:
    """As its makers give them."""
    found = facts_of(read_header(starter()), starter().stat().st_size)
    assert found == Facts(
        size_bytes=starter().stat().st_size,
        title="Smollm2 135M 8k Lc100K Mix1 Ep2",
        architecture="llama",
        n_params=134_515_008,
        quantization="Q4_1",
        n_ctx_train=8192,
        template="chatml",
        tokenizer="gpt2",
        tokenizer_pre="smollm",
        n_vocab=49_152,
        memory="dense",
        kv_elements=KV_BYTES_PER_TOKEN // 2,
    )


def test_hybrid_and_recurrent_architectures_are_those_of_llama_cpp() -> None:
    """Asked of the library itself, through functions that it exports but does not document."""
    library = ctypes.CDLL(lib._lib._name)
    try:
        name = library["_Z13llm_arch_name8llm_arch"]
        asked = {kind: library[f"_Z{len(what)}{what}RK8llm_arch"] for kind, what in ASKS.items()}
    except AttributeError:
        pytest.skip("this build does not export them")
    name.restype = ctypes.c_char_p
    for ask in asked.values():
        ask.restype = ctypes.c_bool
    known: dict[str, set[str]] = {kind: set() for kind in asked}
    for number in range(400):
        for kind, ask in asked.items():
            if ask(ctypes.byref(ctypes.c_int(number))):
                known[kind].add(name(number).decode())
    assert known == {kind: set(modelfacts._ARCHITECTURES[kind].split()) for kind in asked}


# --- KV ---


def test_kv_is_counted_from_heads_and_widths(tmp_path: Path) -> None:
    """Widths default to the embedding's share of a head, KV heads to heads."""
    assert facts(tmp_path, llama()).kv_elements == 2 * 2 * (32 + 32)
    assert facts(tmp_path, llama(attention__head_count_kv=1)).kv_elements == 2 * 1 * (32 + 32)
    wide = llama(attention__head_count_kv=1, attention__key_length=192, attention__value_length=128)
    assert facts(tmp_path, wide).kv_elements == 2 * 1 * (192 + 128)


def test_an_array_has_the_kv_heads_of_each_layer(tmp_path: Path) -> None:
    """Zero where a layer has none."""
    assert facts(tmp_path, llama(attention__head_count_kv=[0, 2])).kv_elements == 2 * 64
    assert facts(tmp_path, llama(attention__head_count_kv=[1, 2, 3])).kv_elements is None


def test_layers_that_share_rows_are_not_counted(tmp_path: Path) -> None:
    """The last ones use those of earlier layers."""
    assert facts(tmp_path, llama(attention__shared_kv_layers=1)).kv_elements == 2 * 64


def test_layers_with_a_window_may_have_another_width(tmp_path: Path) -> None:
    """An array says which ones they are; without it nothing is claimed."""
    keys: dict[str, Simple] = {"attention__key_length": 64, "attention__value_length": 64}
    keys |= {"attention__key_length_swa": 32, "attention__value_length_swa": 16, "attention__head_count_kv": 1}
    pattern: dict[str, Simple] = {"attention__sliding_window_pattern": [True, False]}
    assert facts(tmp_path, llama(**keys, **pattern)).kv_elements == (32 + 16) + (64 + 64)
    assert facts(tmp_path, llama(**keys)).kv_elements is None


def test_a_hybrid_says_which_layers_attend(tmp_path: Path) -> None:
    """By an interval; where it says nothing, nothing is claimed; with some, all layers do both."""
    shape: dict[str, Simple] = {"block_count": 8, "embedding_length": 64, "attention__head_count": 2}
    assert facts(tmp_path, of("qwen35", **shape, full_attention_interval=4)).kv_elements == 2 * 2 * 64
    assert facts(tmp_path, of("qwen35", **shape)).kv_elements is None
    assert facts(tmp_path, of("falcon-h1", **shape)).kv_elements == 8 * 2 * 64


@pytest.mark.parametrize(
    "wrong",
    [
        {"llama.block_count": "two"},
        {"llama.block_count": 2**31},
        {"llama.block_count": 0},
        {"llama.block_count": True},
        {"llama.attention.head_count": 0.5},
        {"llama.embedding_length": [1, 2]},
        {"llama.embedding_length": 1},
    ],
)
def test_nonsense_is_unknown(tmp_path: Path, wrong: dict[str, Simple]) -> None:
    """A value of the wrong kind or size is as good as none."""
    assert facts(tmp_path, llama() | wrong).kv_elements is None


def test_an_empty_header_has_empty_facts(tmp_path: Path) -> None:
    """Everything may be missing."""
    found = facts(tmp_path, {})
    assert found == Facts(size_bytes=(tmp_path / "m.gguf").stat().st_size)


# --- words ---


@pytest.mark.parametrize(
    ("metadata", "memory"),
    [
        (of("llama"), "dense"),
        (of("qwen3moe"), "dense"),
        (of("phi3", attention__sliding_window=2047), "unknown"),
        (of("gemma3", attention__sliding_window=1024), "sliding window"),
        (of("gemma3"), "unknown"),
        (of("gemma2"), "sliding window"),
        (of("llama4"), "sliding window"),
        (of("llama4", attention__sliding_window=0), "unknown"),
        (of("gpt-oss", attention__sliding_window=128), "sliding window"),
        (of("jamba"), "hybrid"),
        (of("rwkv7"), "recurrent"),
        (of("of-next-year"), "unknown"),
        ({}, "unknown"),
    ],
)
def test_a_memory_kind_is_named_where_it_is_certain(tmp_path: Path, metadata: dict[str, Simple], memory: str) -> None:
    """From the architecture and its window."""
    assert facts(tmp_path, metadata).memory == memory


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        ("<|im_start|>{{ role }}", "chatml"),
        ("<|start_header_id|>", "llama3"),
        ("[INST] {{ x }} [/INST]", "mistral"),
        ("[INST] <<SYS>>", "other"),
        ("<start_of_turn>", "gemma"),
        ("<|user|>{{ x }}<|end|><|assistant|>", "phi"),
        ("<|im_start|>user<|im_sep|>", "phi"),
        ("<｜User｜>{{ x }}<｜Assistant｜>", "deepseek"),
        ("<|start|>assistant<|channel|>final", "gpt-oss harmony"),
        ("### Instruction", "other"),
        ("  \n", "none"),
        (None, "none"),
        (5, "none"),
    ],
)
def test_a_template_is_named_by_its_markers(template: object, kind: str) -> None:
    """Most are of a known kind."""
    assert template_kind(template) == kind


def test_the_file_type_names_the_quantization(tmp_path: Path) -> None:
    """As the converter meant it; else the type of most parameters; else nothing."""
    tensors = (tensor("norm", [64], 0), tensor("a", [256, 4], 12))
    assert facts(tmp_path, {"general.file_type": 15}, *tensors).quantization == "Q4_K_M"
    assert facts(tmp_path, {"general.file_type": 1024 + 17}, *tensors).quantization == "Q5_K_M"
    assert facts(tmp_path, {"general.file_type": 999}, *tensors).quantization == "Q4_K"
    assert facts(tmp_path, {}, *tensors).quantization == "Q4_K"


def test_the_file_types_are_those_of_the_gguf_package() -> None:
    """By number."""
    known = {
        kind.value: kind.name.removeprefix("ALL_").removeprefix("MOSTLY_")
        for kind in reference.LlamaFileType
        if kind.name != "GUESSED"
    }
    assert known.items() <= modelfacts._FILE_TYPES.items()


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        ({"general.type": "adapter"}, "adapter"),
        ({"general.type": "mmproj"}, "mmproj"),
        ({"general.architecture": "clip"}, "mmproj"),
        ({"general.type": "model"}, "model"),
        ({"general.type": 1}, "model"),
    ],
)
def test_parts_of_models_are_told_apart(tmp_path: Path, metadata: dict[str, Simple], kind: str) -> None:
    """Projectors and adapters are GGUF files too."""
    assert facts(tmp_path, metadata).kind == kind


def test_the_parts_of_a_split_model_are_added_up() -> None:
    """The first has the metadata."""
    first = Facts(size_bytes=10, architecture="llama", n_params=1, template="chatml")
    second = Facts(size_bytes=20, n_params=5, quantization="Q8_0", missing_bytes=3)
    assert together([first, second]) == Facts(
        size_bytes=30, architecture="llama", n_params=6, template="chatml", quantization="Q8_0", missing_bytes=3
    )


# --- kept ---


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files whose header was read."""
    paths: list[Path] = []

    def read(path: Path) -> Any:
        paths.append(path)
        return read_header(path)

    monkeypatch.setattr(modelfacts, "read_header", read)
    return paths


def test_a_file_is_read_once(tmp_path: Path, reads: list[Path]) -> None:
    """Facts, and what is wrong with a file, outlast the process."""
    good, bad = tmp_path / "é \udcff.gguf", tmp_path / "bad.gguf"
    good.write_bytes(gguf(llama()))
    bad.write_bytes(b"GGUF")
    found = []
    for _ in range(2):
        cache = FactsCache(tmp_path / "cache")
        found.append(cache.facts(good))
        with pytest.raises(ModelError, match=r"^bad\.gguf is cut short"):
            cache.facts(bad)
        cache.save()
    assert found[0] == found[1]
    assert reads == [good, bad]


def test_a_changed_file_is_read_again(tmp_path: Path, reads: list[Path]) -> None:
    """By size, time or inode."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(llama(context_length=1)))
    cache = FactsCache(tmp_path / "cache")
    assert cache.facts(path).n_ctx_train == 1
    before = path.stat()
    other = tmp_path / "other"
    other.write_bytes(gguf(llama(context_length=2)))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)
    assert path.stat().st_size == before.st_size
    assert cache.facts(path).n_ctx_train == 2
    assert len(reads) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda _kept: b"",
        lambda _kept: b"\xff",
        lambda _kept: b"[" * 100_000,
        lambda _kept: b"[]",
        lambda kept: kept.replace(b'"version": 1', b'"version": 2'),
        lambda kept: kept.replace(b'"files": {', b'"files": 1, "x": {'),
        lambda kept: kept.replace(b'"identity"', b'"other"'),
        lambda kept: kept.replace(b'"size_bytes": ', b'"size_bytes": null, "y": '),
        lambda kept: kept.replace(b'"n_params": 0', b'"n_params": "0"'),
        lambda kept: kept.replace(b'"facts": {', b'"facts": [], "x": {'),
    ],
)
def test_a_damaged_cache_is_computed_again(tmp_path: Path, reads: list[Path], damage: Any) -> None:
    """Nothing in it is believed that was not written so."""
    path, root = tmp_path / "m.gguf", tmp_path / "cache"
    path.write_bytes(gguf(llama()))
    cache = FactsCache(root)
    known = cache.facts(path)
    cache.save()
    kept = root / "models" / "facts.json"
    kept.write_bytes(damage(kept.read_bytes()))
    assert FactsCache(root).facts(path) == known
    assert len(reads) == 2


def test_what_the_system_refuses_is_asked_again(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights change without a trace in the file."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(llama()))
    cache = FactsCache(tmp_path / "cache")

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr("models.gguf_header.FileIO", denied)
        with pytest.raises(ModelError, match="Permission denied"):
            cache.facts(path)
    assert cache.facts(path).architecture == "llama"
    assert len(reads) == 2


def test_nothing_new_writes_nothing(tmp_path: Path) -> None:
    """The list is often asked for."""
    FactsCache(tmp_path / "cache").save()
    assert not (tmp_path / "cache").exists()


def test_the_cache_forgets_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays small."""
    monkeypatch.setattr(modelfacts, "_MAX_KNOWN", 2)
    cache = FactsCache(tmp_path / "cache")
    for name in "abc":
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(gguf())
        cache.facts(path)
    cache.save()
    kept = json.loads((tmp_path / "cache" / "models" / "facts.json").read_bytes())
    assert [Path(name).stem for name in kept["files"]] == ["b", "c"]
