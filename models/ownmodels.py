"""The own folder of models: links and files that were put there, and which one is used when none is named."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from models.catalog import Model, describe_one
from models.errors import ModelError
from models.modelfacts import MODEL, FactsCache
from models.modelfiles import Entry, entry_at

_DEFAULT = "default"
_VERSION = 1
_CHUNK = 16 << 20
_PRIVATE = 0o700


@dataclass(frozen=True, slots=True)
class Default:
    """The model that is used when none is named: its name, and the path it had."""

    name: str
    path: Path


def usable(entry: Entry, cache: FactsCache) -> Model:
    """Return the model with its facts. Raises `ModelError` in one sentence if it is damaged, in part, or no model."""
    model = describe_one(entry, cache)
    if model.problem:
        raise ModelError(model.problem)
    assert model.facts is not None, "a model without a problem has facts"
    if model.facts.kind != MODEL:
        raise ModelError(f"{entry.path.name} is no model but a part of one ({model.facts.kind}).")
    return model


def add(folder: Path, path: Path, cache: FactsCache, *, copy: bool, progress: Callable[[int, int], None]) -> Entry:
    """Put links to a model's files into the folder, or copies; returns what is there then.

    `progress` receives (bytes copied, bytes in all). Raises `ModelError` in one sentence if the model cannot be used,
    or if another one has its name there; adding the same again changes nothing.
    """
    if path.is_dir():
        raise ModelError(f"{path} is a folder: give a .gguf file in it.")
    if not path.exists():
        raise ModelError(f"There is no model file at {path}.")
    model = usable(entry_at(path), cache)
    assert model.facts is not None, "a usable model has facts"
    targets = [(file, folder / _gguf_name(file.name)) for file in model.entry.files]
    for file, target in targets:
        if os.path.lexists(target) and not (target.exists() and file.samefile(target)):
            raise ModelError(f"{target.name} is already there: `chatapp models remove {model.entry.name}` removes it.")
    done, n_bytes = 0, model.facts.size_bytes
    made: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
        for file, target in targets:
            if os.path.lexists(target):
                continue
            if copy:
                done = _copy(file, target, lambda n: progress(n, n_bytes), done)
            else:
                # The link leads to the file itself: another link on the way may be taken away.
                target.symlink_to(file.resolve())
            made.append(target)
    except OSError as exc:
        _discard(*made)
        raise ModelError(f"{path.name} cannot be put into {folder}: {exc.strerror or exc}.") from exc
    return Entry(model.entry.name, "own", tuple(target for _, target in targets))


def remove(folder: Path, entry: Entry) -> int:
    """Delete a model's files or links from the folder; returns the bytes that were freed.

    Raises `ModelError` in one sentence for a model that lies elsewhere: it is another program's.
    """
    if any(path.parent != folder for path in entry.files):
        raise ModelError(f"{entry.name} is not in chatapp's own folder ({entry.source}): remove it where it came from.")
    freed = 0
    for path in entry.files:
        try:
            freed += 0 if path.is_symlink() else path.stat().st_size
            path.unlink()
        except OSError as exc:
            raise ModelError(f"{path.name} cannot be removed: {exc.strerror or exc}.") from exc
    default = read_default(folder)
    if default and default.path in entry.files:
        (folder / _DEFAULT).unlink(missing_ok=True)
    return freed


def read_default(folder: Path) -> Default | None:
    """The model that was chosen as default, None if none was; it may be gone."""
    try:
        kept = json.loads((folder / _DEFAULT).read_bytes())
        if kept["version"] == _VERSION and isinstance(kept["name"], str) and isinstance(kept["path"], str):
            return Default(kept["name"], Path(kept["path"]))
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        pass
    return None


def write_default(folder: Path, entry: Entry) -> None:
    """Choose the default. Raises `ModelError` in one sentence if that cannot be kept."""
    note = json.dumps({"version": _VERSION, "name": entry.name, "path": str(entry.path)})
    temporary = folder / f".{_DEFAULT}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
        with os.fdopen(_create(temporary), "wb") as file:
            file.write(note.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / _DEFAULT)
    except OSError as exc:
        _discard(temporary)
        raise ModelError(f"The default model cannot be kept in {folder}: {exc.strerror or exc}.") from exc


def _gguf_name(name: str) -> str:
    return name if name.lower().endswith(".gguf") else f"{name}.gguf"


def _copy(source: Path, target: Path, progress: Callable[[int], None], done: int) -> int:
    """Copy a file so that it is there whole or not at all; returns the bytes copied so far, with `done`."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with source.open("rb") as reader, os.fdopen(_create(temporary), "wb") as writer:
            while chunk := reader.read(_CHUNK):
                writer.write(chunk)
                done += len(chunk)
                progress(done)
            writer.flush()
            os.fsync(writer.fileno())
        temporary.replace(target)
    except BaseException:
        _discard(temporary)
        raise
    return done


def _create(path: Path) -> int:
    """A descriptor of a new file that only its owner can read."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o600)


def _discard(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
