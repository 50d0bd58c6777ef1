import contextlib
import os
import random
import struct
import tracemalloc
from io import FileIO
from pathlib import Path
from typing import Any

import gguf as reference
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import gguf_header
from models.errors import ModelError
from models.gguf_header import MAX_KEPT, MAX_KEPT_NUMBERS, TENSOR_TYPES, Header, Skipped, read_header
from tests.models import tiny_models
from tests.models.ggufs import ARRAY, STRING, U32, gguf, string, tensor
from tests.models.helpers import starter

HUGE = (2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)


def read(folder: Path, data: bytes) -> Header:
    """Read a header made of these bytes."""
    path = folder / "m.gguf"
    path.write_bytes(data)
    return read_header(path)


def refusal(folder: Path, data: bytes) -> str:
    """The one sentence in which these bytes are refused."""
    with pytest.raises(ModelError) as raised:
        read(folder, data)
    sentence = str(raised.value)
    assert sentence.startswith("m.gguf ")
    assert sentence.endswith(".")
    assert len(sentence.splitlines()) == 1
    return sentence


# --- what is read ---


def as_kept(field: Any) -> object:
    """A field of the gguf package as this reader keeps it."""
    value = field.contents()
    if not isinstance(value, list):
        return value
    is_kept = len(value) <= MAX_KEPT_NUMBERS and not (value and isinstance(value[0], str))
    return tuple(value) if is_kept else Skipped(len(value))


@pytest.mark.parametrize("kind", [*tiny_models.KINDS, tiny_models.UNKNOWN])
def test_it_reads_what_the_gguf_package_reads(tmp_path: Path, kind: str) -> None:
    """Metadata, tensors and size, for a model of each kind of memory."""
    path = tiny_models.build(kind, tmp_path)
    found, known = read_header(path), reference.GGUFReader(path)
    assert found.metadata == {key: as_kept(field) for key, field in known.fields.items() if not key.startswith("GGUF.")}
    assert found.n_tensors == len(known.tensors)
    assert sum(found.params_by_type.values()) == sum(int(one.n_elements) for one in known.tensors)
    assert sum(found.bytes_by_part.values()) == sum(int(one.n_bytes) for one in known.tensors)
    assert found.size_bytes is not None
    assert found.size_bytes <= path.stat().st_size < found.size_bytes + 64


def test_it_reads_the_starter() -> None:
    """A real file, whose size is exactly what the header says."""
    found = read_header(starter())
    assert found.metadata["general.architecture"] == "llama"
    assert found.metadata["tokenizer.ggml.tokens"] == Skipped(49_152)
    assert found.size_bytes == starter().stat().st_size


def test_the_tensor_types_are_those_of_the_gguf_package() -> None:
    """Names, elements and bytes of a block."""
    for kind, (elements, n_bytes) in reference.GGML_QUANT_SIZES.items():
        assert TENSOR_TYPES[kind.value] == (kind.name, elements, n_bytes)


def test_all_kinds_of_values_are_read(tmp_path: Path) -> None:
    """Each scalar type, arrays of each, and texts that are not UTF-8."""
    layouts = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 7: "?", 10: "Q", 11: "q", 12: "d"}
    raw = b"".join(string(f"k{kind}") + struct.pack(f"<I{letter}", kind, 1) for kind, letter in layouts.items())
    raw += b"".join(
        string(f"a{kind}") + struct.pack(f"<IIQ2{letter}", ARRAY, kind, 2, 0, 1) for kind, letter in layouts.items()
    )
    raw += string("text") + struct.pack("<I", STRING) + string(b"\xffa\0")
    found = read(tmp_path, gguf(raw=raw, n_raw=2 * len(layouts) + 1)).metadata
    assert [found[f"k{kind}"] for kind in layouts] == [1] * len(layouts)
    assert [found[f"a{kind}"] for kind in layouts] == [(0, 1)] * len(layouts)
    assert found["text"] == "\ufffda\0"


def test_version_2_is_read(tmp_path: Path) -> None:
    """It has the same layout."""
    assert read(tmp_path, gguf({"a": 1}, version=2)).metadata == {"a": 1}


def test_a_header_without_tensors_has_a_size(tmp_path: Path) -> None:
    """The first file of a split model may hold metadata alone."""
    found = read(tmp_path, gguf({"a": 1}))
    assert (found.n_tensors, found.size_bytes) == (0, (tmp_path / "m.gguf").stat().st_size)


