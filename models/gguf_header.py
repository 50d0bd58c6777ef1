"""Reads the header of a GGUF file: metadata and tensor shapes, without the vocabulary and without the weights.

Bounded in time and memory whatever the file says: what it counts is checked against what it holds, long arrays are
stepped over without making objects of them, and a header that no real model has is refused.
"""

from __future__ import annotations

import functools
import re
import stat
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Literal, TypeAlias

from models.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER = 256 << 20
"""Bytes. The largest vocabularies take 20 MB."""
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_STRINGS = 1 << 22
"""In arrays, together: four times the largest vocabulary with its merges."""
MAX_NAME = 1 << 16
MAX_KEPT = 1 << 20
"""Bytes of a text that are kept; a chat template has up to 30,000."""
MAX_KEPT_IN_ALL = 16 << 20
MAX_KEPT_NUMBERS = 4096
"""Elements of an array that is kept: those have one for each layer."""

_BLOCK = 1 << 20
_RUN = 512
_SHORT = 64
_STRING, _ARRAY = 8, 9
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SCALARS = {kind: struct.Struct("<" + letter) for kind, letter in _FORMATS.items()}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_MAX_DIMENSIONS = 4
_EXPERTS = re.compile(r"_exps(\.|$)")

TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
"""Name, elements of a block and bytes of a block, by number."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """An array that was stepped over: how many elements it has."""

    n: int


WeightPart: TypeAlias = 'Literal["lookup", "embedding", "output", "experts", "rest"]'
"""Tables of which a token reads one row; the embedding, which may also be the output; experts, few of which it uses."""

Value: TypeAlias = "int | float | str | tuple[int | float, ...] | Skipped"


@dataclass(frozen=True, slots=True)
class Header:
    """What the header says.

    Of `metadata`, texts are cut at `MAX_KEPT` bytes, arrays of up to `MAX_KEPT_NUMBERS` numbers are kept.
    `params_by_type` counts elements by the name of their tensors' type, `bytes_by_part` bytes by what they are for.
    `size_bytes` is what the whole file must have at least, None where a tensor has a type that is unknown here.
    """

    version: int
    metadata: Mapping[str, Value]
    n_tensors: int
    params_by_type: Mapping[str, int]
    size_bytes: int | None
    bytes_by_part: Mapping[WeightPart, int]


def read_header(path: Path) -> Header:
    """Read the header of a GGUF. Raises `ModelError` in one sentence if there is none that can be used."""
    try:
        # Looked at first: opening a pipe would wait for somebody to write into it.
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ModelError(f"{path.name} is {'a folder' if stat.S_ISDIR(found.st_mode) else 'no file'}.")
        with FileIO(path) as file:
            return _Reader(file, found.st_size, path.name).header()
    except OSError as exc:
        raise ModelError(f"{path.name} cannot be read: {exc.strerror or exc}.") from exc


class _Reader:
    """A window of the file, `[start, start + len(buffer))`, and a position in it that may lie behind its end."""

    def __init__(self, file: FileIO, size: int, name: str) -> None:
        self._file = file
        self._size = size
        self._name = name
        self._start = 0
        self._buffer = b""
        self._at = 0
        self._n_kept = 0
        self._n_strings = 0

    def header(self) -> Header:
        """Read all of it."""
        version = self._version()
        n_tensors, n_keys = self._u64(), self._u64()
        if n_tensors > MAX_TENSORS or n_keys > MAX_KEYS:
            raise self._damaged(f"it claims {max(n_tensors, n_keys):,} entries")
        metadata: dict[str, Value] = {}
        for _ in range(n_keys):
            key = self._text(MAX_NAME)
            if key in metadata:
                raise self._damaged("it has a key twice")
            metadata[key] = self._value()
        params: Counter[str] = Counter()
        parts: Counter[WeightPart] = Counter()
        end: int | None = 0
        for _ in range(n_tensors):
            part, type_name, n, n_bytes, offset = self._tensor()
            params[type_name] += n
            parts[part] += n_bytes or 0
            end = None if end is None or n_bytes is None else max(end, offset + n_bytes)
        start = self._start + self._at
        if start > self._size:
            raise self._cut_short()
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1) or alignment > MAX_HEADER:
            raise self._damaged("its alignment is not a power of two")
        data = -(-start // alignment) * alignment
        size = None if end is None else data + end if end else start
        return Header(version, metadata, n_tensors, dict(params), size, dict(parts))

    # --- parts ---

    def _version(self) -> int:
        if self._size < len(MAGIC) or self._take(len(MAGIC)) != MAGIC:
            raise ModelError(f"{self._name} is not a GGUF model file.")
        version = self._u32()
        if version in VERSIONS:
            return version
        if int.from_bytes(version.to_bytes(4, "little"), "big") in (1, *VERSIONS):
            raise ModelError(f"{self._name} is a GGUF for big-endian machines.")
        raise ModelError(f"{self._name} is a GGUF of version {version:,}; versions 2 and 3 can be read.")

    def _value(self) -> Value:
        kind = self._u32()
        if kind == _STRING:
            return self._text(None)
        if kind == _ARRAY:
            return self._array()
        return self._number(kind)

    def _array(self) -> Value:
        kind, n = self._u32(), self._u64()
        if kind == _STRING:
            self._skip_strings(n)
            return Skipped(n)
        layout = _SCALARS.get(kind)
        if layout is None:
            raise self._damaged("it has an array of arrays" if kind == _ARRAY else f"it has a value of type {kind:,}")
        if n > MAX_KEPT_NUMBERS:
            self._skip(n * layout.size)
            return Skipped(n)
        self._keep(n * 32)
        return struct.unpack(f"<{n}{_FORMATS[kind]}", self._take(n * layout.size))

    def _number(self, kind: int) -> int | float:
        layout = _SCALARS.get(kind)
        if layout is None:
            raise self._damaged(f"it has a value of type {kind:,}")
        number: int | float = layout.unpack(self._take(layout.size))[0]
        return number

    def _tensor(self) -> tuple[WeightPart, str, int, int | None, int]:
        """What it is for, type, elements, bytes (None if the type is unknown), where they begin behind the header."""
        part = _part(self._text(MAX_NAME, is_kept=False))
        n_dimensions = self._u32()
        if n_dimensions > _MAX_DIMENSIONS:
            raise self._damaged(f"it has a tensor of {n_dimensions:,} dimensions")
        n, width = 1, 1
        for i in range(n_dimensions):
            length = self._u64()
            width = width if i else length
            n *= length
        type_name, block, block_bytes = TENSOR_TYPES.get(self._u32(), ("", 0, 0))
        offset = self._u64()
        if not block:
            return part, "unknown", n, None, offset
        if width % block:
            raise self._damaged("it has a tensor whose rows are no whole blocks")
        return part, type_name, n, n // block * block_bytes, offset

    def _text(self, limit: int | None, *, is_kept: bool = True) -> str:
        """A text of at most `limit` bytes; without one, its beginning of at most `MAX_KEPT` bytes."""
        n = self._u64()
        if limit is not None and n > limit:
            raise self._damaged(f"it has a name of {n:,} bytes")
        n_kept = min(n, MAX_KEPT)
        if is_kept:
            self._keep(n_kept)
        text = self._take(n_kept).decode("utf-8", "replace")
        self._skip(n - n_kept)
        return text

    def _skip_strings(self, n: int) -> None:
        self._n_strings += n
        if self._n_strings > MAX_STRINGS:
            raise self._damaged(f"it has {self._n_strings:,} texts in arrays")
        length_at, short = _U64.unpack_from, _short_strings()
        left = n
        while left:
            if left >= _RUN and (run := short.match(self._buffer, self._at)):
                self._at = run.end()
                left -= _RUN
                continue
            buffer, at = self._buffer, self._at
            try:
                for _ in range(min(left, _RUN)):
                    at += length_at(buffer, at)[0] + 8
                    left -= 1
            except (struct.error, OverflowError):
                self._at = at
                self._need(8)
            else:
                self._at = at

    # --- bytes ---

    def _u32(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _u64(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def _take(self, n: int) -> bytes:
        if self._at + n > len(self._buffer):
            self._need(n)
        at = self._at
        self._at = at + n
        return self._buffer[at : at + n]

    def _skip(self, n: int) -> None:
        """Step over bytes; whether the file has them shows when something behind them is read."""
        self._at += n

    def _need(self, n: int) -> None:
        """Move the window so that the next `n` bytes (at most `MAX_KEPT`) are in it."""
        start = self._start + self._at
        if start + n > self._size:
            raise self._cut_short()
        if start + n > MAX_HEADER:
            raise self._damaged("it is longer than any model's")
        self._file.seek(start)
        self._start, self._at, self._buffer = start, 0, b""
        wanted = max(n, _BLOCK)
        while len(self._buffer) < n:
            # May be shorter than asked for, and than before: files change while they are downloaded.
            part = self._file.read(wanted - len(self._buffer))
            if not part:
                raise self._cut_short()
            self._buffer += part

    def _keep(self, n: int) -> None:
        self._n_kept += n
        if self._n_kept > MAX_KEPT_IN_ALL:
            raise self._damaged("its texts are longer than any model's")

    def _damaged(self, detail: str) -> ModelError:
        return ModelError(f"{self._name} has a damaged header: {detail}.")

    def _cut_short(self) -> ModelError:
        return ModelError(f"{self._name} is cut short or damaged: its header says more than the file holds.")


def _part(name: str) -> WeightPart:
    """What a tensor of this name is for, as llama.cpp names them."""
    match name:
        case "token_embd.weight":
            return "embedding"
        case "output.weight":
            return "output"
        case "per_layer_token_embd.weight" | "position_embd.weight" | "token_types.weight":
            return "lookup"
        case _:
            return "experts" if _EXPERTS.search(name) else "rest"


@functools.cache
def _short_strings() -> re.Pattern[bytes]:
    """Exactly `_RUN` texts below `_SHORT` bytes, each behind its length: stepped over in C, the commonest first."""
    lengths = sorted(range(_SHORT), key=lambda n: abs(n - 6))
    strings = b"|".join(b"\\x%02x\\x00{7}.{%d}" % (n, n) for n in lengths)
    return re.compile(b"(?s:%s){%d}+" % (strings, _RUN))
