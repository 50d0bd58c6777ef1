from dataclasses import fields
from pathlib import Path

import pytest
from gguf import GGUFWriter

from models.engine import ModelInfo, Sampling
from models.llama import Model
from models.presets import PRESETS, SamplingChoice, recommended
from tests.models import tiny_models


def test_what_was_given_wins_over_the_preset_and_that_over_the_model() -> None:
    """Each layer changes only what it names."""
    recommended = Sampling(temperature=0.6, top_k=20, top_p=0.8)
    assert SamplingChoice().over(recommended) == recommended
    assert SamplingChoice(None, {"top_k": 3}).over(recommended) == Sampling(temperature=0.6, top_k=3, top_p=0.8)
    chosen = SamplingChoice("creative", {"temperature": 0.0, "seed": 7}).over(recommended)
    assert (chosen.temperature, chosen.top_k, chosen.top_p, chosen.seed) == (0.0, 0, 1.0, 7)


def test_a_preset_can_be_chosen_for_a_model() -> None:
    """By its name or that of its file, whatever the case; other models keep what they recommend."""
    info = make_info("Some Model", "/models/some-model.Q4.gguf", Sampling(temperature=0.6))
    assert recommended(info, {}) == recommended(info, {"other": "precise"}) == Sampling(temperature=0.6)
    for name in ("some model", "SOME-model.q4"):
        assert recommended(info, {name: "precise"}).temperature == PRESETS["precise"]["temperature"]


def make_info(name: str, path: str, sampling: Sampling) -> ModelInfo:
    """Return a loaded model of which only these matter."""
    return ModelInfo(
        name=name,
        path=path,
        architecture="llama",
        n_params=1,
        weights_bytes=1,
        n_ctx=1,
        n_ctx_train=1,
        kv_bytes_per_token=1,
        flash_attention=False,
        threads=1,
        gpu_layers=0,
        fingerprint="",
        supports_system=True,
        kv_note=None,
        load_s=0.0,
        sampling=sampling,
    )


def test_presets_are_fields_of_sampling() -> None:
    """Each names the same ones, and only what choosing a token is about."""
    assert {frozenset(values) for values in PRESETS.values()} == {
        frozenset(("temperature", "top_k", "top_p", "min_p", "repeat_penalty"))
    }
    assert set(PRESETS["precise"]) <= {field.name for field in fields(Sampling)}


@pytest.mark.parametrize(
    ("recommended", "expected"),
    [
        ({}, Sampling()),
        ({"temp": 0.6, "top_p": 0.95, "min_p": 0.0}, Sampling(temperature=0.6, top_p=0.95, min_p=0)),
        ({"top_k": 20, "penalty_repeat": 1.1}, Sampling(top_k=20, repeat_penalty=1.1)),
        ({"temp": float("nan"), "top_p": 0.0, "min_p": 7.0, "top_k": -1, "penalty_repeat": float("inf")}, Sampling()),
    ],
)
def test_a_model_file_may_recommend_sampling(
    recommended: dict[str, float],
    expected: Sampling,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    native_log: list[str],
) -> None:
    """What makes sense of it is taken, the rest is the usual."""
    assert native_log is not None

    def write(writer: GGUFWriter, value: str) -> None:
        writer.add_string("general.name", value)
        for key, number in recommended.items():
            if isinstance(number, int):
                writer.add_int32(f"general.sampling.{key}", number)
            else:
                writer.add_float32(f"general.sampling.{key}", number)

    monkeypatch.setattr(GGUFWriter, "add_name", write)
    model = Model(tiny_models.build("dense", tmp_path), gpu_layers=0, progress=lambda _share: None)
    assert model.recommended_sampling == expected
    model.close()
