"""The container of one KV segment: fixed header, token ids, payload, and a keyed MAC over all of it."""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

MAGIC = b"CHATKV\x00\x01"
# magic, MAC key id, fingerprint, parent key, start position, tokens, payload bytes; then the MAC.
_FIELDS = struct.Struct("<8s8s32s32sIIQ")
_MAC_BYTES = 32
HEADER_BYTES = _FIELDS.size + _MAC_BYTES
_MAX_TOKENS = 1 << 24

Buffer = bytes | bytearray | memoryview


class SegmentDamaged(Exception):
    """A segment file is not what its name and key promise; the message says in which way."""


class SegmentForeign(Exception):
    """A segment of another data directory's MAC key: not ours, but not damaged either."""


@dataclass(frozen=True, slots=True)
class SegmentId:
    """Where a segment stands: tokens `[start, start + len(tokens))` of the chain that ends in `parent`."""

    fingerprint: bytes
    parent: bytes
    start: int
    tokens: tuple[int, ...]

    @property
    def key(self) -> bytes:
        """SHA-256 over the parent's key, the start position and the token ids (32 bytes).

        The parent is part of it: the same tokens under another prefix have other KV rows.
        """
        head = b"chatapp-kv-1\0" + self.parent + struct.pack("<II", self.start, len(self.tokens))
        return hashlib.sha256(head + pack_tokens(self.tokens)).digest()

    @property
    def end(self) -> int:
        """Position behind the last token."""
        return self.start + len(self.tokens)


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian u32."""
    packed = array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_tokens(data: Buffer) -> tuple[int, ...]:
    """The inverse of `pack_tokens`."""
    unpacked = array("I")
    unpacked.frombytes(bytes(data))
    if sys.byteorder == "big":
        unpacked.byteswap()
    return tuple(unpacked)


def key_id(mac_key: bytes) -> bytes:
    """Public name of a MAC key (8 bytes)."""
    return hashlib.sha256(b"chatapp-key-id\0" + mac_key).digest()[:8]


def _mac(mac_key: bytes, head: Buffer, body: Buffer) -> bytes:
    hasher = blake3(key=mac_key)
    hasher.update(head)
    hasher.update(body)
    return hasher.digest()


def write_segment(path: Path, segment: SegmentId, payload: Buffer, mac_key: bytes) -> int:
    """Write the file under a temporary name, rename it into place; returns its size in bytes. Raises OSError.

    Not synced: a torn file is a miss, found by its MAC, and costs a prefill, never a word.
    """
    fields = _FIELDS.pack(
        MAGIC,
        key_id(mac_key),
        segment.fingerprint,
        segment.parent,
        segment.start,
        len(segment.tokens),
        len(payload),
    )
    tokens = pack_tokens(segment.tokens)
    hasher = blake3(key=mac_key)
    for part in (fields, tokens, payload):
        hasher.update(part)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            for part in (fields, hasher.digest(), tokens, payload):
                file.write(part)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return HEADER_BYTES + len(tokens) + len(payload)


def read_segment(path: Path, expected: SegmentId, mac_key: bytes, allocate: Callable[[int], memoryview]) -> memoryview:
    """Read once into memory from `allocate` (bytes -> writable view), verify there, return the payload as a view of it.

    Interval map of the file: [0, 128) header, [128, 128 + 4n) token ids, the rest payload. Lengths are checked against
    the file's size before anything is allocated. Raises `SegmentDamaged`, `SegmentForeign` or OSError.
    """
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(fd, "rb", buffering=0) as file:
        size = os.fstat(fd).st_size
        head = file.read(HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            raise SegmentDamaged("shorter than its header")
        magic, owner, fingerprint, parent, start, n_tokens, n_payload = _FIELDS.unpack(head[: _FIELDS.size])
        if magic != MAGIC:
            raise SegmentDamaged("not a segment of this version")
        if owner != key_id(mac_key):
            raise SegmentForeign("written under another key")
        if n_tokens > _MAX_TOKENS or size != HEADER_BYTES + 4 * n_tokens + n_payload or n_payload == 0:
            raise SegmentDamaged("its length is not what its header says")
        if (fingerprint, parent, start, n_tokens) != (
            expected.fingerprint,
            expected.parent,
            expected.start,
            len(expected.tokens),
        ):
            raise SegmentDamaged("it belongs to another place")
        n_body = size - HEADER_BYTES
        body = allocate(n_body)
        done = 0
        while done < n_body:
            got = file.readinto(body[done:])
            if not got:
                raise SegmentDamaged("it ended early")
            done += got
    if _mac(mac_key, head[: _FIELDS.size], body) != head[_FIELDS.size :]:
        raise SegmentDamaged("its checksum does not match")
    if bytes(body[: 4 * n_tokens]) != pack_tokens(expected.tokens):
        raise SegmentDamaged("its tokens are not the expected ones")
    return body[4 * n_tokens :]
