import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from models.errors import EngineDied, EngineError, ModelError
from models.fingerprint import known_weights_hash, weights_hash
from models.gguf_header import read_header
from models.jobs import run_job
from models.jobworker import Job
from models.modelfacts import facts_of
from models.tuning import cores, tuned_from
from models.typerates import TypeRate, TypeRates, remember_types, remembered_types, types_from
from tests.models import tiny_models
from tests.models.helpers import starter

TYPES = TypeRates({"Q4_0": TypeRate(700, 190)}, measured_at=1e9)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a few hundred kilobytes."""
    return tiny_models.build("dense", tmp_path_factory.mktemp("tiny"))


def tune_request(model: Path, cache_dir: Path, **changes: Any) -> dict[str, Any]:
    """A short look at a model."""
    request = {"op": "tune", "model": str(model), "cache_dir": str(cache_dir), "kv_type": "f16"}
    return request | {"thorough": False, "seconds": 20.0} | changes


def convert_request(model: Path, target: Path, type_name: str) -> dict[str, Any]:
    """A conversion whose loss is measured on one thread."""
    return {"op": "convert", "model": str(model), "target": str(target), "type": type_name, "threads": 1}


def test_tuning_gives_a_choice_among_what_was_tried(tiny: Path, tmp_path: Path) -> None:
    """Under the weights' own hash, with what was known of types, and with progress; nothing native is printed."""
    remember_types(tmp_path, TYPES)
    told: list[tuple[str, int, int]] = []
    result = run_job(tune_request(tiny, tmp_path), cache_dir=tmp_path, told=lambda *what: told.append(what))
    tuned = tuned_from(result["tuned"])
    assert tuned
    assert {trial.tuning.flash_attention for trial in tuned.trials} == {False, True}
    assert 1 <= tuned.choice.threads <= cores()
    assert result["weights"] == weights_hash(tiny, tmp_path, lambda _done, _n: None)
    assert (types_from(result["types"]), result["before"], result["stored"]) == (TYPES, None, {})
    assert {phase for phase, _, _ in told} == {"load", "tune"}
    assert "llama" in (tmp_path / "logs" / "jobs.log").read_text()


@pytest.mark.parametrize(
    ("thorough", "foreign", "n_measured", "known"),
    [
        (False, None, 0, 700),
        (True, 0.1, 1, 800),
        (True, 1.5, 1, 700),
    ],
)
def test_types_are_measured_anew_for_a_thorough_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thorough: bool, foreign: float | None, n_measured: int, known: int
) -> None:
    """Else they are remembered; what was measured beside others is told and not kept."""
    remember_types(tmp_path, TYPES)
    measured: list[int] = []

    def measure_types(_folder: Path, *, threads: int, **_: object) -> TypeRates:
        measured.append(threads)
        return TypeRates({"Q4_0": TypeRate(800, 190)}, measured_at=2e9, foreign=foreign)

    monkeypatch.setattr("models.typeprobe.measure_types", measure_types)
    told = Job({"op": "tune", "thorough": thorough}, io.BytesIO())._types(tmp_path, 3)
    assert told
    assert told["rates"]["Q4_0"]["prefill"] == (800 if thorough else 700)
    kept = remembered_types(tmp_path)
    assert kept
    assert (measured, kept.rates["Q4_0"].prefill) == ([3] * n_measured, known)


def test_a_conversion_is_of_the_type_and_its_loss_is_measured(tiny: Path, tmp_path: Path) -> None:
    """From single precision to 8 bits little is lost, to 4 bits more."""
    losses: dict[str, Mapping[str, float]] = {}
    for name in ("Q8_0", "Q4_0"):
        target = tmp_path / f"{name}.gguf"
        result = run_job(convert_request(tiny, target, name), cache_dir=tmp_path, told=lambda *_: None)
        header = read_header(target)
        facts = facts_of(header, target.stat().st_size)
        assert (facts.quantization, facts.missing_bytes) == (name, 0)
        assert result["size_bytes"] == target.stat().st_size
        assert result["speed"]["prefill_ratio"] > 0
        losses[name] = result["loss"]
    assert 0 < losses["Q8_0"]["mean_kl"] < losses["Q4_0"]["mean_kl"]
    assert losses["Q4_0"]["top1_agreement"] <= losses["Q8_0"]["top1_agreement"] <= 1
    assert losses["Q8_0"]["n_tokens"] == 1024


