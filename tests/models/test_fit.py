from pathlib import Path

import pytest

from models.fit import Fit, available_memory, fit, kv_bytes_per_token

MIB = 1 << 20


def fits(available_mib: float, *, kv_elements: int | None = 512, n_ctx: int | None = 1024, kv_type: str = "f16") -> Fit:
    """A model of 100 MiB with 1 KiB of KV a token in f16."""
    return fit(
        weights_bytes=100 * MIB,
        kv_elements=kv_elements,
        n_ctx_train=8192,
        kv_type=kv_type,
        n_ctx=n_ctx,
        available_bytes=int(available_mib * MIB),
    )


@pytest.mark.parametrize(
    ("available_mib", "verdict"),
    [(1000, "fits"), (126.25, "fits"), (126, "tight"), (101, "tight"), (100.9, "too large")],
)
def test_weights_and_kv_are_compared_with_memory(available_mib: float, verdict: str) -> None:
    """Up to four fifths of it are comfortable."""
    found = fits(available_mib)
    assert (found.verdict, found.needed_bytes, found.kv_bytes) == (verdict, 101 * MIB, MIB)


def test_the_context_counts() -> None:
    """Eight times as much of it takes eight times the KV; q8_0 about half."""
    assert fits(1000, n_ctx=8192).kv_bytes == 8 * MIB
    assert fits(1000, kv_type="q8_0").kv_bytes == MIB * 34 // 64
    assert kv_bytes_per_token(64, "q8_0") == 68


def test_without_a_context_the_engines_choice_is_taken() -> None:
    """What it was trained for, or less if the KV would take more than two fifths of the memory."""
    assert fits(1000, n_ctx=None).n_ctx == 8192
    assert fits(10, n_ctx=None).n_ctx == 4096


def test_unknown_kv_is_said() -> None:
    """Unless the weights alone are too large."""
    assert fits(1000, kv_elements=None).verdict == "unknown"
    assert fits(1000, kv_elements=None).kv_bytes is None
    assert fits(50, kv_elements=None).verdict == "too large"


def test_a_recurrent_model_has_no_kv_that_grows() -> None:
    """Weights alone count."""
    found = fits(1000, kv_elements=0, n_ctx=None)
    assert (found.verdict, found.kv_bytes, found.n_ctx) == ("fits", 0, 8192)


def test_there_is_memory() -> None:
    """The system tells how much."""
    assert available_memory() > MIB


def test_a_system_that_does_not_tell_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what there is, or 4 GiB."""

    def nothing(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(Path, "open", nothing)
    assert available_memory() > MIB
    monkeypatch.setattr("os.sysconf", nothing)
    assert available_memory() == 4 << 30
