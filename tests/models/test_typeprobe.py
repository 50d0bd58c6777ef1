import math
import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from models import typeprobe
from models.bandwidth import active_bytes
from models.gguf_header import read_header
from models.llama import Context, ContextSettings, Model
from models.modelfacts import facts_of
from models.probefile import N_MULTIPLIED, PROBED, VOCABULARY, WIDTH, write_probe
from models.typeprobe import measure_types


@pytest.mark.parametrize("name", PROBED)
def test_a_probe_is_a_whole_model_of_its_type(tmp_path: Path, name: str) -> None:
    """Its header and size agree, and nearly all of it is in the type it is for."""
    path = tmp_path / "probe.gguf"
    write_probe(path, name)
    header = read_header(path)
    assert facts_of(header, path.stat().st_size).missing_bytes == 0
    usual = name.removesuffix("_M")
    expected = {usual, "Q6_K"} if name.endswith("_M") else {usual}
    by_type = dict(header.params_by_type)
    assert sum(by_type[one] for one in expected) == N_MULTIPLIED
    assert by_type[usual] == max(by_type.values())


def test_types_are_measured_and_their_files_deleted(tmp_path: Path, native_log: list[str]) -> None:
    """Rates for each; of 16 bits a token reads more than three times as much as of 4."""
    assert native_log is not None
    told: list[tuple[int, int]] = []
    types = measure_types(tmp_path, threads=1, types=("Q4_0", "F16"), progress=lambda done, n: told.append((done, n)))
    assert types
    assert list(types.rates) == ["Q4_0", "F16"]
    assert types.rates["Q4_0"].decode > types.rates["F16"].decode
    assert (told, list(tmp_path.iterdir())) == ([(0, 2), (1, 2)], [])


@pytest.mark.parametrize("name", PROBED)
def test_all_blocks_hold_finite_numbers(tmp_path: Path, name: str, native_log: list[str]) -> None:
    """Infinite ones would take another time than those of a model."""
    assert native_log is not None
    path = tmp_path / "probe.gguf"
    write_probe(path, name)
    with closing(Model(path, gpu_layers=0, progress=lambda _share: None)) as model:
        context = Context(model, ContextSettings(256, flash_attention=False, threads=1))
        context.decode(1)
        logits = context.logits()
        context.close()
    path.unlink()
    assert (len(logits), model.n_vocab) == (VOCABULARY, VOCABULARY)
    assert all(map(math.isfinite, logits))
    assert 0 < max(map(abs, logits)) < 1e4


def test_a_full_disk_leaves_types_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no file can be written there is no measurement, and nothing is left."""

    def full(path: Path, _name: str) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(typeprobe, "write_probe", full)
    assert measure_types(tmp_path, threads=1, progress=lambda _done, _n: None) is None
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_a_killed_measurement_left_is_deleted(tmp_path: Path) -> None:
    """An hour later; one that is in use stays."""
    old, new, other = tmp_path / "probe-1.gguf", tmp_path / "probe-2.gguf", tmp_path / "note.json"
    for path in (old, new, other):
        path.write_bytes(b"x")
    os.utime(old, (time.time() - 7_200,) * 2)
    assert measure_types(tmp_path, threads=1, types=(), progress=lambda _done, _n: None) is None
    assert sorted(tmp_path.iterdir()) == [other, new]


def test_a_token_reads_all_but_the_table(tmp_path: Path) -> None:
    """The probe's roof is that of a model: what is multiplied is what is read."""
    path = tmp_path / "probe.gguf"
    write_probe(path, "F16")
    n_norms = 5 * WIDTH
    assert active_bytes([read_header(path)]) == 2 * N_MULTIPLIED + 4 * n_norms
