import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.cost import Estimate, Rates, rates_from

COUNTS = st.integers(0, 10**7)
SIZES = st.integers(0, 10**12)
SECONDS = st.floats(0, 1e4)
RATE = st.floats(0, 999)
RATES = st.builds(Rates, RATE, RATE, RATE)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def is_sane(rates: Rates) -> bool:
    """True for rates an estimate can be made from."""
    return all(math.isfinite(value) and value >= 0 for value in rates.to_json().values())


# --- the decision ---


def test_the_faster_way_is_taken() -> None:
    """Restoring wins if it is expected to be faster; a draw goes to the prefill, which needs no file."""
    assert Estimate(1.0, 2.0).restores
    assert not Estimate(2.0, 1.0).restores
    assert not Estimate(1.0, 1.0).restores


def test_an_estimate_adds_files_and_bytes() -> None:
    """Each file and each byte costs its time, and the other way is so much for each token."""
    rates = Rates(prefill_s_per_token=0.5, restore_s_per_byte=0.25, restore_s_per_file=8.0)
    assert rates.estimate(n_tokens=6, n_bytes=12, n_files=2) == Estimate(restore_s=19.0, prefill_s=3.0)


def test_a_long_history_is_restored_before_anything_was_measured() -> None:
    """The first guesses are those of a plain disk and a small model."""
    assert Rates().estimate(n_tokens=4_000, n_bytes=4_000 * 23_040, n_files=6).restores


def test_a_few_tokens_of_a_large_state_are_prefilled() -> None:
    """Reading fifty megabytes takes longer than evaluating twenty tokens."""
    assert not Rates().estimate(n_tokens=20, n_bytes=50 << 20, n_files=1).restores


@given(RATES, COUNTS, SIZES, COUNTS, COUNTS, SIZES, COUNTS)
def test_more_never_costs_less(
    rates: Rates, tokens: int, size: int, files: int, more_tokens: int, more_size: int, more_files: int
) -> None:
    """Both estimates grow with what they depend on."""
    less = rates.estimate(n_tokens=tokens, n_bytes=size, n_files=files)
    more = rates.estimate(n_tokens=tokens + more_tokens, n_bytes=size + more_size, n_files=files + more_files)
    assert more.restore_s >= less.restore_s >= 0
    assert more.prefill_s >= less.prefill_s >= 0


@given(RATES, COUNTS, SIZES, COUNTS, COUNTS)
def test_more_tokens_for_the_same_bytes_never_speak_against_restoring(
    rates: Rates, tokens: int, size: int, files: int, more: int
) -> None:
    """What is restored stays so when there is more to gain from it."""
    if rates.estimate(n_tokens=tokens, n_bytes=size, n_files=files).restores:
        assert rates.estimate(n_tokens=tokens + more, n_bytes=size, n_files=files).restores


# --- learning ---


def test_a_steady_speed_is_learned() -> None:
    """After twenty turns at one speed the first guess no longer counts."""
    rates = Rates()
    for _ in range(20):
        rates = rates.after_prefill(1_000, 4.0).after_restore(100 << 20, 6, 0.5 + 6 * rates.restore_s_per_file)
    assert rates.prefill_s_per_token == pytest.approx(0.004, rel=0.01)
    assert rates.restore_s_per_byte == pytest.approx(0.5 / (100 << 20), rel=0.01)


def test_a_disk_that_was_slow_once_is_tried_again() -> None:
    """Nothing is learnt about a disk that is not used, so a refusal makes the next one less likely."""
    rates = Rates(prefill_s_per_token=0.001, restore_s_per_byte=1e-6)
    wanted = {"n_tokens": 1_000, "n_bytes": 20 << 20, "n_files": 3}
    n_refused = 0
    while not rates.estimate(**wanted).restores:
        rates = rates.after_refusal()
        n_refused += 1
    assert 5 < n_refused < 50
    assert Rates(restore_s_per_byte=0.0).after_refusal() == Rates(restore_s_per_byte=0.0)


def test_one_busy_moment_does_not_decide() -> None:
    """The newest measurement moves a rate less than half of the way, and a few more bring it back."""
    busy = Rates().after_prefill(1_000, 11.0)
    assert 0.001 < busy.prefill_s_per_token < 0.006
    for _ in range(20):
        busy = busy.after_prefill(1_000, 1.0)
    assert busy.prefill_s_per_token == pytest.approx(0.001, rel=0.02)


