"""The container of one part of a KV segment: fixed header, token ids, payload, and a keyed MAC over all of it."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Literal

from blake3 import blake3

FORMAT = 2
MAGIC = b"CHATKV\x00" + bytes([FORMAT])
Part = Literal["rows", "state"]
PARTS: tuple[Part, ...] = ("rows", "state")
# magic, MAC key id, fingerprint, parent key, part, start position, tokens, payload bytes; then the MAC.
_FIELDS = struct.Struct("<8s8s32s32sIIIQ")
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
    """Where a segment stands: tokens `[start, start + len(tokens))` of the chain that ends in `parent`.

    It has up to two parts, a file each: `rows`, the KV rows of its tokens, and `state`, what a recurrent memory
    holds behind its last token.
    """

    fingerprint: bytes
    parent: bytes
    start: int
    tokens: tuple[int, ...]

    @property
    def key(self) -> bytes:
        """SHA-256 over the parent's key, the start position and the token ids (32 bytes).

        The parent is part of it: the same tokens under another prefix have other KV rows.
        """
        head = b"chatapp-kv-2\0" + self.parent + struct.pack("<II", self.start, len(self.tokens))
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


def root_key(fingerprint: bytes, owner: bytes) -> bytes:
    """What the first segments of a generation have as parent (32 bytes).

    The MAC key's id is part of it, so that two data directories over one cache never meet in a file.
    """
    return hashlib.sha256(b"chatapp-kv-root\0" + fingerprint + owner).digest()


def write_segment(path: Path, segment: SegmentId, part: Part, payload: Buffer, mac_key: bytes) -> int:
    """Write the file under a temporary name, rename it into place; returns its size in bytes. Raises OSError.

    Not synced: a torn file is a miss, found by its MAC, and costs a prefill, never a word.
    """
    fields = _FIELDS.pack(
        MAGIC,
        key_id(mac_key),
        segment.fingerprint,
        segment.parent,
        PARTS.index(part),
        segment.start,
        len(segment.tokens),
        len(payload),
    )
    tokens = pack_tokens(segment.tokens)
    hasher = blake3(key=mac_key)
    for piece in (fields, tokens, payload):
        hasher.update(piece)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # A planted link or an old remnant must not be written through.
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            for piece in (fields, hasher.digest(), tokens, payload):
                file.write(piece)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return HEADER_BYTES + len(tokens) + len(payload)


@dataclass(frozen=True, slots=True)
class Head:
    """What a file says of itself, checked for consistency with its size, not yet against its MAC."""

    owner: bytes
    segment: SegmentId
    part: Part
    file_bytes: int


def read_head(path: Path) -> Head:
    """Read header and token ids only: what an index is rebuilt from. Raises `SegmentDamaged` or OSError."""
    with _opened(path) as file:
        fields = _read_fields(file)
        tokens = file.read(4 * fields.n_tokens)
        if len(tokens) != 4 * fields.n_tokens:
            raise SegmentDamaged("it ended early")
        segment = SegmentId(fields.fingerprint, fields.parent, fields.start, unpack_tokens(tokens))
        return Head(fields.owner, segment, fields.part, fields.file_bytes)


@dataclass(slots=True)
class ReadTimes:
    """Seconds spent on reading files and on verifying what was read, so far; of one thread at a time."""

    read_s: float = 0.0
    verify_s: float = 0.0

    def add(self, other: ReadTimes) -> None:
        """Add what another one has counted."""
        self.read_s += other.read_s
        self.verify_s += other.verify_s


def read_segment(
    path: Path,
    expected: SegmentId,
    part: Part,
    mac_key: bytes,
    allocate: Callable[[int], memoryview],
    times: ReadTimes | None = None,
) -> memoryview:
    """Read once into memory from `allocate` (bytes -> writable view), verify there, return the payload as a view of it.

    Interval map of the file: [0, 132) header, [132, 132 + 4n) token ids, the rest payload. Lengths are checked against
    the file's size before anything is allocated. What it took is added to `times`, if it succeeds. Raises
    `SegmentDamaged`, `SegmentForeign` or OSError.
    """
    begun = time.monotonic()
    with _opened(path) as file:
        fields = _read_fields(file)
        if fields.owner != key_id(mac_key):
            raise SegmentForeign("written under another key")
        if (fields.fingerprint, fields.parent, fields.start, fields.n_tokens, fields.part) != (
            expected.fingerprint,
            expected.parent,
            expected.start,
            len(expected.tokens),
            part,
        ):
            raise SegmentDamaged("it belongs to another place")
        n_body = fields.file_bytes - HEADER_BYTES
        body = allocate(n_body)
        done = 0
        while done < n_body:
            got = file.readinto(body[done:])
            if not got:
                raise SegmentDamaged("it ended early")
            done += got
    read_at = time.monotonic()
    hasher = blake3(key=mac_key)
    hasher.update(fields.packed)
    hasher.update(body)
    if hasher.digest() != fields.mac:
        raise SegmentDamaged("its checksum does not match")
    if bytes(body[: 4 * fields.n_tokens]) != pack_tokens(expected.tokens):
        raise SegmentDamaged("its tokens are not the expected ones")
    if times:
        times.add(ReadTimes(read_at - begun, time.monotonic() - read_at))
    return body[4 * fields.n_tokens :]


def check_segment(path: Path, mac_key: bytes, buffer: memoryview) -> Head:
    """Verify a whole file without keeping it, through a buffer of any size; returns what it says of itself.

    Raises `SegmentDamaged`, `SegmentForeign` or OSError.
    """
    with _opened(path) as file:
        fields = _read_fields(file)
        if fields.owner != key_id(mac_key):
            raise SegmentForeign("written under another key")
        tokens = file.read(4 * fields.n_tokens)
        hasher = blake3(key=mac_key)
        hasher.update(fields.packed)
        hasher.update(tokens)
        while n := file.readinto(buffer):
            hasher.update(buffer[:n])
    if hasher.digest() != fields.mac:
        raise SegmentDamaged("its checksum does not match")
    segment = SegmentId(fields.fingerprint, fields.parent, fields.start, unpack_tokens(tokens))
    return Head(fields.owner, segment, fields.part, fields.file_bytes)


@dataclass(frozen=True, slots=True)
class _Fields:
    packed: bytes
    mac: bytes
    owner: bytes
    fingerprint: bytes
    parent: bytes
    part: Part
    start: int
    n_tokens: int
    file_bytes: int


def _opened(path: Path) -> FileIO:
    """Unbuffered: what is read goes straight to the buffer it is verified in. A pipe planted there does not block."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        fd = os.open(path, flags)
    except OSError as exc:
        if exc.errno in (errno.ELOOP, errno.EMLINK):  # as systems say that a link is not followed
            raise SegmentDamaged("not a file") from exc
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise SegmentDamaged("not a file")
    return os.fdopen(fd, "rb", buffering=0)


def _read_fields(file: FileIO) -> _Fields:
    """The header, checked against the file's size. Raises `SegmentDamaged`."""
    n_bytes = os.fstat(file.fileno()).st_size
    head = file.read(HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        raise SegmentDamaged("shorter than its header")
    magic, owner, fingerprint, parent, part, start, n_tokens, n_payload = _FIELDS.unpack(head[: _FIELDS.size])
    if magic != MAGIC or part >= len(PARTS):
        raise SegmentDamaged("not a segment of this version")
    if n_tokens > _MAX_TOKENS or n_bytes != HEADER_BYTES + 4 * n_tokens + n_payload or n_payload == 0:
        raise SegmentDamaged("its length is not what its header says")
    packed, mac = head[: _FIELDS.size], head[_FIELDS.size :]
    return _Fields(packed, mac, owner, fingerprint, parent, PARTS[part], start, n_tokens, n_bytes)
