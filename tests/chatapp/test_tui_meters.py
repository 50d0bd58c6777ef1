from __future__ import annotations

import pytest

from chatapp.tui import words
from chatapp.tui.live import ModelState, Readings
from chatapp.tui.meters import one_line, resume_text, reuse_text
from models.engine import Finished, Piece, Prepared, Progress, Stored, TokenRun, TurnStats

PREPARED = Prepared(0, 4010, 22, None, 0.0624, 0.09, 4_129_280, ())


def test_a_turn_is_timed_from_its_events() -> None:
    """TTFT runs from sending to the first text, TPOT over the tokens after it."""
    readings = Readings()
    readings.sending(10.0, queued=False, is_first=False)
    assert readings.ttft(10.5) == (0.5, False)
    readings.apply(PREPARED, 10.2)
    readings.apply(Piece("a", (1,)), 10.5)
    readings.apply(Piece("b", (2, 3)), 10.7)
    assert readings.ttft(11.0) == (0.5, True)
    assert readings.tpot() == pytest.approx(0.1)
    assert readings.context_tokens == 4035


def test_the_end_of_a_phase_is_estimated_from_its_rate() -> None:
    """After a quarter of the tokens in one second, three seconds are left."""
    readings = Readings()
    readings.apply(Progress("prefill", 0, 4000), 5.0)
    assert readings.eta(5.0) is None
    readings.apply(Progress("prefill", 1000, 4000), 6.0)
    assert readings.eta(6.0) == pytest.approx(3.0)


def test_how_a_conversation_came_back_is_said_in_words() -> None:
    """The panel says what was restored and how long it took, and keeps saying it in the next turn."""
    readings = Readings()
    readings.opening(0.0, queued=False)
    readings.apply(PREPARED, 0.1)
    assert resume_text(readings).plain == "restored 4,010 tokens in 62 ms"
    readings.sending(1.0, queued=False, is_first=False)
    readings.apply(Prepared(4032, 0, 16, None, 0.0, 0.05, 1, ()), 1.1)
    assert "restored 4,010 tokens" in resume_text(readings).plain
    assert "resident 4,032" in reuse_text(readings).plain
    assert "prefilled 16" in reuse_text(readings).plain


def test_a_miss_is_explained_but_not_in_a_new_conversation() -> None:
    """The reason stands where KV could have been used; a first message never could."""
    miss = Prepared(0, 0, 40, "the model file has changed", 0.0, 0.1, 1, ())
    readings = Readings()
    readings.sending(0.0, queued=False, is_first=True)
    readings.apply(miss, 0.1)
    assert resume_text(readings).plain == ""
    readings.sending(1.0, queued=False, is_first=False)
    readings.apply(miss, 1.1)
    assert "not from disk: the model file has changed" in resume_text(readings).plain


def test_bytes_written_arrive_after_the_answer() -> None:
    """`Stored` fills in what the turn wrote."""
    readings = Readings()
    readings.sending(0.0, queued=False, is_first=True)
    readings.apply(Finished("end", "a", TokenRun((1, 2, 3), 1, 2), TurnStats(prompt_tokens=10)), 1.0)
    readings.apply(Stored(1234, "f", None), 1.5)
    assert readings.stats.kv_bytes_written == 1234
    assert readings.context_tokens == 13


@pytest.mark.parametrize("width", [20, 50, 80])
def test_the_folded_line_fits(width: int) -> None:
    """Whatever the width, the line is not longer, and says how the conversation came back first."""
    readings = Readings()
    readings.opening(0.0, queued=False)
    readings.apply(PREPARED, 0.1)
    model = ModelState(failure=None)
    line = one_line(readings, model, 0.2, width).plain
    assert len(line) <= width


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0004, "<1 ms"), (0.0025, "2.5 ms"), (0.062, "62 ms"), (0.6, "0.60 s"), (42.4, "42 s"), (130, "2 min 10 s")],
)
def test_durations(value: float, text: str) -> None:
    """Durations keep two to three digits."""
    assert words.seconds(value) == text


@pytest.mark.parametrize(
    ("parts", "cells"), [((0, 0, 0), (0, 0, 0)), ((4000, 0, 1), (9, 0, 1)), ((1, 1, 1), (4, 3, 3))]
)
def test_every_origin_of_tokens_is_visible_in_the_bar(parts: tuple[int, ...], cells: tuple[int, ...]) -> None:
    """The cells of a bar add up, and one token out of thousands still has a cell."""
    assert words.shares(parts, 10) == cells
