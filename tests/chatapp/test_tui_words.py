"""Numbers, times and labels have the width that the places for them have, in every language."""

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from chatapp import texts
from chatapp.tui import words
from chatapp.tui.live import Activity, ModelState, Readings
from chatapp.tui.meterline import one_line
from chatapp.tui.readouts import WIDTH, context_text, phase_text
from chatapp.tui.timing import label, tpot_text, ttft_text
from models.engine import TurnStats
from tests.chatapp.test_tui_meters import INFO

FULL = TurnStats(
    ttft_s=4000.0,
    tpot_s=0.0123,
    restore_s=0.38,
    prefill_s=99.0,
    first_decode_s=3599.0,
    tpot_floor_s=0.0123,
    kv_bytes=123_456_789,
    kv_bytes_written=123_456_789,
)


@pytest.fixture(autouse=True)
def _english_again() -> Iterator[None]:
    yield
    texts.use("en")


@pytest.mark.parametrize("language", texts.languages())
def test_the_panel_is_wide_enough(language: str) -> None:
    """No line of the meters is longer than the panel."""
    texts.use(language)
    readings = Readings()
    readings.remembered(FULL, INFO.n_ctx)
    info = replace(INFO, n_ctx=131_072)
    contents = [ttft_text(readings, 0.0, WIDTH), tpot_text(readings, info), context_text(readings, info)]
    for activity in get_args(Activity.__args__[0]) + get_args(Activity.__args__[1]):
        readings.activity = activity
        contents.append(phase_text(readings, ModelState(info), 0.0))
    for content in contents:
        for line in content.plain.split("\n"):
            assert (line, cell_len(line) <= WIDTH) == (line, True)


@pytest.mark.parametrize("language", texts.languages())
def test_labels_stand_in_one_column(language: str) -> None:
    """All are as wide as the widest, with a blank behind it."""
    texts.use(language)
    labels = [label(text)[0] for text in ("TTFT", "TPOT", "floor", "context", "written")]
    assert len({cell_len(text) for text in labels}) == 1
    assert all(text.endswith(" ") for text in labels)


@pytest.mark.parametrize("language", texts.languages())
@given(width=st.integers(20, 120))
def test_the_folded_meters_fit(language: str, width: int) -> None:
    """Parts that have no room are left out; the first one always stands."""
    texts.use(language)
    readings = Readings()
    readings.remembered(FULL, INFO.n_ctx)
    assert cell_len(one_line(readings, ModelState(INFO), 0.0, width).plain) <= width


@pytest.mark.parametrize("language", texts.languages())
@given(past=st.floats(0, 50 * 7 * 86_400))
def test_an_age_has_its_cells(language: str, past: float) -> None:
    """For a year no age is wider than its column."""
    texts.use(language)
    assert cell_len(words.age(0.0, past)) <= words.age_cells()


@given(st.text(alphabet="ab -대화목록", max_size=80), st.integers(2, 40))
def test_wrapped_lines_have_no_more_cells_than_asked(text: str, width: int) -> None:
    """Letters of two cells count as two, and nothing but white space is lost."""
    lines = words.wrapped(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_columns_are_made_of_cells() -> None:
    """A wide letter takes the place of two."""
    assert words.left("대화", 6) + "|" == "대화  |"
    assert words.right("대화", 6) == "  대화"
    assert words.right("too long", 3) == "too long"