def test_an_unknown_tensor_type_leaves_the_size_open(tmp_path: Path) -> None:
    """Files of a newer llama.cpp are listed all the same."""
    found = read(tmp_path, gguf({}, [tensor("a", [32], 0), tensor("b", [64], 999)]))
    assert found.size_bytes is None
    assert found.params_by_type == {"F32": 32, "unknown": 64}


def test_the_alignment_counts(tmp_path: Path) -> None:
    """The data begins at a multiple of it."""
    assert read(tmp_path, gguf({"general.alignment": 4096}, [tensor("a", [8])])).size_bytes == 4096 + 32


@pytest.mark.parametrize("block", [64, 1000, 1 << 20])
@given(seed=st.integers(0, 2**32), n=st.integers(0, 3000))
def test_any_vocabulary_is_stepped_over(
    tmp_path_factory: pytest.TempPathFactory, block: int, seed: int, n: int
) -> None:
    """Short and long texts, also with zeros in them, wherever the blocks that are read end."""
    rng = random.Random(seed)
    lengths = [rng.choice([0, 1, 5, 6, 7, 63, 64, 65, 255, 256, 300]) if rng.random() < 0.05 else 4 for _ in range(n)]
    texts = b"".join(string(rng.choice([b"\0", b"x", b"\x05"]) * length) for length in lengths)
    raw = string("list") + struct.pack("<IIQ", ARRAY, STRING, n) + texts
    path = tmp_path_factory.mktemp("g") / "m.gguf"
    path.write_bytes(gguf(raw=raw + string("z") + struct.pack("<II", U32, 7), n_raw=2))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gguf_header, "_BLOCK", block)
        assert read_header(path).metadata == {"list": Skipped(n), "z": 7}


def test_long_texts_and_arrays_are_not_kept(tmp_path: Path) -> None:
    """A text is cut, an array counted."""
    found = read(tmp_path, gguf({"long": "x" * (MAX_KEPT + 5), "many": [1] * (MAX_KEPT_NUMBERS + 1), "last": 3}))
    assert found.metadata == {"long": "x" * MAX_KEPT, "many": Skipped(MAX_KEPT_NUMBERS + 1), "last": 3}


# --- what is refused ---


