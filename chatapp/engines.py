"""Makes the engine the settings ask for, and what goes with it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from models.errors import ModelError
from sessions.files import make_private_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chatapp.config import Settings
    from models.engine import Engine, ModelInfo
    from models.fake import FakeDisk
    from models.remote_profile import RemoteProfile
    from models.switch import EngineSwitch
    from sessions.conversation import ModelRef
    from sessions.loading import Shelf
    from sessions.purge import ForgetKV


def make_engine(settings: Settings) -> Engine:
    """Return an engine that is not loaded yet, its cache folder made; `ModelError` when there is no model."""
    make_private_folder(settings.cache_dir)
    if _is_fake(settings):
        from models import misses
        from models.fake import FakeEngine

        rate = settings.engine.partition(":")[2]
        return FakeEngine(
            disk=_fake_disk(settings) if settings.kv.enabled else None,
            kv_note=None if settings.kv.enabled else misses.OFF,
            tokens_per_s=float(rate) if rate else None,
            n_ctx=settings.n_ctx or 32_768,
        )
    if is_remote(settings):
        from models.remote import RemoteEngine

        return RemoteEngine(_profile(settings, settings.engine))
    from models.client import EngineProcess

    return EngineProcess(
        model_path(settings),
        cache_dir=settings.cache_dir,
        data_dir=settings.data_dir,
        n_ctx=settings.n_ctx,
        gpu_layers=settings.gpu_layers,
        threads=settings.threads,
        flash_attention=settings.flash_attention,
        kv=settings.kv,
        kv_type=settings.kv_type,
        loras=settings.loras,
        chat_format=settings.chat_format,
        speculation=settings.speculation,
        n_parallel=settings.n_parallel,
    )


def make_switch(settings: Settings) -> EngineSwitch:
    """Return an engine that can exchange its model; `ModelError` when there is no model to begin with."""
    from models.switch import Choice, EngineSwitch

    def make(choice: Choice) -> Engine:
        engine = _engine_of(choice.path) or (settings.engine if _is_fake(settings) else "llama")
        n_ctx = choice.n_ctx or settings.n_ctx
        return make_engine(replace(settings, engine=engine, model=choice.path or settings.model, n_ctx=n_ctx))

    if is_remote(settings):
        path = _place(settings.engine)
    else:
        path = settings.data_dir / "fake.gguf" if _is_fake(settings) else model_path(settings).resolve()
    return EngineSwitch(make, Choice(path))


def make_shelf(settings: Settings) -> Shelf:
    """Return where conversations find their models again."""
    from sessions.loading import Shelf

    # What looks into model files is imported when it is asked: the window does not wait for it.
    def find(model: ModelRef) -> Path | None:
        from chatapp import shelf

        if (place := shelf.find_place(settings, model)) is not None:
            return place
        if _is_fake(settings):
            from models.fake import weights_of

            return settings.data_dir / "fake.gguf" if model.weights == weights_of("fake") else None
        return shelf.find(settings, model)

    def lack(path: Path | None, n_ctx: int | None, loaded: ModelInfo | None) -> str | None:
        if _is_fake(settings) or _engine_of(path):
            return None
        from chatapp import shelf

        return shelf.lack(settings, path, n_ctx, loaded)

    return Shelf(find, lack)


def model_path(settings: Settings) -> Path:
    """Return the model to load: the named one, else the chosen default, else the starter.

    Raises `ModelError` in one sentence when there is none. A path is returned as it is; whether there is a model is
    found out when it is loaded.
    """
    from models import catalog
    from models.ownmodels import read_default

    model = settings.model
    if model is None:
        chosen = read_default(settings.data_dir / "models")
        starter = None if chosen else catalog.starter_model()
        if chosen and not chosen.path.exists():
            raise ModelError(
                f"The default model {chosen.name!r} is gone: choose another with `chatapp models default NAME`, "
                "or name one with --model."
            )
        model = chosen.path if chosen else starter
        if model is None:
            raise ModelError(
                "There is no model: give one with --model PATH.gguf, or set up the starter model with make."
            )
    if model.is_absolute() or model.suffix.lower() == ".gguf":
        return model
    from chatapp.config import model_folders

    return catalog.find(catalog.entries(model_folders(settings)), str(model)).path


def with_model_path(settings: Settings) -> Settings:
    """Return settings that mean the same model with another data folder, where names and the default are kept."""
    if is_remote(settings):
        raise ModelError("That measures this machine, and the engine is a server: name --engine llama.")
    return settings if _is_fake(settings) else replace(settings, model=model_path(settings))


def forget_kv(settings: Settings) -> ForgetKV:
    """Return what deletes KV from the cache the engine uses."""
    if _is_fake(settings):
        return lambda dead, alive: _fake_disk(settings).forget(sorted(set(dead) - set(alive)))
    from models.kvcare import forget

    def forget_segments(_dead: list[str], alive: list[str]) -> None:
        forget(settings.cache_dir, settings.data_dir, alive, clock=time.time)

    return forget_segments


def kv_gives_way(settings: Settings) -> Callable[[int], None]:
    """Return what frees bytes for conversations by deleting KV, where both lie on the same disk."""

    def make_room(n_bytes: int) -> None:
        if settings.cache_dir.stat().st_dev == settings.data_dir.stat().st_dev:
            from models.kvcare import give_way

            give_way(settings.cache_dir, n_bytes)

    return make_room


def is_remote(settings: Settings) -> bool:
    """True if the engine is a server."""
    return settings.engine != "llama" and not _is_fake(settings)


def _profile(settings: Settings, engine: str) -> RemoteProfile:
    """Return the profile that `NAME` or `NAME/MODEL` means. Raises `ModelError`."""
    name, _, model = engine.partition("/")
    profile = settings.engines.get(name)
    if profile is None:
        raise ModelError(f"The server {name!r} is not in the settings any more: `chatapp engines add` adds it.")
    return replace(profile, model=model) if model else profile


def _place(engine: str) -> Path:
    from models.remote_profile import place_of

    name, _, model = engine.partition("/")
    return place_of(name, model)


def _engine_of(path: Path | None) -> str | None:
    """The engine that a place means, None for a file."""
    from models.remote_profile import read_place

    place = read_place(path)
    return place and "/".join(part for part in place if part)


def _is_fake(settings: Settings) -> bool:
    return settings.engine.startswith("fake")


def _fake_disk(settings: Settings) -> FakeDisk:
    from models.fake import FakeDisk

    return FakeDisk(settings.cache_dir / "fake-kv")
