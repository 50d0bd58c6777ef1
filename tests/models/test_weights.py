from pathlib import Path

import pytest

from models.errors import ModelError
from models.llama import Model
from models.weights import LoadingWeights
from tests.models.helpers import starter


def test_weights_are_handed_over_when_they_are_there(native_log: list[str]) -> None:
    """What is told of the progress grows, and the model can be used."""
    assert native_log is not None
    shares: list[float] = []
    model = LoadingWeights(starter(), gpu_layers=0).take(shares.append)
    assert isinstance(model, Model)
    assert shares == sorted(shares)
    assert model.tokenize("hello", False)
    model.close()


def test_what_is_no_model_is_told_at_once(tmp_path: Path) -> None:
    """Native code never sees it."""
    path = tmp_path / "text.gguf"
    path.write_text("not a model")
    with pytest.raises(ModelError, match="not a GGUF model file"):
        LoadingWeights(path, gpu_layers=0)


def test_a_damaged_model_is_told_when_it_is_wanted(native_log: list[str], tmp_path: Path) -> None:
    """What the thread met reaches who waits for the model."""
    assert native_log is not None
    path = tmp_path / "cut.gguf"
    path.write_bytes(starter().read_bytes()[:100_000])
    with pytest.raises(ModelError, match="damaged"):
        LoadingWeights(path, gpu_layers=0).take(lambda _share: None)
