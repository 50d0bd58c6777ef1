from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from models.llama import Model
from models.tuner import Tuning, cores, tune

MODEL = cast(Model, object())
MEASURED = Tuning(flash_attention=True, threads=1)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Model]:
    """Counts the measurements, which all find `MEASURED`."""
    calls: list[Model] = []

    def measure(model: Model, progress: Callable[[int, int], None]) -> Tuning:
        calls.append(model)
        progress(0, 4)
        return MEASURED

    monkeypatch.setattr("models.tuner._measure", measure)
    return calls


def ask(cache_dir: Path, weights: str = "ab", gpu_layers: int = 0) -> Tuning:
    """Tune without looking at the progress."""
    return tune(MODEL, weights, cache_dir, gpu_layers=gpu_layers, progress=lambda _done, _total: None)


def test_a_choice_is_measured_once(tmp_path: Path, measured: list[Model]) -> None:
    """The second time it is remembered."""
    assert [ask(tmp_path), ask(tmp_path)] == [MEASURED, MEASURED]
    assert measured == [MODEL]


def test_each_model_is_measured(tmp_path: Path, measured: list[Model]) -> None:
    """Other weights, another measurement."""
    ask(tmp_path, "ab")
    ask(tmp_path, "cd")
    assert len(measured) == 2


def test_another_machine_is_measured(tmp_path: Path, measured: list[Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder that moved to another processor is not believed."""
    ask(tmp_path)
    monkeypatch.setattr("models.tuner._cpu_name", lambda: "another processor")
    ask(tmp_path)
    assert len(measured) == 2


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b'{"flash_attention": true}',
        b'{"flash_attention": true, "threads": "many"}',
        b'{"flash_attention": true, "threads": 0}',
        b'{"flash_attention": true, "threads": -3}',
        b'{"flash_attention": true, "threads": 1000000}',
    ],
)
def test_a_damaged_note_is_measured_again(tmp_path: Path, measured: list[Model], junk: bytes) -> None:
    """What is no choice for this machine is measured and written anew."""
    ask(tmp_path)
    (note,) = (tmp_path / "tuning").iterdir()
    note.write_bytes(junk)
    assert [ask(tmp_path), ask(tmp_path)] == [MEASURED, MEASURED]
    assert len(measured) == 2


def test_with_a_gpu_nothing_is_measured(tmp_path: Path, measured: list[Model]) -> None:
    """Layers on a GPU: flash attention and all cores."""
    assert ask(tmp_path, gpu_layers=99) == Tuning(flash_attention=True, threads=cores())
    assert (measured, list(tmp_path.iterdir())) == ([], [])


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, measured: list[Model]) -> None:
    """The choice then holds for this run."""
    (tmp_path / "cache").write_bytes(b"")
    assert ask(tmp_path / "cache") == MEASURED
    assert len(measured) == 1
