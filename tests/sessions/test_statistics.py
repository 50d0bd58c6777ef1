from datetime import UTC, date, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.statistics import FIELDS, Percentiles, percentile, summarize

DAY_S = 86_400


def row(at: float = 0.0, model: str | None = "tiny", weights: str | None = "aa", **known: Any) -> dict[str, Any]:
    """Return a turn's row of which some fields are known."""
    return {**dict.fromkeys(FIELDS), "at": at, "model": model, "weights": weights, **known}


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(1, 100))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(values: list[float], percent: int) -> None:
    """It is one of the values, enough are not larger, and no smaller one would do."""
    found = percentile(sorted(values), percent)
    needed = len(values) * percent / 100
    assert found in values
    assert sum(value <= found for value in values) >= needed
    assert sum(value < found for value in values) < needed


def test_percentiles_of_known_values() -> None:
    """Of twenty values, the tenth and the nineteenth."""
    found = summarize(row(ttft_s=float(n), tpot_s=n / 100) for n in range(20, 0, -1)).total
    assert found.ttft_s == Percentiles(10.0, 19.0)
    assert found.tokens_per_s == Percentiles(1 / 0.10, 1 / 0.19)


def test_what_no_turn_knows_is_none() -> None:
    """Unknown is not zero, in sums as well as shares; a sum is over the turns that know it."""
    found = summarize([row(), row(prefill_s=0.5), row(prefill_s=0.25)]).total
    assert (found.n_turns, found.prefill_s) == (3, 0.75)
    unknown = (found.ttft_s, found.tokens_per_s, found.restore_s, found.output_tokens, found.kv_bytes_written)
    assert unknown == (None,) * 5
    assert (found.prompt_tokens, found.reuse_share, found.resident_share) == (None, None, None)


def test_shares_are_of_turns_that_know_all_parts() -> None:
    """A turn that knows only one of the parts would bend all of them."""
    whole = row(prompt_tokens=100, resident_tokens=50, restored_tokens=30, prefilled_tokens=20)
    found = summarize([whole, row(prompt_tokens=1000, resident_tokens=1000)]).total
    shares = (found.resident_share, found.restored_share, found.prefilled_share, found.reuse_share)
    assert (found.prompt_tokens, *shares) == (100, 0.5, 0.3, 0.2, 0.8)


def test_groups_are_models_by_content_and_days_of_the_zone() -> None:
    """Two models of one name stay two; a day begins at midnight where the user is."""
    rows = [
        row(DAY_S - 3600, output_tokens=1),
        row(DAY_S + 60, output_tokens=2),
        row(DAY_S + 60, weights="bb", output_tokens=4),
    ]
    by_model = summarize(rows, ["model"])
    assert [(g.model, g.weights, g.day, g.figures.output_tokens) for g in by_model.groups] == [
        ("tiny", "aa", None, 3),
        ("tiny", "bb", None, 4),
    ]
    both = summarize(rows, ["day", "model"], zone=UTC)
    first, second = date(1970, 1, 1), date(1970, 1, 2)
    assert [(g.day, g.weights) for g in both.groups] == [(first, "aa"), (second, "aa"), (second, "bb")]
    in_nepal = summarize(rows, ["day"], zone=timezone(timedelta(hours=5, minutes=45)))
    assert [(g.day, g.model, g.figures.n_turns) for g in in_nepal.groups] == [(second, None, 3)]
    assert by_model.total == both.total == in_nepal.total == summarize(rows).total
    assert summarize(rows).groups == ()


def test_miss_reasons_are_counted_without_their_numbers() -> None:
    """The same reason at other tokens is the same reason; most frequent first."""
    reasons = ["stored up to token 1,024", "nothing stored", "stored up to token 7", None]
    found = summarize(row(miss_reason=reason) for reason in reasons).total
    assert found.miss_reasons == (("stored up to token …", 2), ("nothing stored", 1))


def test_no_turns_are_no_figures() -> None:
    """Without a turn there is neither a group nor a value."""
    found = summarize([], ["model"])
    assert (found.groups, found.total.n_turns, found.total.ttft_s) == ((), 0, None)


def test_no_values_have_no_percentile() -> None:
    """To ask for one is the caller's mistake."""
    with pytest.raises(AssertionError, match="no values"):
        percentile([], 50)
