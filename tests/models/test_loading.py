from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from models.engine import Progress
from models.fingerprint import weights_hash
from models.kvsettings import KvSettings
from models.llama import ContextSettings
from models.loading import LocalSettings, load
from models.tuning import Rates, Trial, Tuned, Tuning, cores, remember
from tests.models import tiny_models

CHOICE = Tuning(True, threads=1, threads_batch=cores(), n_ubatch=128)
RATES = Rates(40.0, 100.0, 200.0)


@pytest.fixture
def settings(tmp_path: Path, native_log: list[str]) -> LocalSettings:
    """A tiny model that was measured on this machine."""
    assert native_log is not None
    path, cache_dir = tiny_models.build("dense", tmp_path), tmp_path / "cache"
    weights = weights_hash(path, cache_dir, lambda _done, _n: None)
    remember(cache_dir, weights, Tuned(CHOICE, RATES, (Trial(CHOICE, RATES),), depth=2048, measured_at=1e9))
    return LocalSettings(path, cache_dir, tmp_path / "data", n_ctx=512, kv=KvSettings(enabled=False))


def loaded(settings: LocalSettings) -> ContextSettings:
    """The context's settings; the rest is freed."""
    phases: set[str] = set()

    def emit(event: object) -> None:
        if isinstance(event, Progress):
            phases.add(event.phase)

    found = load(settings, emit)
    with closing(found.model), closing(found.context):
        assert "tune" not in phases
        return found.context.settings


def test_the_measured_settings_are_used(settings: LocalSettings) -> None:
    """Threads for decoding and prefill apart, and how many tokens go together."""
    assert loaded(settings) == ContextSettings(512, True, 1, "f16", cores(), 128)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"threads": 1}, ContextSettings(512, True, 1, "f16", 1, 128)),
        ({"flash_attention": "off"}, ContextSettings(512, False, 1, "f16", cores(), 128)),
        ({"threads": 1, "flash_attention": "off"}, ContextSettings(512, False, 1, "f16", 1, 512)),
    ],
)
def test_what_the_user_set_comes_first(
    settings: LocalSettings, given: dict[str, object], expected: ContextSettings
) -> None:
    """Threads given are those of both kinds of work; with everything given nothing is measured at all."""
    assert loaded(replace(settings, **given)) == expected  # type: ignore[arg-type]  # fields by name
