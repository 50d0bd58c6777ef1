from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chatapp.config import Settings
from chatapp.engines import forget_kv, make_engine
from models import misses
from models.client import EngineProcess
from models.engine import Entry, Event, Prepared, Prompt, Sampling, Stored
from models.errors import ModelError
from models.fake import FakeDisk, FakeEngine
from models.kvsettings import KvSettings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings over empty folders."""
    return Settings(tmp_path / "data", tmp_path / "new" / "cache", engine="fake")


async def drain(events: AsyncIterator[Event]) -> list[Event]:
    """All events."""
    return [event async for event in events]


def test_the_fake_engine_is_made_on_request(settings: Settings) -> None:
    """Its cache folder is there and private, the context as asked."""
    assert isinstance(make_engine(settings), FakeEngine)
    assert settings.cache_dir.is_dir()


def test_a_real_engine_needs_a_model(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a path it is made (and not started); without one and without the starter model it says what to do."""
    assert isinstance(make_engine(Settings(settings.data_dir, settings.cache_dir, model=Path("m.gguf"))), EngineProcess)
    monkeypatch.setattr("models.catalog.starter_model", lambda: None)
    with pytest.raises(ModelError, match="--model"):
        make_engine(Settings(settings.data_dir, settings.cache_dir))


def test_the_settings_reach_a_real_engine(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is handed over under its name."""
    taken: dict[str, Any] = {}
    monkeypatch.setattr("models.client.EngineProcess", lambda path, **others: taken.update(path=path, **others))
    kv, loras = KvSettings(budget_bytes=1), ((Path("a.gguf"), 0.5),)
    make_engine(
        replace(
            settings,
            engine="llama",
            model=Path("m.gguf"),
            n_ctx=7,
            gpu_layers=2,
            threads=3,
            flash_attention="on",
            kv=kv,
            kv_type="q8_0",
            loras=loras,
            speculation="off",
            n_parallel=3,
        )
    )
    assert taken == {
        "path": Path("m.gguf"),
        "cache_dir": settings.cache_dir,
        "data_dir": settings.data_dir,
        "n_ctx": 7,
        "gpu_layers": 2,
        "threads": 3,
        "flash_attention": "on",
        "kv": kv,
        "kv_type": "q8_0",
        "chat_format": None,
        "loras": loras,
        "speculation": "off",
        "n_parallel": 3,
    }


async def test_kv_that_is_switched_off_is_neither_written_nor_read(settings: Settings) -> None:
    """The engine says that it is off; what an earlier run kept stays where it is."""
    prompt = Prompt((Entry("user", "hi"),))
    await drain(make_engine(settings).generate(prompt, Sampling()))
    kept = sorted((settings.cache_dir / "fake-kv").iterdir())
    engine = make_engine(replace(settings, kv=KvSettings(enabled=False)))
    events = await drain(engine.generate(prompt, Sampling()))
    assert [(event.tip, event.kv_bytes_written) for event in events if isinstance(event, Stored)] == [(None, 0)]
    assert [event.restored for event in events if isinstance(event, Prepared)] == [0]
    assert sorted((settings.cache_dir / "fake-kv").iterdir()) == kept
    assert engine.info is not None
    assert engine.info.kv_note == misses.OFF


def test_shared_kv_is_not_forgotten(settings: Settings) -> None:
    """A tip that a living conversation has too stays."""
    disk = FakeDisk(settings.cache_dir / "fake-kv")
    dead, shared = disk.put((1, 2))[0], disk.put((3, 4))[0]
    forget_kv(settings)([dead, shared], [shared])
    assert len(FakeDisk(settings.cache_dir / "fake-kv")) == 1
    forget_kv(Settings(settings.data_dir, settings.cache_dir))([dead], [])
