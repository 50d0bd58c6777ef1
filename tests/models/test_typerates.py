import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from models.gguf_header import Header, read_header
from models.probefile import multiplied_bytes
from models.typerates import TypeRate, TypeRates, prompt_limit, remember_types, remembered_types, types_from
from tests.models.ggufs import gguf, llama, tensor

RATES = TypeRates(
    {"Q4_0": TypeRate(700, 190), "Q4_K_M": TypeRate(600, 150), "F16": TypeRate(560, 64)}, measured_at=1e9, foreign=0.1
)


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    """For this machine and build of llama.cpp only."""
    assert remembered_types(tmp_path) is None
    remember_types(tmp_path, RATES)
    assert remembered_types(tmp_path) == RATES


@pytest.mark.parametrize("what", ["models.tuning._cpu_name", "models.typerates.LLAMA_BUILD"])
def test_another_machine_or_build_knows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A cache folder that moved is not believed."""
    remember_types(tmp_path, RATES)
    monkeypatch.setattr(what, (lambda: "another") if what.endswith("name") else "another")
    assert remembered_types(tmp_path) is None


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"rates": {}, "measured_at": 1, "foreign": null}',
        b'{"rates": {"Q4_0": {"prefill": 0, "decode": 1}}, "measured_at": 1, "foreign": null}',
        b'{"rates": {"Q4_0": {"prefill": "fast", "decode": 1}}, "measured_at": 1, "foreign": null}',
        b'{"rates": [], "measured_at": 1, "foreign": null}',
    ],
)
def test_a_damaged_note_is_no_measurement(tmp_path: Path, junk: bytes) -> None:
    """It is measured again."""
    remember_types(tmp_path, RATES)
    (note,) = (tmp_path / "weighttypes").iterdir()
    note.write_bytes(junk)
    assert remembered_types(tmp_path) is None


def test_the_fastest_is_that_of_a_whole_turn() -> None:
    """Decoding weighs more than prefill."""
    assert RATES.fastest == "Q4_0"
    assert replace(RATES, rates={"A": TypeRate(2000, 20), "B": TypeRate(200, 40)}).fastest == "B"


@pytest.mark.parametrize(("own", "other"), [("F16", "F16"), ("Q2_K", "Q4_K_M"), (None, "Q4_K_M")])
def test_it_is_compared_with_the_own_or_the_usual_type(own: str | None, other: str) -> None:
    """One that was not measured is compared by the usual one."""
    assert RATES.compared(own) == other
    assert replace(RATES, rates={"F16": TypeRate(1, 1)}).compared("Q2_K") is None


def test_a_prompt_is_limited_by_the_rate_of_its_type(tmp_path: Path) -> None:
    """A model with half the bytes in its layers could read twice as fast; experts and unmeasured types are unknown."""

    def header(n_rows: int, name: str = "blk.0.ffn_up.weight") -> Header:
        path = tmp_path / "m.gguf"
        path.write_bytes(gguf(llama(), [tensor(name, [32, n_rows])]))
        return read_header(path)

    n_rows = multiplied_bytes("F16") // (32 * 4)
    types = replace(RATES, rates={"F16": TypeRate(500, 60)})
    whole, half = prompt_limit(types, "F16", [header(n_rows)]), prompt_limit(types, "F16", [header(n_rows // 2)])
    assert whole == pytest.approx(500)
    assert half == pytest.approx(1000)
    assert prompt_limit(types, "F16", [header(n_rows // 2), header(n_rows // 2)]) == pytest.approx(500)
    assert prompt_limit(types, "F16", [header(n_rows, "blk.0.ffn_up_exps.weight")]) is None
    assert (prompt_limit(types, "Q2_K", [header(1)]), prompt_limit(types, None, [header(1)])) == (None, None)


def test_busy_programs_make_it_doubtful() -> None:
    """Not knowing of any does not."""
    assert [replace(RATES, foreign=foreign).is_doubtful for foreign in (None, 0.1, 1.0)] == [False, False, True]


def test_its_json_gives_it_back() -> None:
    """As the process that measures sends it."""
    assert types_from(json.loads(json.dumps(asdict(RATES)))) == RATES
