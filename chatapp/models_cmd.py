"""The `models` commands: which models there are, what is known of them, adding, fetching and removing them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from chatapp.config import Settings, hub, model_folders
from chatapp.console import Narrator, print_json, print_text
from chatapp.engines import model_path
from chatapp.listing import table
from chatapp.models_tune import fastest_words, known_tuning, prompt_share, tuned_object, tuning_lines, types_object
from chatapp.safe import clean_line
from models.catalog import Model, describe, describe_one, entries, find
from models.errors import ModelError
from models.fit import Fit, available_memory, fit, kv_bytes_per_token
from models.kvbudget import size
from models.modelfacts import MODEL, FactsCache
from models.modelfiles import Entry, entry_at, own_entries
from models.ownmodels import Default, add, read_default, remove, usable, write_default
from models.typerates import remembered_types
from sessions.files import make_private_folder

_NAME_CELLS = 44
_UNKNOWN = "?"


def show_list(settings: Settings, *, as_json: bool) -> None:
    """Print a row for each model on this disk."""
    narrator = Narrator()
    narrator.line("reading what the models say of themselves")
    models = describe(entries(model_folders(settings)), FactsCache(settings.cache_dir))
    narrator.clear()
    default, available = read_default(_own(settings)), available_memory()
    if as_json:
        print_json([model_object(settings, model, default, available) for model in models])
        return
    if not models:
        narrator.hint("There is no model on this disk: `chatapp models add PATH.gguf` adds one.")
        return
    head = ["", "name", "architecture", ">parameters", "quantization", ">size", ">context", "memory", "source"]
    print_text(table([head, *(_row(settings, model, default, available) for model in models)]))
    for model in models:
        if model.problem:
            print_text(f"{clean_line(model.entry.name, _NAME_CELLS)}: {clean_line(model.problem, 400)}\n")


def show_info(settings: Settings, wanted: str | None, *, as_json: bool) -> None:
    """Print all that is known of one model; without a name, of the one that would be used."""
    cache = FactsCache(settings.cache_dir)
    model = describe_one(_entry(settings, wanted), cache)
    cache.save()
    default, available = read_default(_own(settings)), available_memory()
    if as_json:
        print_json({**model_object(settings, model, default, available), **speed_object(settings, model)})
    else:
        lines = _lines(settings, model, default, available)
        if model.facts and model.facts.kind == MODEL:
            lines += tuning_lines(settings, model)
        width = max(len(name) for name, _ in lines)
        for name, value in lines:
            print_text(f"{name:<{width}}  {clean_line(value, 400)}\n")
    if model.facts is None:
        raise click.ClickException(model.problem or "This model cannot be used.")


def add_model(settings: Settings, path: Path, *, copy: bool, as_json: bool) -> None:
    """Put a link to a model into the own folder, or a copy."""
    cache = FactsCache(settings.cache_dir)
    make_private_folder(_own(settings))
    narrator = Narrator()
    try:
        progress = _progress(narrator)
        entry = add(_own(settings), path, cache, copy=copy, progress=lambda done, n: progress(path.name, done, n))
    finally:
        narrator.clear()
    _print_added(settings, entry, cache, as_json=as_json)


def pull_model(settings: Settings, wanted: str, *, as_json: bool) -> None:
    """Fetch a model from a hub into the own folder."""
    from models.hub import pull

    source = hub()
    make_private_folder(_own(settings))
    narrator = Narrator()
    try:
        entry = pull(
            _own(settings), wanted, endpoint=source.endpoint, offline=source.is_offline, told=_progress(narrator)
        )
    finally:
        narrator.clear()
    cache = FactsCache(settings.cache_dir)
    _print_added(settings, entry, cache, as_json=as_json)
    types, model = remembered_types(settings.cache_dir), describe_one(entry, cache)
    if not as_json and types and model.facts:
        Narrator().hint(fastest_words(types, model.facts.quantization) + ".")
    elif not as_json:
        Narrator().hint("`chatapp models tune` measures which quantization is fastest here.")


def remove_model(settings: Settings, wanted: str, *, yes: bool, as_json: bool) -> None:
    """Delete a model from the own folder, once the user agrees."""
    # A name in the own folder is meant, whatever else has it: nothing else can be removed.
    own = [entry for entry in own_entries(_own(settings)) if entry.name == wanted]
    entry = own[0] if own else find(entries(model_folders(settings)), wanted)
    if entry.source == "own" and not yes:
        what = "the link to it; the file stays" if all(path.is_symlink() for path in entry.files) else "its files"
        _agree(f"Remove {clean_line(entry.name, 60)} ({what})?")
    freed = remove(_own(settings), entry)
    if as_json:
        print_json({"name": entry.name, "removed": True, "freed_bytes": freed})
    else:
        Narrator().hint(f"{entry.name} is removed ({size(freed)} freed).")


def show_default(settings: Settings, *, as_json: bool) -> None:
    """Print the model that is used when none is named."""
    default = read_default(_own(settings))
    path = default.path if default else model_path(settings)
    name = default.name if default else entry_at(path).name
    if as_json:
        print_json({"name": name, "path": str(path), "chosen": default is not None, "exists": path.exists()})
        return
    print_text(f"{clean_line(name, 200)}\n")
    if not path.exists():
        Narrator().notice(f"{name} is gone: choose another with `chatapp models default NAME`.")


def choose_default(settings: Settings, wanted: str, *, as_json: bool) -> None:
    """Remember the model that is used when none is named."""
    entry, cache = _entry(settings, wanted), FactsCache(settings.cache_dir)
    usable(entry, cache)
    cache.save()
    make_private_folder(_own(settings))
    write_default(_own(settings), entry)
    if as_json:
        print_json({"name": entry.name, "path": str(entry.path), "chosen": True, "exists": True})
    else:
        Narrator().hint(f"{entry.name} is used when no model is named.")


# --- JSON: an interface, so the keys stay; see docs/cli.md ---


def model_object(settings: Settings, model: Model, default: Default | None, available: int) -> dict[str, Any]:
    """Return what `models list --json` and `models info --json` print of a model."""
    entry, facts = model.entry, model.facts
    fits = _fit(settings, model, available)
    return {
        "name": entry.name,
        "path": str(entry.path),
        "source": entry.source,
        "files": [str(path) for path in entry.files],
        "missing": list(entry.missing),
        "problem": model.problem,
        "default": _is_default(entry, default),
        "title": facts.title if facts else None,
        "architecture": facts.architecture if facts else None,
        "parameters": facts.n_params if facts else None,
        "quantization": facts.quantization if facts else None,
        "size_bytes": facts.size_bytes if facts else None,
        "ctx_train": facts.n_ctx_train if facts else None,
        "template": facts.template if facts else None,
        "tokenizer": facts.tokenizer if facts else None,
        "tokenizer_pre": facts.tokenizer_pre if facts else None,
        "vocabulary": facts.n_vocab if facts else None,
        "memory": facts.memory if facts else None,
        "kv_type": settings.kv_type,
        "kv_bytes_per_token": _kv_bytes(settings, model),
        "fit": {
            "verdict": fits.verdict,
            "ctx": fits.n_ctx,
            "weights_bytes": fits.weights_bytes,
            "kv_bytes": fits.kv_bytes,
            "needed_bytes": fits.needed_bytes,
            "available_bytes": fits.available_bytes,
        }
        if fits
        else None,
    }


def speed_object(settings: Settings, model: Model) -> dict[str, Any]:
    """Return what `models info --json` prints beside that: what was measured here, null where nothing was."""
    tuned, types = known_tuning(settings, model.entry.path), remembered_types(settings.cache_dir)
    share = prompt_share(tuned, types, model) if tuned else None
    return {"tuning": tuned_object(tuned, share) if tuned else None, "types": types_object(types)}


# --- for people ---


def _row(settings: Settings, model: Model, default: Default | None, available: int) -> list[str]:
    entry, facts, fits = model.entry, model.facts, _fit(settings, model, available)
    mark = "*" if _is_default(entry, default) else ""
    name = clean_line(entry.name, _NAME_CELLS)
    if facts is None or fits is None:
        return [mark, name, "", "", "", "", "", "cannot be used", entry.source]
    return [
        mark,
        name,
        clean_line(facts.architecture or _UNKNOWN, 20),
        f">{_short(facts.n_params)}",
        facts.quantization or _UNKNOWN,
        f">{size(facts.size_bytes)}",
        f">{_UNKNOWN if facts.n_ctx_train is None else f'{facts.n_ctx_train:,}'}",
        "cannot be used" if model.problem else fits.verdict,
        entry.source,
    ]


def _lines(settings: Settings, model: Model, default: Default | None, available: int) -> list[tuple[str, str]]:
    entry, facts, fits = model.entry, model.facts, _fit(settings, model, available)
    lines = [("name", entry.name + (" (the default)" if _is_default(entry, default) else ""))]
    lines += [("file", str(path)) for path in entry.files]
    lines += [("missing", name) for name in entry.missing]
    lines += [("source", entry.source)]
    if facts is None or fits is None:
        return lines
    per_token = _kv_bytes(settings, model)
    kv = _UNKNOWN if per_token is None else f"{per_token:,} bytes a token ({settings.kv_type})"
    return [
        *lines,
        *([("problem", model.problem)] if model.problem else []),
        *([] if facts.kind == MODEL else [("kind", f"{facts.kind}: a part of a model, no model")]),
        ("title", facts.title or _UNKNOWN),
        ("architecture", facts.architecture or _UNKNOWN),
        ("parameters", f"{facts.n_params:,} ({_short(facts.n_params)})"),
        ("quantization", facts.quantization or _UNKNOWN),
        ("size", size(facts.size_bytes)),
        ("context", _UNKNOWN if facts.n_ctx_train is None else f"trained for {facts.n_ctx_train:,} tokens"),
        ("template", facts.template),
        ("tokenizer", ", ".join(filter(None, (facts.tokenizer, facts.tokenizer_pre))) or _UNKNOWN),
        ("vocabulary", _UNKNOWN if facts.n_vocab is None else f"{facts.n_vocab:,} tokens"),
        ("memory kind", facts.memory),
        ("KV", kv),
        ("memory", _fit_words(fits)),
    ]


def _fit_words(fits: Fit) -> str:
    kv = "KV of unknown size"
    if fits.kv_bytes is not None and fits.n_ctx is not None:
        kv = f"{size(fits.kv_bytes)} KV for {fits.n_ctx:,} tokens"
    return f"{fits.verdict}: {size(fits.weights_bytes)} weights and {kv}, {size(fits.available_bytes)} available"


def _short(n: int) -> str:
    """A count in words: 135 M."""
    for unit, power in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if n >= power:
            value = n / power
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"
    return f"{n:,}"


# --- inside ---


def wanted_model(settings: Settings, wanted: str | None) -> Model:
    """Return the model of a name or a path; None: the one that would be used. Raises `ModelError` if it cannot be."""
    cache = FactsCache(settings.cache_dir)
    model = usable(_entry(settings, wanted), cache)
    cache.save()
    return model


def _own(settings: Settings) -> Path:
    return settings.data_dir / "models"


def _entry(settings: Settings, wanted: str | None) -> Entry:
    """The model of a name or a path; None is the one that would be used."""
    found = entries(model_folders(settings))
    path = model_path(settings) if wanted is None else Path(wanted).expanduser()
    if wanted is not None and not path.is_file():
        if path.suffix.lower() == ".gguf" and all(entry.name != wanted for entry in found):
            raise ModelError(f"There is no model file at {path}.")
        return find(found, wanted)
    path = path.absolute()
    # Under the name it has in the list, if it is there.
    return next((entry for entry in found if any(_is_same(path, file) for file in entry.files)), entry_at(path))


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


def _is_default(entry: Entry, default: Default | None) -> bool:
    return default is not None and any(path == default.path for path in entry.files)


def _kv_bytes(settings: Settings, model: Model) -> int | None:
    if model.facts is None or model.facts.kv_elements is None:
        return None
    return kv_bytes_per_token(model.facts.kv_elements, settings.kv_type)


def _fit(settings: Settings, model: Model, available: int) -> Fit | None:
    if model.facts is None:
        return None
    return fit(
        weights_bytes=model.facts.size_bytes,
        kv_elements=model.facts.kv_elements,
        n_ctx_train=model.facts.n_ctx_train,
        kv_type=settings.kv_type,
        n_ctx=settings.n_ctx,
        available_bytes=available,
    )


def _print_added(settings: Settings, entry: Entry, cache: FactsCache, *, as_json: bool) -> None:
    model = describe_one(entry, cache)
    cache.save()
    if as_json:
        print_json(model_object(settings, model, read_default(_own(settings)), available_memory()))
    elif model.problem:
        raise ModelError(model.problem)
    else:
        Narrator().hint(f"{entry.name} is added: `chatapp --model {entry.name}` chats with it.")


def _agree(question: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("Nobody can be asked here: --yes says that it may be removed.")
    if not click.confirm(question, err=True):
        raise click.ClickException("Nothing was removed.")


def _progress(narrator: Narrator) -> Callable[[str, int, int], None]:
    shown = ("", -1)

    def progress(name: str, done: int, total: int) -> None:
        nonlocal shown
        share = 100 * done // max(total, 1)
        if (name, share) != shown:
            shown = (name, share)
            narrator.line(f"{clean_line(name, 60)}  {size(done)} of {size(total)}  {share} %")

    return progress
