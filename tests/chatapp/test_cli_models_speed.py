import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from models.fingerprint import weights_hash
from models.gguf_header import read_header
from models.modelfacts import facts_of
from models.tuning import Rates, Trial, Tuned, Tuning, remember, remembered
from models.typerates import TypeRate, TypeRates, remember_types
from tests.chatapp.test_cli_models import Shell
from tests.models import tiny_models

OFF = Trial(Tuning(False, 2, 2), Rates(40.0, 100.0, 200.0))
ON = Trial(Tuning(True, 2, 2), Rates(20.0, 120.0, 250.0))
TUNED = Tuned(Tuning(False, 1, 2), OFF.rates, (OFF, ON), depth=2048, measured_at=1e9, foreign=0.0)
TYPES = TypeRates({"Q4_K_M": TypeRate(600, 150), "Q4_0": TypeRate(900, 180), "F16": TypeRate(300, 60)}, measured_at=1e9)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The commands over an own folder with one tiny model, `tiny-dense`."""
    shell = Shell(tmp_path, monkeypatch)
    shell("add", str(tiny_models.build("dense", shell.put("x").parent)))
    return shell


Measured = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Makes the next measurement find this; returns what was asked of it."""

    def measured(tuned: Tuned = TUNED, **result: Any) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []

        def run_job(request: dict[str, Any], **_: object) -> dict[str, Any]:
            asked.append(request)
            found = {"weights": "ab", "before": None, "stored": {}, "on_gpu": None, "types": asdict(TYPES)}
            return found | {"tuned": asdict(tuned)} | result

        monkeypatch.setattr("chatapp.models_tune.run_job", run_job)
        return asked

    return measured


def weights(models: Shell) -> str:
    """The hash of the model, as loading it computes it."""
    return weights_hash(models.own / "tiny-dense.gguf", models.cache_dir, lambda _done, _n: None)


# --- tune ---


def test_tuning_measures_keeps_and_shows(models: Shell) -> None:
    """A real, short measurement: in the JSON, in `models info`, and forgotten again."""
    remember_types(models.cache_dir, TYPES)
    found = models.json("tune", "tiny", "--seconds", "20")
    assert {trial["flash_attention"] for trial in found["trials"]} == {False, True}
    assert found["choice"]["threads"] >= 1
    assert found["types"]["fastest"] == "Q4_0"
    assert (found["lost_kv_tokens"], found["before"]) == (0, None)
    kept = models.json("info", "tiny")["tuning"]
    assert kept == {key: found[key] for key in kept}
    assert models.json("tune", "tiny", "--forget") == {"forgotten": True}
    assert models.json("info", "tiny")["tuning"] is None


def test_the_table_shows_what_was_tried_and_the_choice(models: Shell, measured: Measured) -> None:
    """A row for each, the choice in words, the types of weights."""
    asked = measured()
    lines = models("tune", "tiny", "--kv-type", "f16").splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["off", "2", "2", "512", "f16", "40.0/s", "100/s", "200/s", "3.84", "s"],
        ["on", "2", "2", "512", "f16", "20.0/s", "120/s", "250/s", "6.92", "s"],
    ]
    assert lines[4].startswith("Flash attention off, 1 thread (2 for prompts), 512 tokens together: decode 40.0")
    assert lines[-1] == "Q4_0 is the fastest here for chat: 1.24 x Q4_K_M (prefill 1.50 x, decode 1.20 x)."
    assert (asked[0]["model"], asked[0]["thorough"], asked[0]["seconds"]) == (
        str((models.own / "tiny-dense.gguf").resolve()),
        False,
        None,
    )
    assert remembered(models.cache_dir, "ab", "f16") == TUNED


