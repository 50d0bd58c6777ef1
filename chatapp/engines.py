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
    )


def make_switch(settings: Settings) -> EngineSwitch:
    """Return an engine that can exchange its model; `ModelError` when there is no model to begin with."""
    from models.switch import Choice, EngineSwitch

    def make(choice: Choice) -> Engine:
        return make_engine(replace(settings, model=choice.path or settings.model, n_ctx=choice.n_ctx or settings.n_ctx))

    path = settings.data_dir / "fake.gguf" if _is_fake(settings) else model_path(settings).resolve()
    return EngineSwitch(make, Choice(path))


def make_shelf(settings: Settings) -> Shelf:
    """Return where conversations find their models again."""
    from sessions.loading import Shelf

    if _is_fake(settings):
        from models.fake import weights_of

        fake = settings.data_dir / "fake.gguf"
        return Shelf(lambda model: fake if model.weights == weights_of("fake") else None)

    # What looks into model files is imported when it is asked: the window does not wait for it.
    def find(model: ModelRef) -> Path | None:
        from chatapp import shelf

        return shelf.find(settings, model)

    def lack(path: Path | None, n_ctx: int | None, loaded: ModelInfo | None) -> str | None:
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


def _is_fake(settings: Settings) -> bool:
    return settings.engine.startswith("fake")


def _fake_disk(settings: Settings) -> FakeDisk:
    from models.fake import FakeDisk

    return FakeDisk(settings.cache_dir / "fake-kv")
