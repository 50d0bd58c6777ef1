from pathlib import Path

import pytest

from chatapp.config import Settings
from chatapp.engines import forget_kv, make_engine
from models.client import EngineProcess
from models.errors import ModelError
from models.fake import FakeDisk, FakeEngine


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings over empty folders."""
    return Settings(tmp_path / "data", tmp_path / "new" / "cache", engine="fake")


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


def test_shared_kv_is_not_forgotten(settings: Settings) -> None:
    """A tip that a living conversation has too stays."""
    disk = FakeDisk(settings.cache_dir / "fake-kv")
    dead, shared = disk.put((1, 2))[0], disk.put((3, 4))[0]
    forget_kv(settings)([dead, shared], [shared])
    assert len(FakeDisk(settings.cache_dir / "fake-kv")) == 1
    forget_kv(Settings(settings.data_dir, settings.cache_dir))([dead], [])