def test_a_doubtful_measurement_is_said_and_used_for_some_hours(models: Shell, measured: Measured) -> None:
    """In words and in JSON, and of a note of it in `models info`."""
    doubtful = replace(TUNED, foreign=1.4)
    measured(doubtful)
    assert "used 1.4 processors meanwhile. It is used for 6 hours: measure again" in models("tune", "tiny")
    assert models.json("tune", "tiny")["doubtful"] is True
    assert remembered(models.cache_dir, "ab", "f16") == doubtful
    remember(models.cache_dir, weights(models), doubtful)
    printed = " ".join(models("info", "tiny").split())
    assert re.search("measured 2001-09-09 .{5} while other programs were busy: doubtful", printed)


def test_a_doubtful_measurement_does_not_replace_a_sure_one(models: Shell, measured: Measured) -> None:
    """That stays, and it is said."""
    measured(replace(TUNED, foreign=1.4), before=asdict(TUNED))
    assert "It is not kept: measure again" in models("tune", "tiny")
    models.json("tune", "tiny")
    assert remembered(models.cache_dir, "ab", "f16") is None


def test_where_others_cannot_be_seen_that_is_said(models: Shell, measured: Measured) -> None:
    """The measurement is kept."""
    measured(replace(TUNED, foreign=None))
    assert "cannot be seen on this system" in models("tune", "tiny")
    assert remembered(models.cache_dir, "ab", "f16")


def test_what_a_switch_costs_is_said(models: Shell, measured: Measured) -> None:
    """Tokens and bytes that were made with the other mode; or that it was not worth it."""
    stored = {"on": {"n_tokens": 12_000, "n_bytes": 277 << 20}}
    measured(stored=stored)
    assert "12,000 tokens of stored KV (277 MiB) were made with flash attention on" in models("tune", "tiny")
    assert models.json("tune", "tiny")["lost_kv_tokens"] == 12_000
    measured(replace(TUNED, reason="kv"), stored={"off": stored["on"]})
    assert "Flash attention stays off: the other is faster, by less than 10 %, and stored KV would be lost" in models(
        "tune", "tiny"
    )


