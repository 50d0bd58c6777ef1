"""The meters of a conversation at a server: what it had of the prompt, what a turn cost, until when it is kept."""

from dataclasses import replace

import pytest

from chatapp.tui.live import ModelState, Readings
from chatapp.tui.meterline import one_line
from chatapp.tui.readouts import WIDTH, context_text, model_text, reuse_text
from chatapp.tui.serverlines import server_text
from models.engine import Finished, ModelInfo, Piece, Prepared, Prices, Progress, Server, TokenRun, TurnStats
from models.remote_info import info_of
from models.remote_probe import Facts
from models.remote_profile import RemoteProfile

STATS = TurnStats(prompt_tokens=1000, resident_tokens=900, restored_tokens=0, prefilled_tokens=100, output_tokens=10)


@pytest.fixture
def info() -> ModelInfo:
    """A model at a service with prices and a cache that lives five minutes."""
    profile = RemoteProfile("box", "https://host/v1", cache_lifetime_s=300.0, prices=Prices(3.0, 15.0, 0.3))
    return info_of(profile, Facts("generic", "m", n_ctx=4096), 0.1)


def after_a_turn(stats: TurnStats) -> Readings:
    """What the meters know when an answer of unknown tokens has ended."""
    readings = Readings()
    readings.sending(10.0, queued=False, is_first=False)
    readings.apply(Progress("wait", 1, 5), 10.1)
    readings.apply(Progress("prefill", 0, 0), 10.2)
    readings.apply(Prepared(0, 0, 0, None, 0.0, 0.0, 0, (), is_counted=False), 10.4)
    readings.apply(Piece("Pears.", ()), 10.5)
    readings.apply(Finished("end", "Pears.", TokenRun((), 0, 0), stats), 11.0)
    return readings


def test_a_turn_that_the_server_counted(info: ModelInfo) -> None:
    """Resident tokens, money and the time of day when the prefix goes cold."""
    lines = server_text(after_a_turn(STATS), info, 71.0, clock=lambda: 0.0).plain.splitlines()
    assert lines[:2] == ["resident at the server: 900", "this turn: about 0.00072 USD"]
    assert lines[2].startswith("the prefix goes cold at ")
    assert server_text(after_a_turn(STATS), info, 400.0).plain.endswith("the prefix is cold by now")


def test_what_the_server_does_not_tell(info: ModelInfo) -> None:
    """It is unknown, not 0, and the money is the most it can be."""
    stats = replace(STATS, resident_tokens=None, restored_tokens=None, prefilled_tokens=None)
    text = server_text(after_a_turn(stats), info, 20.0).plain
    assert "cached at the server: unknown" in text
    assert "this turn: at most 0.0032 USD" in text
    assert "unknown" in reuse_text(after_a_turn(stats)).plain


def test_the_context_without_token_ids(info: ModelInfo) -> None:
    """Its size comes from the counts; a count that nobody gave leaves no zero behind."""
    readings = after_a_turn(STATS)
    assert readings.context_tokens == 1010
    assert "at the server" in context_text(readings, info).plain
    assert readings.ttft(12.0) == (0.5, True)
    assert readings.reuse is None


def test_the_model_says_where_it_runs(info: ModelInfo) -> None:
    """Instead of threads and flash attention of this machine."""
    text = model_text(ModelState(info), 8).plain
    assert "generic · host" in text
    assert "thread" not in text


def test_nothing_of_it_for_a_model_of_this_machine(info: ModelInfo) -> None:
    """Nor before the first turn."""
    assert server_text(after_a_turn(STATS), replace(info, server=None), 20.0).plain == ""
    assert server_text(Readings(), info, 20.0).plain == ""
    assert server_text(after_a_turn(STATS), None, 20.0).plain == ""


def test_a_prompt_of_unknown_length_is_shown(info: ModelInfo) -> None:
    """Progress without a total divides by nothing."""
    readings = Readings()
    readings.sending(10.0, queued=False, is_first=False)
    readings.apply(Progress("prefill", 0, 0), 10.2)
    assert one_line(readings, ModelState(info), 11.0, 80).plain
    assert Server("box", "host", "generic", 300.0, Prices(3.0, 15.0, 0.3)) == info.server
    assert WIDTH > 0