def test_every_cut_is_one_sentence(tmp_path: Path) -> None:
    """A file that ends anywhere in its header."""
    whole = gguf(
        {"general.architecture": "llama", "n": 1, "list": ["a", "bb"] * 600, "few": [1, 2]}, [tensor("t", [2, 3])]
    )
    cuts = {*range(60), *range(60, len(whole), 61), *range(len(whole) - 90, len(whole))}
    for n in cuts:
        refusal(tmp_path, whole[:n])
    read(tmp_path, whole)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is not a GGUF model file"),
        (b"GGU", "is not a GGUF model file"),
        (b"GGML" + bytes(100), "is not a GGUF model file"),
        (b"<html>" + bytes(100), "is not a GGUF model file"),
        (gguf(version=1), "is a GGUF of version 1"),
        (gguf(version=4), "is a GGUF of version 4"),
        (gguf(version=0), "is a GGUF of version 0"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (gguf({"general.alignment": 0}), "alignment"),
        (gguf({"general.alignment": 3}), "alignment"),
        (gguf({"general.alignment": 2**31}), "alignment"),
        (gguf({"general.alignment": "big"}), "alignment"),
        (gguf(raw=2 * (string("a") + struct.pack("<II", U32, 1)), n_raw=2), "a key twice"),
        (gguf(raw=string("a") + struct.pack("<IQ", 13, 1), n_raw=1), "a value of type 13"),
        (gguf(raw=string("a") + struct.pack("<IIQ", ARRAY, 14, 1), n_raw=1), "a value of type 14"),
        (gguf({}, [tensor("t", [1] * 5)]), "5 dimensions"),
        (gguf({}, [tensor("t", [33], 12)]), "no whole blocks"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, data: bytes, sentence: str) -> None:
    """One sentence with the file and the reason."""
    assert sentence in refusal(tmp_path, data)


@pytest.mark.parametrize("n", HUGE)
def test_huge_counts_are_refused(tmp_path: Path, n: int) -> None:
    """Of keys, tensors, elements and bytes: more than the file can hold."""
    pad = bytes(64)
    for data in (
        gguf(n_keys=n) + pad,
        gguf(n_tensors=n) + pad,
        gguf(raw=struct.pack("<Q", n), n_raw=1) + pad,
        gguf(raw=string("a") + struct.pack("<IQ", STRING, n), n_raw=1) + pad,
        gguf(raw=string("a") + struct.pack("<IIQ", ARRAY, STRING, n), n_raw=1) + pad,
        gguf(raw=string("a") + struct.pack("<IIQQ", ARRAY, STRING, 3, n), n_raw=1) + pad,
        gguf(raw=string("a") + struct.pack("<IIQQ", ARRAY, STRING, 2000, n), n_raw=1) + pad,
        gguf(raw=string("a") + struct.pack("<IIQ", ARRAY, 12, n), n_raw=1) + pad,
        gguf({}, [struct.pack("<Q", n)], n_tensors=1) + pad,
    ):
        refusal(tmp_path, data)


def test_a_tensor_of_any_size_is_only_counted(tmp_path: Path) -> None:
    """Nothing is allocated for it; the file is too short for it, and that can be seen."""
    found = read(tmp_path, gguf({}, [tensor("t", [2**63] * 4, 0, 2**64 - 1)]))
    assert found.size_bytes is not None
    assert found.size_bytes > 2**250


@pytest.mark.parametrize("depth", [1, 2, 1000, 100_000])
def test_arrays_of_arrays_are_refused(tmp_path: Path, depth: int) -> None:
    """However deep they are."""
    nested = struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQI", U32, 1, 1)
    assert "array of arrays" in refusal(tmp_path, gguf(raw=string("a") + nested, n_raw=1))


@pytest.mark.skipif(os.name != "posix", reason="a file with a hole of terabytes")
@pytest.mark.parametrize("n", [2**31, 2**63, 4_000_000])
def test_a_file_of_terabytes_is_not_read(tmp_path: Path, n: int) -> None:
    """What it claims to hold it does hold, all zeros: the work is bounded all the same, and the memory."""
    path = tmp_path / "m.gguf"
    for raw in (
        string("a") + struct.pack("<IIQ", ARRAY, STRING, n),
        string("a") + struct.pack("<IQ", STRING, n),
        string("a") + struct.pack("<IIQ", ARRAY, U32, n),
    ):
        path.write_bytes(gguf(raw=raw, n_keys=60_000, n_tensors=200_000))
        os.truncate(path, 2**40)
        tracemalloc.start()
        with pytest.raises(ModelError, match=r"^m\.gguf "):
            read_header(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 64 << 20


def test_many_long_texts_are_refused(tmp_path: Path) -> None:
    """Each may be kept, all of them together may not."""
    assert "texts" in refusal(tmp_path, gguf({f"k{i}": "x" * MAX_KEPT for i in range(20)}))


@given(seed=st.integers(0, 2**32))
def test_damaged_headers_never_fail_otherwise(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Any bytes changed anywhere: a header comes back, or one sentence."""
    rng = random.Random(seed)
    data = bytearray(
        gguf(
            {"general.architecture": "llama", "n": 1, "list": ["a", "bb"] * 20, "few": [1, 2], "x": 0.5},
            [tensor("t", [2, 3]), tensor("u", [256], 12)],
        )
    )
    for _ in range(rng.randint(1, 6)):
        data[rng.randrange(len(data))] = rng.choice([0, 1, 9, 0x7F, 0xFF, rng.randrange(256)])
    path = tmp_path_factory.mktemp("g") / "m.gguf"
    path.write_bytes(data)
    with contextlib.suppress(ModelError):
        read_header(path)


# --- what is no file ---


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file, a folder, a file whose owner says no."""
    with pytest.raises(ModelError, match=r"m\.gguf cannot be read: No such file"):
        read_header(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="is a folder"):
        read_header(tmp_path)

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "m.gguf").write_bytes(gguf())
    monkeypatch.setattr(gguf_header, "FileIO", denied)
    with pytest.raises(ModelError, match="cannot be read: Permission denied"):
        read_header(tmp_path / "m.gguf")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are POSIX's")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """It is no file, whatever its name says."""
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="is no file"):
        read_header(tmp_path / "m.gguf")


def test_a_file_that_shrinks_while_it_is_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is being replaced does."""

    class Shrinking(FileIO):
        def read(self, _n: int | None = -1) -> bytes:
            return b""

    monkeypatch.setattr(gguf_header, "FileIO", Shrinking)
    assert "cut short" in refusal(tmp_path, gguf({"a": 1}))
