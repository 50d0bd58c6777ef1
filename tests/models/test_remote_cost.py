"""What a turn costs, and when its prefix goes cold."""

from models.engine import Prices, TurnStats
from models.remote_cost import Cost, cold_in_s, turn_cost

PRICES = Prices(input=3.0, output=15.0, cached=0.3)


def test_each_kind_of_token_has_its_price() -> None:
    """Read, cached (restored ones too) and written; prices are for a million."""
    stats = TurnStats(prompt_tokens=1_000_000, resident_tokens=500_000, restored_tokens=100_000, output_tokens=100_000)
    found = turn_cost(stats, PRICES)
    assert found is not None
    assert (round(found.amount, 6), found.currency, found.is_most) == (0.4 * 3 + 0.6 * 0.3 + 0.1 * 15, "USD", False)


def test_what_is_not_known() -> None:
    """Without cached tokens it is the most it can be; without tokens or prices it is nothing."""
    assert turn_cost(TurnStats(prompt_tokens=1_000_000, output_tokens=0), PRICES) == Cost(3.0, "USD", is_most=True)
    assert turn_cost(TurnStats(prompt_tokens=10), PRICES) is None
    assert turn_cost(TurnStats(prompt_tokens=10, output_tokens=1), None) is None


def test_when_the_prefix_goes_cold() -> None:
    """A lifetime after the answer ended, and it stays cold."""
    assert cold_in_s(100.0, 160.0, 300.0) == 240.0
    assert cold_in_s(100.0, 900.0, 300.0) == 0.0
    assert cold_in_s(None, 900.0, 300.0) is None
    assert cold_in_s(100.0, 900.0, None) is None