def test_a_model_that_cannot_be_read_is_an_error_of_ours(tmp_path: Path) -> None:
    """In one sentence, and the log is not the terminal."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelError, match="cannot be loaded"):
        run_job(tune_request(path, tmp_path), cache_dir=tmp_path, told=lambda *_: None)
    with pytest.raises(ModelError, match="quantizer refused"):
        run_job(convert_request(path, tmp_path / "x", "Q8_0"), cache_dir=tmp_path, told=lambda *_: None)
    with pytest.raises(ModelError, match="No such file"):
        run_job(tune_request(tmp_path / "none.gguf", tmp_path), cache_dir=tmp_path, told=lambda *_: None)


_IN_LITTLE_ROOM = """
import json, resource, sys
from pathlib import Path
from models.errors import ModelError
from models.jobs import run_job
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, 1 << 17))
try:
    run_job(json.loads(sys.argv[1]), cache_dir=Path(sys.argv[2]), told=lambda *what: None)
except ModelError as exc:
    print(exc)
"""


@pytest.mark.skipif(os.name == "nt", reason="limits of POSIX")
def test_a_disk_that_gets_full_is_said(tiny: Path, tmp_path: Path) -> None:
    """It is not the model that is at fault; here no file may grow beyond 128 KiB."""
    target = tmp_path / "there" / "new.gguf"
    target.parent.mkdir()
    command = [sys.executable, "-c", _IN_LITTLE_ROOM, json.dumps(convert_request(tiny, target, "Q8_0")), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"to Q8_0: {target.parent} has no room left" in ran.stdout, ran.stderr


def test_memory_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of two models may not fit where both of them do."""

    def run(_job: Job) -> dict[str, Any]:
        raise MemoryError

    monkeypatch.setattr(Job, "run", run)
    assert "not enough memory" in Job({}, io.BytesIO()).outcome()["failed"]


def test_a_process_that_dies_is_an_error_of_ours(tiny: Path, tmp_path: Path) -> None:
    """Here of a type that there is not; the log says why."""
    with pytest.raises(EngineDied, match="ended unexpectedly"):
        run_job(convert_request(tiny, tmp_path / "x.gguf", "NONE"), cache_dir=tmp_path, told=lambda *_: None)
    assert "LLAMA_FTYPE_MOSTLY_NONE" in (tmp_path / "logs" / "jobs.log").read_text()


def test_a_cache_that_cannot_be_written_is_an_error_of_ours(tiny: Path, tmp_path: Path) -> None:
    """The log has nowhere to be."""
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(EngineError, match="choose another --cache-dir"):
        run_job(tune_request(tiny, tmp_path), cache_dir=tmp_path / "cache", told=lambda *_: None)


def test_work_that_is_broken_off_ends_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl+C reaches whoever waits; the process has ended when the call is left."""
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr("models.jobs.subprocess.Popen", popen)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(convert_request(starter(), tmp_path / "x.gguf", "Q6_K"), cache_dir=tmp_path, told=stop)
    assert [child.returncode is not None for child in started] == [True]


_WAIT = """
import json, sys
from pathlib import Path
from models.jobs import run_job
run_job(json.loads(sys.argv[1]), cache_dir=Path(sys.argv[2]), told=lambda *what: print("told", flush=True))
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_killed_parent_leaves_no_half_file_and_no_process(tmp_path: Path) -> None:
    """The process sees that nobody waits, deletes what it wrote, and ends."""
    target = tmp_path / "half.gguf"
    request = json.dumps(convert_request(starter(), target, "Q6_K"))
    command = [sys.executable, "-c", _WAIT, request, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as child:
        assert child.stdout
        assert child.stdout.readline() == b"told\n"
        assert target.exists()
        child.send_signal(signal.SIGKILL)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            os.killpg(child.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.02)
    else:
        pytest.fail("it goes on")
    assert not target.exists()


def test_a_hash_is_known_once_it_was_computed(tiny: Path, tmp_path: Path) -> None:
    """And only for a file that is still the same."""
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny.read_bytes())
    assert known_weights_hash(path, tmp_path) is None
    computed = weights_hash(path, tmp_path, lambda _done, _n: None)
    assert known_weights_hash(path, tmp_path) == computed
    path.write_bytes(tiny.read_bytes() + b"x")
    assert known_weights_hash(path, tmp_path) is None
    path.unlink()
    assert known_weights_hash(path, tmp_path) is None
