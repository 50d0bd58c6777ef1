from contextlib import closing
from pathlib import Path

import pytest

from models.llama import Model
from models.measuring import speed_ratios
from tests.models import tiny_models


@pytest.mark.parametrize(("seconds", "is_compared"), [(60.0, True), (0.0, False)])
def test_speeds_are_compared_as_far_as_the_time_goes(
    tmp_path: Path, native_log: list[str], monkeypatch: pytest.MonkeyPatch, seconds: float, is_compared: bool
) -> None:
    """Where it is over before one round there is nothing to tell, which is no error: a conversion took hours."""
    assert native_log is not None
    monkeypatch.setattr("models.measuring._COMPARISON_S", seconds)
    with closing(Model(tiny_models.build("dense", tmp_path), gpu_layers=0, progress=lambda _share: None)) as model:
        ratios = speed_ratios(model, model, threads=1)
    assert (ratios is not None) is is_compared
    assert ratios is None or min(ratios.prefill_ratio, ratios.decode_ratio) > 0