def test_nothing_is_expected_before_anything_was_measured() -> None:
    """The first guesses decide, but nobody is told them as a time."""
    assert Rates().expected_prefill_s(4_000) is None
    assert Rates().expected_restore_s(n_bytes=1 << 20, n_files=1) is None


def test_a_long_prefill_is_expected_by_long_ones() -> None:
    """Short messages cost more for each token: they say little about a long one, and it little about them."""
    rates = Rates().after_prefill(1_000, 2.0)
    for _ in range(20):
        rates = rates.after_prefill(20, 0.2)
    assert rates.expected_prefill_s(2_000) == pytest.approx(4.0)
    assert rates.expected_prefill_s(20) == pytest.approx(0.2, rel=0.05)
    assert Rates().after_prefill(20, 0.2).expected_prefill_s(2_000) is not None


def test_what_is_left_of_a_restore_is_expected_by_its_bytes_and_files() -> None:
    """As the decision between disk and prefill estimates it, from the first measured restore on."""
    rates = Rates().after_restore(100 << 20, 4, 0.5)
    expected = rates.estimate(n_tokens=0, n_bytes=1 << 20, n_files=3).restore_s
    assert rates.expected_restore_s(n_bytes=1 << 20, n_files=3) == expected


@given(RATES, COUNTS, SECONDS)
def test_a_measurement_moves_a_rate_towards_itself(rates: Rates, n_tokens: int, seconds: float) -> None:
    """The new rate lies between the old one and what was measured; the others stay."""
    after = rates.after_prefill(n_tokens, seconds)
    if n_tokens < 16:
        assert after == rates
    else:
        low, high = sorted((rates.prefill_s_per_token, seconds / n_tokens))
        assert low - 1e-9 <= after.prefill_s_per_token <= high + 1e-9
        assert (after.restore_s_per_byte, after.restore_s_per_file) == (
            rates.restore_s_per_byte,
            rates.restore_s_per_file,
        )


@given(RATES, SIZES, COUNTS, SECONDS)
def test_a_restore_moves_only_its_own_rate(rates: Rates, n_bytes: int, n_files: int, seconds: float) -> None:
    """Files are taken off before, and a restore that was faster than their guess is not negative."""
    after = rates.after_restore(n_bytes, n_files, seconds)
    assert (after.prefill_s_per_token, after.restore_s_per_file) == (
        rates.prefill_s_per_token,
        rates.restore_s_per_file,
    )
    if n_bytes < 1 << 18:
        assert after == rates
    assert is_sane(after)


@given(RATES, st.lists(st.tuples(COUNTS, SIZES, COUNTS, SECONDS), max_size=20))
def test_no_history_makes_nonsense(rates: Rates, turns: list[tuple[int, int, int, float]]) -> None:
    """Whatever is measured, the rates stay numbers from which an estimate can be made."""
    for n_tokens, n_bytes, n_files, seconds in turns:
        rates = rates.after_prefill(n_tokens, seconds).after_restore(n_bytes, n_files, seconds)
    assert is_sane(rates)


# --- remembering ---


@given(RATES)
def test_rates_come_back_as_they_were_remembered(rates: Rates) -> None:
    """Through JSON and back they are the same."""
    assert rates_from(json.loads(json.dumps(rates.to_json()))) == rates


@pytest.mark.parametrize("junk", [None, 5, "rates", [], {}, {"prefill_s_per_token": "fast"}, {"other": 1.0}])
def test_junk_is_the_first_guess(junk: Any) -> None:
    """What are no rates is not believed."""
    assert rates_from(junk) == Rates()


@pytest.mark.parametrize("value", [-0.001, math.nan, math.inf, -math.inf, 1e3])
@pytest.mark.parametrize("name", Rates().to_json())
def test_one_impossible_rate_spoils_them_all(name: str, value: float) -> None:
    """A speed that cannot be is a sign that nothing there was measured."""
    assert rates_from({**Rates(0.5, 0.5, 0.5).to_json(), name: value}) == Rates()


@given(JSON | st.dictionaries(st.sampled_from(list(Rates().to_json())), JSON))
def test_whatever_is_stored_gives_rates(stored: Any) -> None:
    """It never raises, and an estimate can be made from the result."""
    rates = rates_from(stored)
    assert is_sane(rates)
    assert isinstance(stored, Mapping) or rates == Rates()
