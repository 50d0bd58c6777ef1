import shutil
import struct
from contextlib import closing
from pathlib import Path

import pytest

from models.errors import ModelError
from models.llama import Model
from models.loss import compare
from tests.models import tiny_models


def opened(path: Path) -> Model:
    """The model at a path."""
    return Model(path, gpu_layers=0, progress=lambda _share: None)


@pytest.fixture
def tiny(tmp_path: Path, native_log: list[str]) -> Path:
    """A model of a few hundred kilobytes."""
    assert native_log is not None
    return tiny_models.build("dense", tmp_path)


def test_a_model_loses_nothing_against_itself(tiny: Path) -> None:
    """Its own probabilities are the same, everywhere."""
    with closing(opened(tiny)) as one, closing(opened(tiny)) as other:
        loss = compare(one, other, threads=1, progress=lambda _done, _n: None)
    assert (loss.mean_kl, loss.top1_agreement) == (0, 1)
    assert loss.perplexity_before == loss.perplexity_after


def test_what_are_no_numbers_is_no_loss_of_nothing(tiny: Path, tmp_path: Path) -> None:
    """A type whose range is too small makes such: that is an error, not the best result there can be."""
    broken = tmp_path / "broken.gguf"
    shutil.copy(tiny, broken)
    with broken.open("r+b") as file:
        file.seek(-4096, 2)
        file.write(struct.pack("<f", float("nan")) * 1024)
    with closing(opened(tiny)) as one, closing(opened(broken)) as other, pytest.raises(ModelError, match="no numbers"):
        compare(one, other, threads=1, progress=lambda _done, _n: None)
