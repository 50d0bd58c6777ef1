"""GGUF headers for tests, part by part, so that each part can be wrong."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10

Simple: TypeAlias = "int | float | bool | str | list[int] | list[str] | list[bool]"


def string(text: str | bytes) -> bytes:
    """A text behind its length."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(plain: Simple) -> bytes:
    """A value behind its type: whole numbers are 32 bits wide."""
    match plain:
        case bool():
            return struct.pack("<I?", BOOL, plain)
        case int():
            return struct.pack("<II", U32, plain)
        case float():
            return struct.pack("<If", F32, plain)
        case str():
            return struct.pack("<I", STRING) + string(plain)
        case list():
            return struct.pack("<I", ARRAY) + _array(plain)


def _array(items: Sequence[object]) -> bytes:
    match items[0]:
        case str():
            return struct.pack("<IQ", STRING, len(items)) + b"".join(string(str(item)) for item in items)
        case bool():
            return struct.pack(f"<IQ{len(items)}?", BOOL, len(items), *items)
        case _:
            return struct.pack(f"<IQ{len(items)}I", U32, len(items), *items)


def tensor(name: str, shape: Iterable[int], kind: int = 0, offset: int = 0) -> bytes:
    """What a header says of a tensor."""
    lengths = list(shape)
    return string(name) + struct.pack(f"<I{len(lengths)}QIQ", len(lengths), *lengths, kind, offset)


def gguf(
    metadata: Mapping[str, Simple] | None = None,
    tensors: Iterable[bytes] = (),
    *,
    raw: bytes = b"",
    n_raw: int = 0,
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    data: bytes = b"",
) -> bytes:
    """A file: metadata, `n_raw` more keys as they are, tensors, data."""
    keys = [string(key) + value(plain) for key, plain in (metadata or {}).items()]
    infos = list(tensors)
    n_keys = len(keys) + n_raw if n_keys is None else n_keys
    n_tensors = len(infos) if n_tensors is None else n_tensors
    head = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys) + b"".join(keys) + raw + b"".join(infos)
    return head + bytes(-len(head) % 32) + data if data else head


def llama(**more: Simple) -> dict[str, Simple]:
    """The metadata of a small dense model; `attention__x` is the key `llama.attention.x`."""
    own = {"context_length": 4096, "block_count": 2, "embedding_length": 64, "attention__head_count": 2}
    mine = {f"llama.{key.replace('__', '.')}": plain for key, plain in {**own, **more}.items()}
    return {"general.architecture": "llama", **mine}
