"""What a KV segment depends on, field by field; two runs may share KV only if every field is equal."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from blake3 import blake3

from models.cachefile import write_atomically

_CHUNK = 1 << 24
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
# The binding pins one build of llama.cpp; asked of the package's metadata, so that no native code is loaded for it.
LLAMA_BUILD = f"llama-cpp-python {metadata.version('llama-cpp-python')}"
_READABLE = {
    "loras": "LoRA files and scales",
    "kv_format": "KV file format",
    "llama_build": "llama.cpp build",
    "kv_heads": "KV heads",
    "type_k": "KV type of K",
    "type_v": "KV type of V",
    "rope_base": "RoPE base",
    "rope_scale": "RoPE scale",
    "rope_scaling": "RoPE scaling",
    "yarn": "YaRN",
    "full_window_cache": "sliding window mode",
    "rotation": "KV rotation",
    "gpu_layers": "GPU layers",
}


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Every input that changes the bytes or the meaning of a KV row. Field names are what a user reads on a miss."""

    weights: str
    loras: str
    kv_format: int
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
    rope_scaling: str
    yarn: str
    sliding_window: int
    full_window_cache: bool
    rotation: bool
    tokenizer: str
    gpu_layers: int

    def digest(self) -> bytes:
        """SHA-256 over the named fields in canonical JSON (32 bytes): the root key of this generation's chains."""
        canonical = json.dumps(self.fields(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"chatapp-fingerprint-2\0" + canonical.encode()).digest()

    def fields(self) -> dict[str, Any]:
        """The fields by name, as JSON takes them."""
        return asdict(self)

    def difference(self, other: object) -> list[str]:
        """Names of the fields in which another generation's differ, readable; of what is no generation: none."""
        if not isinstance(other, dict):
            return []
        mine = asdict(self)
        return [
            _READABLE.get(f.name, f.name.replace("_", " ")) for f in fields(self) if mine[f.name] != other.get(f.name)
        ]


def model_files(path: Path) -> list[Path]:
    """Return the files a model consists of, in order: several where it is split; those that are there."""
    found = _SPLIT.search(path.name)
    if found is None:
        return [path]
    stem, total = path.name[: found.start()], found[2]
    parts = [path.with_name(f"{stem}-{n:05d}-of-{total}.gguf") for n in range(1, int(total) + 1)]
    return [part for part in parts if part.exists()]


def weights_hash(path: Path, cache_dir: Path, progress: Callable[[int, int], None]) -> str:
    """BLAKE3 of the model file, hex; of a split model, over the hashes of all its parts. Raises OSError.

    `progress` receives (bytes done, bytes total) of the part that is being read.
    """
    if _SPLIT.search(path.name) is None:
        return _file_hash(path, cache_dir, progress)
    hashes = [_file_hash(part, cache_dir, progress) for part in model_files(path)]
    return blake3("".join(hashes).encode()).hexdigest()


def known_weights_hash(path: Path, cache_dir: Path) -> str | None:
    """What `weights_hash` gives, if that needs no file to be read; else None."""
    hashes = [_known_hash(part, cache_dir) for part in model_files(path)]
    known = [one for one in hashes if one is not None]
    if not known or len(known) < len(hashes):
        return None
    return known[0] if _SPLIT.search(path.name) is None else blake3("".join(known).encode()).hexdigest()


def _file_hash(path: Path, cache_dir: Path, progress: Callable[[int, int], None]) -> str:
    """BLAKE3 of a file, hex; computed once and remembered by path, size, times and inode.

    `progress` receives (bytes done, bytes total). A file changed in place gets a new time or inode and is hashed anew.
    """
    if known := _known_hash(path, cache_dir):
        return known
    stat = path.stat()
    hasher = blake3()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
            done += len(chunk)
            progress(done, stat.st_size)
    digest = hasher.hexdigest()
    write_atomically(_hash_note(path, stat, cache_dir), digest.encode())
    return digest


def _known_hash(path: Path, cache_dir: Path) -> str | None:
    try:
        known = _hash_note(path, path.stat(), cache_dir).read_text()
        return known if len(bytes.fromhex(known)) == 32 else None
    except (OSError, ValueError):
        return None


def _hash_note(path: Path, stat: os.stat_result, cache_dir: Path) -> Path:
    # The change time cannot be set back by who edits a file in place and restores its modification time.
    identity = f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ino}\0{stat.st_ctime_ns}"
    return cache_dir / "weights" / (hashlib.sha256(identity.encode()).hexdigest() + ".txt")
