"""What a KV segment depends on, field by field; two runs may share KV only if every field is equal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from blake3 import blake3

from models.cachefile import write_atomically

_CHUNK = 1 << 24


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Every input that changes the bytes or the meaning of a KV row. Field names are what a user reads on a miss."""

    weights: str
    llama_build: str
    architecture: str
    layers: int
    kv_heads: int
    head_width: int
    type_k: str
    type_v: str
    flash_attention: bool
    rope_base: float
    rope_scale: float
    sliding_window: int
    gpu_layers: int

    def digest(self) -> bytes:
        """SHA-256 over the named fields in canonical JSON (32 bytes): the root key of this generation's chains."""
        return hashlib.sha256(b"chatapp-fingerprint-1\0" + self.to_json().encode()).digest()

    def to_json(self) -> str:
        """The fields as canonical JSON."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    def difference(self, other_json: str) -> list[str]:
        """Names of the fields in which a stored generation differs, readable."""
        other = json.loads(other_json)
        mine = asdict(self)
        return [f.name.replace("_", " ") for f in fields(self) if mine[f.name] != other.get(f.name)]


def weights_hash(path: Path, cache_dir: Path, progress: Callable[[int, int], None]) -> str:
    """BLAKE3 of the model file, hex; computed once and remembered by path, size, mtime and inode.

    `progress` receives (bytes done, bytes total). A file changed in place gets a new mtime or inode and is hashed anew.
    """
    stat = path.stat()
    identity = f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ino}"
    note = cache_dir / "weights" / (hashlib.sha256(identity.encode()).hexdigest() + ".txt")
    try:
        known = note.read_text()
        if len(bytes.fromhex(known)) == 32:
            return known
    except (OSError, ValueError):
        pass
    hasher = blake3()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
            done += len(chunk)
            progress(done, stat.st_size)
    digest = hasher.hexdigest()
    write_atomically(note, digest.encode())
    return digest
