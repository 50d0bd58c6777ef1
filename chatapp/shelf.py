"""Where conversations find their models again, and whether those fit into memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chatapp.config import Settings, model_folders
from chatapp.engines import model_path
from models import catalog
from models.engine import ModelInfo
from models.errors import ModelError
from models.fingerprint import model_files, weights_hash
from models.fit import Fit, available_memory, fit
from models.kvbudget import size
from models.modelfacts import FactsCache
from models.modelfiles import entry_at, name_of
from models.ownmodels import usable
from models.remote_profile import identity, place_of, read_place
from sessions.conversation import ModelRef


def fit_of(
    settings: Settings, path: Path, n_ctx: int | None, *, available_bytes: int | None = None
) -> tuple[str, Fit | None]:
    """Return a model's name, and whether it fits with a context (None: what the engine would choose).

    None where its header cannot be read.
    """
    cache = FactsCache(settings.cache_dir)
    model = catalog.describe_one(entry_at(path), cache)
    cache.save()
    facts = model.facts
    if facts is None:
        return model.entry.name, None
    return model.entry.name, fit(
        weights_bytes=facts.size_bytes,
        kv_elements=facts.kv_elements,
        n_ctx_train=facts.n_ctx_train,
        kv_type=settings.kv_type,
        n_ctx=n_ctx or settings.n_ctx,
        available_bytes=available_memory() if available_bytes is None else available_bytes,
    )


def find(settings: Settings, model: ModelRef) -> Path | None:
    """Return a file with just these contents: where it last was, the one that was named, any model file of its size."""
    last = Path(model.path)
    named = [settings.model] if settings.model and settings.model.is_file() else []
    for path in (
        last,
        *named,
        *(entry.path for entry in catalog.entries(model_folders(settings)) if not entry.missing),
    ):
        if is_model(path, model, settings.cache_dir):
            return path.resolve()
    return None


def find_place(settings: Settings, model: ModelRef) -> Path | None:
    """Return the place of a model at a server of the settings; None for other models, and for other servers."""
    place = read_place(Path(model.path)) if model.path else None
    if place and place[0] in settings.engines and model.weights == identity(place[0], place[1] or ""):
        return Path(model.path)
    for profile in settings.engines.values():
        if profile.model and model.weights == identity(profile.name, profile.model):
            return place_of(profile.name, profile.model)
    return None


def is_place_of(settings: Settings, model: ModelRef) -> bool:
    """True if the settings' engine is the server that a model runs at, and has that model."""
    name, _, wanted = settings.engine.partition("/")
    place = read_place(Path(model.path)) if model.path else None
    own = settings.engines[name].model if name in settings.engines else None
    return place is not None and place[0] == name and (wanted or own) in (None, place[1])


def _place_in(settings: Settings, wanted: Path) -> Path | None:
    """Return the place that `engine:NAME` or `engine:NAME/MODEL` means, None for a file. Raises `ModelError`."""
    place = read_place(wanted)
    if place is None:
        return None
    profile = settings.engines.get(place[0])
    if profile is None:
        known = ", ".join(settings.engines) or "none"
        raise ModelError(f"There is no server {place[0]!r} in the settings; there are: {known}.")
    return place_of(profile.name, place[1] or profile.model or "")


def wanted_path(settings: Settings, wanted: Path) -> Path:
    """Return the file of a model that is named by its path or its name, or a place. Raises `ModelError`."""
    if (place := _place_in(settings, wanted)) is not None:
        return place
    path = wanted.expanduser()
    if path.is_file():
        return path.resolve()
    return catalog.find(catalog.entries(model_folders(settings)), str(wanted)).path


def ref_of(settings: Settings, path: Path, progress: Callable[[int, int], None]) -> ModelRef:
    """Return how conversations name the model in a file, as the engine would when it has loaded it.

    `progress` receives (bytes done, bytes total): the file is read once. Raises `ModelError` if it cannot be used.
    """
    if (place := read_place(path)) is not None:
        name, at_server = place
        if at_server is None:
            raise ModelError(f"Name the model there too, as in engine:{name}/MODEL.")
        return ModelRef(identity(name, at_server), f"{at_server} at {name}", path.as_posix(), 0)
    cache = FactsCache(settings.cache_dir)
    model = usable(entry_at(path), cache)
    cache.save()
    assert model.facts is not None, "a usable model has facts"
    try:
        n_bytes = sum(part.stat().st_size for part in model_files(path))
        weights = weights_hash(path, settings.cache_dir, progress)
    except OSError as exc:
        raise ModelError(f"{path} cannot be read ({exc.strerror or exc}).") from exc
    return ModelRef(weights, name_of(path.resolve(), model.facts.title), str(path.resolve()), n_bytes)


def is_model(path: Path, model: ModelRef, cache_dir: Path) -> bool:
    """True if a file has just the contents of a model; the file is read only if it has its size."""
    try:
        if sum(part.stat().st_size for part in model_files(path)) != model.n_bytes:
            return False
        return weights_hash(path, cache_dir, lambda _done, _total: None) == model.weights
    except OSError:
        return False


def lack(settings: Settings, path: Path | None, n_ctx: int | None, loaded: ModelInfo | None) -> str | None:
    """One sentence if a model would not fit once the loaded one is gone."""
    if settings.gpu_layers:
        return None  # what the GPU takes is not counted here
    try:
        path = path or model_path(settings)
    except ModelError:
        return None  # loading it tells
    freed = loaded.kv_bytes_per_token * loaded.n_ctx if loaded else 0
    name, found = fit_of(settings, path, n_ctx, available_bytes=available_memory() + freed)
    if found is None or found.verdict != "too large":
        return None
    return (
        f"{name} needs {size(found.needed_bytes)} of memory and {size(found.available_bytes)} can be had: "
        "close other programs, choose a smaller context with --ctx, or let another model go on."
    )
