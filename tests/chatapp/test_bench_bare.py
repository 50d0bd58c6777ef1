from dataclasses import replace
from pathlib import Path

import pytest

from chatapp.benches.bare import bare_loop
from models.engine import ModelInfo
from models.errors import EngineError
from tests.models.helpers import starter

INFO = ModelInfo(
    name="m",
    path="",
    architecture="llama",
    n_params=1,
    weights_bytes=1,
    n_ctx=256,
    n_ctx_train=8192,
    kv_bytes_per_token=1,
    flash_attention=False,
    threads=1,
    gpu_layers=0,
    fingerprint="",
    supports_system=True,
    kv_note=None,
    load_s=0.0,
)


def test_it_evaluates_and_decodes() -> None:
    """Seconds come back from the process, which ends with its block."""
    with bare_loop(replace(INFO, path=str(starter()))) as bare:
        assert bare.load_s > 0
        assert bare.prefill([1, 2, 3, 4]) > 0
        assert bare.prefill([1, 2, 3, 4], keep=3) > 0
        assert bare.step(width=2, repeats=2) > 0
        assert bare.decode(4) > 0
        pid = bare.pid
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("info", "sentence"),
    [
        (replace(INFO, path="nowhere.gguf"), "with a model file: name --engine llama"),
        (replace(INFO, path=__file__, memory_kind="hybrid"), "choose another with --model"),
        (replace(INFO, path=__file__, memory_kind="recurrent"), "choose another with --model"),
    ],
)
def test_what_it_is_not_made_for_is_refused(info: ModelInfo, sentence: str) -> None:
    """One sentence with a way out, before anything is started."""
    with pytest.raises(EngineError, match=sentence), bare_loop(info):
        pass


def test_a_model_that_cannot_be_loaded_ends_it(capfd: pytest.CaptureFixture[str]) -> None:
    """The loop's process ends; whoever measures is told."""
    with pytest.raises(EngineError, match="The bare loop ended"), bare_loop(replace(INFO, path=__file__)):
        pass
    capfd.readouterr()
