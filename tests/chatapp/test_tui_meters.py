from __future__ import annotations

from dataclasses import replace

import pytest

from chatapp.tui import words
from chatapp.tui.live import ModelState, Readings
from chatapp.tui.meterline import one_line
from chatapp.tui.readouts import (
    WIDTH,
    context_text,
    model_text,
    phase_text,
    reasoning_text,
    resume_text,
    reuse_text,
)
from chatapp.tui.screens import model_facts
from models.engine import Finished, ModelInfo, Piece, Prepared, Progress, Stored, TokenRun, TurnStats

PREPARED = Prepared(
    0, 4010, 22, None, 0.0624, 0.09, 4_129_280, (TokenRun(tuple(range(4030)), 2, 4029),), opening=(7, 8), closing=(9,)
)


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


def test_what_the_engine_expects_is_shown_before_anything_is_done() -> None:
    """A long prefill has an estimate at once; it runs down until the engine says anew, and not into the next phase."""
    readings = Readings()
    readings.apply(Progress("prefill", 0, 4000, 8.0), 5.0)
    assert readings.eta(5.0) == 8.0
    assert readings.eta(6.5) == 6.5
    assert "8.00 s" in phase_text(readings, ModelState(INFO), 5.0).plain
    readings.apply(Progress("prefill", 2000, 4000, 3.0), 7.0)
    assert readings.eta(8.0) == 2.0
    assert readings.eta(20.0) == 0.0
    readings.apply(Progress("decode", 0, 10), 21.0)
    assert readings.eta(21.0) is None


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


def test_the_context_is_counted_exactly() -> None:
    """Opening, answer and closing count once each; while it is written, what will stand behind it does not."""
    readings = Readings()
    readings.sending(0.0, queued=False, is_first=False)
    readings.apply(PREPARED, 0.1)
    assert readings.context_tokens == 4032
    readings.apply(Piece("ab", (1, 2)), 0.2)
    assert readings.context_tokens == 4034
    readings.apply(Finished("end", "ab", TokenRun((7, 8, 1, 2, 9), 2, 4), TurnStats(prompt_tokens=4032)), 0.3)
    assert readings.context_tokens == 4035


def test_stripped_reasoning_leaves_the_context() -> None:
    """What later prompts will not contain is not counted once the answer is complete."""
    readings = Readings()
    readings.sending(0.0, queued=False, is_first=False)
    readings.apply(PREPARED, 0.1)
    readings.apply(Piece("<think>b</think>c", (1, 2, 3, 4)), 0.2)
    finished = Finished("end", "<think>b</think>c", TokenRun((7, 8, 4, 9), 2, 3), TurnStats(stripped_tokens=3))
    readings.apply(finished, 0.3)
    assert readings.context_tokens == 4034


def test_what_an_answer_begins_with_is_no_output() -> None:
    """An answer that goes on repeats its beginning: the meters count, and time, what is new."""
    readings = Readings()
    readings.sending(10.0, queued=False, is_first=False)
    readings.apply(replace(PREPARED, prefilled=25), 10.1)
    assert readings.context_tokens == 4035
    readings.apply(Piece("old", (1, 2)), 10.2)
    ttft = readings.ttft(10.5)
    assert ttft == (0.5, False)
    readings.apply(Piece("er and new", (3, 4, 5)), 10.5)
    assert readings.n_output == 2
    assert readings.context_tokens == 4037
    assert readings.ttft(11.0) == (0.5, True)


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


INFO = ModelInfo(
    name="model",
    path="/models/model.gguf",
    architecture="llama",
    n_params=135_000_000,
    weights_bytes=1 << 20,
    n_ctx=1000,
    n_ctx_train=8192,
    kv_bytes_per_token=1024,
    flash_attention=True,
    threads=2,
    gpu_layers=0,
    fingerprint="f",
    supports_system=True,
    kv_note=None,
    load_s=1.0,
)


@pytest.mark.parametrize(
    ("used", "style", "words_of_it"),
    [(740, "", "74%"), (750, "$warning", "75% !"), (899, "$warning", "90% !"), (900, "$error", "90% !!")],
)
def test_a_filling_context_is_told_by_colour_and_glyph(used: int, style: str, words_of_it: str) -> None:
    """From three quarters on the panel and the line warn, from nine tenths on more so."""
    readings = Readings()
    readings.remembered(TurnStats(), used)
    panel = context_text(readings, INFO)
    assert " ".join(words_of_it.split()) in " ".join(panel.plain.split())
    assert any(style in str(span.style) for span in panel.spans)
    line = one_line(readings, ModelState(info=INFO), 0.0, 30)
    assert line.plain == f"ready · context {words_of_it}"


def test_a_full_context_comes_before_what_can_be_left_out() -> None:
    """In a narrow line the warning stays and the speeds go."""
    readings = Readings()
    readings.apply(PREPARED, 0.1)
    readings.remembered(TurnStats(ttft_s=1.0, tpot_s=0.1), 950)
    assert one_line(readings, ModelState(info=INFO), 0.2, 30).plain == "ready · context 95% !!"


@pytest.mark.parametrize(
    ("stats", "text"),
    [
        (TurnStats(), ""),
        (TurnStats(reasoning_tokens=412), "reasoning 412 tokens, kept in the prefix"),
        (
            TurnStats(reasoning_tokens=412, stripped_tokens=400),
            "reasoning 412 tokens, stripped: the answer was read again",
        ),
    ],
)
def test_what_became_of_the_reasoning(stats: TurnStats, text: str) -> None:
    """The panel says how much there was, and whether later prompts begin with it."""
    assert reasoning_text(stats).plain == text


def test_notes_on_the_template_are_shown_if_they_fit() -> None:
    """They are wrapped within the panel; too many are named by number, and the help has them all."""
    note = "It opens a reasoning block in each answer, which is part of the prefix."
    model = ModelState(info=replace(INFO, notes=(note,)))
    lines = model_text(model, 12).plain.split("\n")
    assert " ".join(lines[3:]) == note
    assert max(map(len, lines)) <= WIDTH
    assert model_text(model, 5).plain.split("\n")[3:] == ["1 note on the template: help"]
    model.info = replace(INFO, notes=(note,) * 5)
    assert model_text(model, 40).plain.split("\n")[3:] == ["5 notes on the template: help"]
    assert model_facts(model.info).plain.count(note) == 5


def test_the_facts_of_a_model_cannot_command_the_terminal() -> None:
    """What a file says of itself is text."""
    facts = model_facts(replace(INFO, name="\x1b[2J", notes=("\x9b31m",)))
    assert "\x1b" not in facts.plain
    assert "\x9b" not in facts.plain