def test_own_settings_and_the_gpu_are_mentioned(
    models: Shell, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the user set is used whatever was measured; layers on the GPU are theirs to choose."""
    monkeypatch.setenv("CHATAPP_THREADS", "2")
    measured(on_gpu=asdict(Rates(300.0, 1.0, 1.0)))
    printed = models("tune", "tiny")
    assert "What you set yourself" in printed
    assert "(--gpu-layers -1): decode 300.0 tokens/s" in printed
    assert models.json("tune", "tiny")["on_gpu"]["decode_tokens_per_s"] == 300


def test_a_server_is_not_measured(models: Shell) -> None:
    """Nor an engine that only demonstrates."""
    models("tune", "tiny", "--engine", "fake", code=1)
    assert "name --engine llama" in models.stderr


def test_a_model_that_cannot_be_used_is_one_sentence(models: Shell) -> None:
    """Before anything is started."""
    path = models.put("bad.gguf", b"<html>")
    models("tune", str(path), code=1)
    assert models.stderr == "Error: bad.gguf is not a GGUF model file.\n"


# --- info ---


def test_info_says_what_is_fastest_here(models: Shell) -> None:
    """The settings with their rates and day; the types in comparison with the model's own."""
    assert "`chatapp models tune` does" in models("info", "tiny")
    remember(models.cache_dir, weights(models), TUNED)
    remember_types(models.cache_dir, TYPES)
    printed = models("info", "tiny")
    assert "Flash attention off, 1 thread (2 for prompts), 512 tokens together, measured 2001-09-09" in printed
    assert "decode 40.0 and messages 100 tokens/s behind 2,048 tokens, first prompts 200 tokens/s" in printed
    assert "Q4_0 is the fastest here for chat: 1.24 x Q4_K_M (prefill 1.50 x, decode 1.20 x)" in printed
    assert models.json("info", "tiny")["tuning"]["choice"] == asdict(TUNED.choice)


def test_a_type_that_is_hardly_faster_is_not_recommended(models: Shell) -> None:
    """Which of them is ahead changes from run to run."""
    remember_types(models.cache_dir, replace(TYPES, rates={**TYPES.rates, "Q4_0": TypeRate(600, 155)}))
    assert "Q4_K_M is as fast here for chat as any (Q4_0 gains 3%)" in models("info", "tiny")


# --- convert ---


def test_a_conversion_is_kept_and_can_be_used(models: Shell) -> None:
    """A real one: its figures, its file, its name; again, it is refused."""
    found = models.json("convert", "tiny", "--to", "q8_0", "--yes")
    path = models.own / "tiny-dense-Q8_0.gguf"
    assert (found["path"], found["from"], found["to"]) == (str(path), "F32", "Q8_0")
    assert 0 < found["mean_kl"] < 1
    assert 0 < found["top1_agreement"] <= 1
    assert facts_of(read_header(path), found["size_bytes"]).quantization == "Q8_0"
    remember_types(models.cache_dir, replace(TYPES, rates={"Q8_0": TypeRate(0.01, 1)}))
    remember(models.cache_dir, weights_hash(path, models.cache_dir, lambda _done, _n: None), TUNED)
    info = models.json("info", "tiny-dense-Q8_0")
    assert (info["source"], info["types"]["fastest"], info["tuning"]["prompt_limit_share"]) == ("own", "Q8_0", 1)
    assert "100% of what this machine does with wide matrices of Q8_0" in models("info", "tiny-dense-Q8_0")
    models("convert", "tiny-dense.gguf", "--to", "Q8_0", "--yes", code=1)
    models("convert", "tiny-dense", "--to", "Q8_0", "--yes", code=1)
    assert "is already there" in models.stderr
    models("convert", "tiny-dense-Q8_0", "--to", "Q8_0", "--yes", code=1)
    assert "is Q8_0 already" in models.stderr


def test_it_is_kept_once_its_loss_was_told(models: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures come before the question; no keeps nothing, yes keeps it where it was wanted."""
    asked: list[dict[str, Any]] = []

    def run_job(request: dict[str, Any], **_: object) -> dict[str, Any]:
        asked.append(request)
        Path(request["target"]).write_bytes(b"converted")
        loss = {"mean_kl": 0.3, "top1_agreement": 0.65, "perplexity_before": 70, "perplexity_after": 84}
        speed = {"prefill_ratio": 2.5, "decode_ratio": 1.5, "foreign": 1.0}
        return {"size_bytes": 9, "loss": loss | {"n_tokens": 1024}, "speed": speed}

    monkeypatch.setattr("chatapp.models_convert.run_job", run_job)
    target = models.home / "out.gguf"
    printed = models("convert", "tiny", "--to", "Q4_0", "-o", str(target), typed="n\n", code=1)
    assert "mean KL 0.3000, the same likeliest token in 65.0% of 1,024 places" in printed
    assert "prefill 2.50 x and decode 1.50 x F32, as Q4_0 here (doubtful: other programs were busy)" in printed
    assert f"Keep it as {target}?" in models.stderr
    assert "Nothing was kept." in models.stderr
    assert not target.exists()
    models("convert", "tiny", "--to", "Q4_0", "-o", str(target), typed="y\n")
    assert target.read_bytes() == b"converted"
    models("convert", "tiny", "--to", "Q4_0", "-o", str(models.home), "--yes")
    assert (models.home / "tiny-dense-Q4_0.gguf").read_bytes() == b"converted"
    assert list(models.home.glob(".*part")) == []


def test_without_a_terminal_nothing_is_begun(models: Shell) -> None:
    """Nobody could be asked behind the work: wrong usage at once."""
    models("convert", "tiny", "--to", "Q8_0", code=2)
    assert "--yes" in models.stderr
    assert not models.cache_dir.joinpath("logs").exists()


def test_an_unknown_type_is_wrong_usage(models: Shell) -> None:
    """With those that there are."""
    models("convert", "tiny", "--to", "Q9_9", "--yes", code=2)
    assert "Q9_9 is none of Q2_K, " in models.stderr
