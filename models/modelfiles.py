"""Where model files lie: chatapp's own folder, and what Ollama, LM Studio and the Hugging Face cache have.

Other programs' folders are read and never changed. What lies in them may be anything: nothing here waits, loops or
fails because of it.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Source = Literal["own", "starter", "Ollama", "LM Studio", "Hugging Face", "path"]

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.IGNORECASE | re.DOTALL)
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_OLLAMA_MODEL = "application/vnd.ollama.image.model"
_MAX_DEPTH = 6
_MAX_SEEN = 100_000
_MAX_SHARDS = 1000
_MAX_MANIFEST = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelFolders:
    """Where to look: the own folder, and the folders other programs may have; none of them has to exist."""

    own: Path
    ollama: tuple[Path, ...] = ()
    lm_studio: tuple[Path, ...] = ()
    hugging_face: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A model that was found: its name, its files as they were found (the first is what is loaded), missing files."""

    name: str
    source: Source
    files: tuple[Path, ...]
    missing: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The file that is loaded."""
        return self.files[0]


def own_entries(folder: Path) -> list[Entry]:
    """The models in the own folder, several links to one file too."""
    return list(_grouped(_files(folder), "own"))


def lm_studio_entries(folder: Path) -> Iterator[Entry]:
    """What lies in LM Studio's tree: `PUBLISHER/MODEL/FILE`."""
    return _grouped(_tree(folder), "LM Studio")


def ollama_entries(folder: Path) -> Iterator[Entry]:
    """What Ollama's manifests name: `manifests/HOST/NAMESPACE/MODEL/TAG`, each a list of blobs."""
    manifests = folder / "manifests"
    for host in filter(_is_folder, _scan(manifests)):
        for namespace in filter(_is_folder, _scan(manifests / host.name)):
            for model in filter(_is_folder, _scan(manifests / host.name / namespace.name)):
                for tag in _scan(manifests / host.name / namespace.name / model.name):
                    blob = _blob(Path(tag.path), folder / "blobs")
                    if blob:
                        yield Entry(_ollama_name(host.name, namespace.name, model.name, tag.name), "Ollama", (blob,))


def hugging_face_entries(folder: Path) -> Iterator[Entry]:
    """Of each repository in the cache: `models--ORG--REPO/snapshots/REVISION/...`, the newest revision of each file."""
    for repository in _scan(folder):
        if not repository.name.startswith("models--") or not _is_folder(repository):
            continue
        snapshots = [(_modified(entry), Path(entry.path)) for entry in _scan(Path(repository.path) / "snapshots")]
        seen: set[Path] = set()
        for _, snapshot in sorted(snapshots, reverse=True):
            for entry in _grouped(_tree(snapshot), "Hugging Face"):
                place = entry.path.relative_to(snapshot)
                if place not in seen:
                    seen.add(place)
                    yield entry


def entry_at(path: Path) -> Entry:
    """Return the model at a path, with all its files; nothing is read but the names around it."""
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return Entry(path.stem if path.suffix.lower() == ".gguf" else path.name, "path", (path,))
    siblings = [
        other
        for other in _files(path.parent)
        if (its := _SHARD.fullmatch(other.name)) and its["stem"] == match["stem"] and its["count"] == match["count"]
    ]
    return next(iter(_grouped(siblings or [path], "path")))


def name_of(path: Path, title: str | None) -> str:
    """Return what a model is called: the name `entry_at` gives, the title in its header where the file has no name."""
    return entry_at(path).name if path.suffix.lower() == ".gguf" else title or path.stem


# --- inside ---


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, by name; nothing if it cannot be read or is none."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _files(folder: Path) -> list[Path]:
    """The GGUF files of a folder, links that lead nowhere too, but no folders, pipes, devices, nor projectors."""
    found = []
    for entry in _scan(folder):
        name = entry.name.lower()
        # By the name that all give them: the beginning of their model's name is to mean the model.
        if not name.endswith(".gguf") or name.startswith(".") or "mmproj" in name:
            continue
        try:
            is_file = stat.S_ISREG(entry.stat().st_mode)
        except OSError:
            is_file = entry.is_symlink()
        if is_file:
            found.append(Path(entry.path))
    return found


def _tree(folder: Path) -> Iterator[Path]:
    """The GGUF files of a folder and those in it; links to folders are followed, each folder is entered once."""
    entered: set[tuple[int, int]] = set()
    waiting = [(folder, 0)]
    n_seen = 0
    while waiting:
        here, depth = waiting.pop()
        try:
            its = here.stat()
        except OSError:
            continue
        if (its.st_dev, its.st_ino) in entered:
            continue
        entered.add((its.st_dev, its.st_ino))
        yield from _files(here)
        inside = _scan(here)
        n_seen += len(inside)
        if depth < _MAX_DEPTH and n_seen < _MAX_SEEN:
            waiting += [(Path(entry.path), depth + 1) for entry in reversed(inside) if _is_folder(entry)]


def _grouped(paths: Iterable[Path], source: Source) -> Iterator[Entry]:
    """Files as models: the parts of a split one are one model, with the names of those that are missing."""
    groups: dict[tuple[Path, str, int], dict[int, Path]] = {}
    for path in paths:
        match = _SHARD.fullmatch(path.name)
        count = int(match["count"]) if match else 0
        if match and 1 <= int(match["number"]) <= count <= _MAX_SHARDS:
            groups.setdefault((path.parent, match["stem"], count), {})[int(match["number"])] = path
        else:
            groups[(path.parent, path.name, 0)] = {1: path}
    for (_, stem, count), shards in groups.items():
        present = tuple(shards[number] for number in sorted(shards))
        missing = tuple(f"{stem}-{n:05}-of-{count:05}.gguf" for n in range(1, count + 1) if n not in shards)
        yield Entry(stem if count else Path(stem).stem, source, present, missing)


def _ollama_name(host: str, namespace: str, model: str, tag: str) -> str:
    """As Ollama writes it: what it assumes is left out."""
    if host == "registry.ollama.ai":
        return f"{model}:{tag}" if namespace == "library" else f"{namespace}/{model}:{tag}"
    return f"{host}/{namespace}/{model}:{tag}"


def _blob(manifest: Path, blobs: Path) -> Path | None:
    try:
        its = manifest.stat()
        if not stat.S_ISREG(its.st_mode) or its.st_size > _MAX_MANIFEST:
            return None
        layers = json.loads(manifest.read_bytes())["layers"]
        digests = [layer["digest"] for layer in layers if layer["mediaType"] == _OLLAMA_MODEL]
        # A digest is part of a path: nothing but one is taken.
        match = _DIGEST.fullmatch(digests[0])
    except (OSError, ValueError, RecursionError, KeyError, IndexError, TypeError):
        return None
    return blobs / f"sha256-{match[1]}" if match else None


def _modified(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0
