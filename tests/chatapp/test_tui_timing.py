from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.tui.live import N_SAMPLES, Readings
from chatapp.tui.readouts import WIDTH
from chatapp.tui.timing import PARTS, floor_of, parts_of, tpot_plot, tpot_text, ttft_bar, ttft_text
from models.engine import Finished, Piece, Prepared, Progress, TokenRun, TurnStats
from tests.chatapp.test_tui_meters import INFO
from tests.chatapp.tui_window import Window, sees

PREPARED = Prepared(0, 100, 50, None, 0.1, 0.5, 1, (TokenRun(tuple(range(150)), 0, 150),))
SECONDS = st.floats(0, 10_000)
FAST = replace(INFO, active_bytes=1000, read_bytes_per_s=1e5, kv_bytes_per_token=0)  # 10 ms a token
WORST = TurnStats(
    ttft_s=4000.0, tpot_s=0.0123, restore_s=999.0, prefill_s=999.0, first_decode_s=999.0, tpot_floor_s=0.0095
)


def turn() -> Readings:
    """A turn up to its first text: sent at 10, 0.2 s queue, 0.1 s restore, 0.5 s prefill, 0.05 s to the first text."""
    readings = Readings()
    readings.sending(10.0, queued=True, is_first=False)
    readings.apply(Progress("restore", 0, 100), 10.2)
    readings.apply(Progress("prefill", 0, 50), 10.3)
    readings.apply(PREPARED, 10.8)
    readings.apply(Piece("a", (1,)), 10.85)
    return readings


@given(st.tuples(SECONDS, SECONDS, SECONDS, SECONDS), st.integers(4, 60))
def test_the_bar_is_whole_and_each_part_is_in_it(seconds: tuple[float, ...], width: int) -> None:
    """The cells are as many as there is room for, and a part that took anything has its own glyph."""
    bar = ttft_bar(seconds, width).plain
    assert len(bar) == width
    for (_, mark, _), part in zip(PARTS, seconds, strict=True):
        assert (mark in bar) is (part * 1e6 > 0.5)


def test_the_parts_have_different_glyphs() -> None:
    """They can be told apart without colour."""
    assert len({mark for _, mark, _ in PARTS}) == len(PARTS)


def test_the_parts_of_a_running_turn() -> None:
    """While a phase goes on its part grows; together they are the time since the message was sent."""
    readings = Readings()
    readings.sending(10.0, queued=True, is_first=False)
    assert parts_of(readings.so_far(10.1)) == pytest.approx((0.1, 0, 0, 0))
    readings.apply(Progress("restore", 0, 100), 10.2)
    assert parts_of(readings.so_far(10.25)) == pytest.approx((0.2, 0.05, 0, 0))
    readings.apply(Progress("prefill", 0, 50), 10.3)
    assert parts_of(readings.so_far(10.6)) == pytest.approx((0.2, 0.1, 0.3, 0))
    readings.apply(PREPARED, 10.8)
    assert parts_of(readings.so_far(10.83)) == pytest.approx((0.2, 0.1, 0.5, 0.03))
    readings.apply(Piece("a", (1,)), 10.85)
    assert parts_of(readings.so_far(12.0)) == pytest.approx((0.2, 0.1, 0.5, 0.05))


def test_a_turn_that_ended_has_the_stats_of_the_engine() -> None:
    """What was measured replaces what the window saw."""
    readings = turn()
    stats = TurnStats(ttft_s=0.8, restore_s=0.1, prefill_s=0.4, first_decode_s=0.1)
    readings.apply(Finished("end", "a", TokenRun((1,), 0, 1), stats), 11.0)
    assert parts_of(readings.so_far(11.0)) == pytest.approx((0.2, 0.1, 0.4, 0.1))


def test_the_way_to_the_screen_belongs_to_the_first_text() -> None:
    """The bar has four parts, which together are the whole."""
    stats = TurnStats(ttft_s=0.8, restore_s=0.1, prefill_s=0.4, first_decode_s=0.1, transport_s=0.05)
    readings = turn()
    readings.apply(Finished("end", "a", TokenRun((1,), 0, 1), stats), 11.0)
    assert parts_of(readings.so_far(11.0)) == pytest.approx((0.15, 0.1, 0.4, 0.15))


def test_the_next_turn_begins_anew() -> None:
    """Nothing of the turn before is in its parts, nor in the plot."""
    readings = turn()
    readings.apply(Piece("bc", (2, 3)), 11.5)
    assert readings.tpots
    readings.sending(20.0, queued=False, is_first=False)
    assert not readings.tpots
    assert parts_of(readings.so_far(20.5)) == pytest.approx((0.5, 0, 0, 0))


def test_what_each_part_took_is_written_beside_its_glyph() -> None:
    """Four lines, in the panel's width: the whole, the bar, two parts a line."""
    lines = ttft_text(turn(), 12.0, WIDTH).plain.split("\n")
    assert lines[0] == "TTFT    0.85 s"
    assert [line.rstrip() for line in lines[2:]] == ["▁queue 0.20 s   ▓restore 0.10 s", "░prefill 0.50 s ▚first 50 ms"]


@pytest.mark.parametrize("stats", [TurnStats(), WORST])
def test_the_lines_fit_the_panel(stats: TurnStats) -> None:
    """Also the longest times, and none at all."""
    readings = Readings()
    readings.remembered(stats, 100)
    for text in (ttft_text(readings, 0.0, WIDTH).plain, tpot_text(readings, FAST).plain):
        assert max(map(len, text.split("\n"))) <= WIDTH


def test_the_floor_stands_below_the_time_per_token() -> None:
    """What the memory allows, and how much of its speed is used; without a floor nothing is made up."""
    readings = Readings()
    readings.remembered(TurnStats(tpot_s=0.028, tpot_floor_s=0.011), 100)
    assert tpot_text(readings, FAST).plain == "TPOT    28 ms  36 tokens/s\nfloor   11 ms  memory 39% used"
    readings.remembered(TurnStats(tpot_s=0.028), 100)
    assert tpot_text(readings, INFO).plain.split("\n")[1].strip() == "floor   not known"


def test_the_floor_while_an_answer_grows() -> None:
    """It is computed where the context stands, until the turn's own is known."""
    readings = turn()
    assert floor_of(readings, replace(FAST, kv_bytes_per_token=100)) == pytest.approx((1000 + 100 * 151) / 1e5)
    assert floor_of(readings, INFO) is None
    assert floor_of(readings, None) is None


@given(
    st.lists(st.floats(1e-4, 10), max_size=60),
    st.none() | st.floats(1e-4, 10),
    st.integers(1, 40),
    st.integers(1, 4),
)
def test_the_plot_fills_its_place(tpots: list[float], floor: float | None, width: int, height: int) -> None:
    """Its lines have the width asked for, the newest sample on the right, each with at least a trace."""
    lines = tpot_plot(tpots, floor, width, height).plain.split("\n")
    assert len(lines) == height
    if not tpots and floor is None:
        assert set(lines) == {""}
        return
    assert {len(line) for line in lines} == {width}
    columns = ["".join(line[at] for line in lines) for at in range(width)]
    empty = " ╌" if floor is not None else " "
    for column in columns[width - min(width, len(tpots)) :]:
        assert column.strip(empty)
    for column in columns[: max(0, width - len(tpots))]:
        assert not column.strip(empty)


def test_the_floor_is_a_line_through_the_plot() -> None:
    """It goes on where there is no sample, and bars that cross it have another glyph there."""
    assert tpot_plot([0.04, 0.02], 0.01, 5, 2).plain == "   █ \n╌╌╌▒▒"
    assert tpot_plot([0.04, 0.02], None, 5, 2).plain == "   █ \n   ██"
    assert tpot_plot([], 0.01, 5, 2).plain == "╌╌╌╌╌\n     "


def test_one_stall_does_not_flatten_the_rest() -> None:
    """A bar that is far longer than most is cut off at the top."""
    usual = tpot_plot([0.01] * 9 + [5.0], None, 10, 2).plain.split("\n")[1]
    assert usual == "▄" * 9 + "█"


def test_samples_are_seconds_a_token() -> None:
    """The tokens of the first text took the TTFT; a sample without a token counts as at least its length."""
    readings = turn()
    readings.apply(Piece("bcde", (2, 3, 4, 5)), 11.25)
    assert list(readings.tpots) == pytest.approx([0.1])
    readings.sample(11.8)
    assert list(readings.tpots) == pytest.approx([0.1, 0.55])
    for n in range(100):
        readings.apply(Piece("x", (6,)), 12.0 + n)
    assert len(readings.tpots) == N_SAMPLES


def test_waiting_for_the_first_text_is_no_sample() -> None:
    """Until then the TTFT grows, which has a meter of its own."""
    readings = Readings()
    readings.sending(0.0, queued=False, is_first=False)
    readings.apply(PREPARED, 0.1)
    readings.sample(9.0)
    assert not readings.tpots


@pytest.mark.parametrize(
    ("size", "last"),
    [((120, 36), "1 thread"), ((100, 30), "1 thread"), ((120, 24), "prefilled 0"), ((100, 24), "context")],
)
async def test_the_panel_fits_the_window(tmp_path: Path, size: tuple[int, int], last: str) -> None:
    """Nothing is below its border, also with a task line above; what counts most stays in a low window."""
    window = Window(tmp_path, reply=lambda _: "<think>\nhm\n</think>\n\nok")
    session_id = await window.ask("one")
    window.manager.set_task(session_id, "another line")
    async with window.app.run_test(size=size) as pilot:
        await window.app.stage.show(session_id)
        await sees(pilot, window, last)
        await sees(pilot, window, "another line")
        panel = window.app.stage.meters
        assert panel.virtual_size.height <= panel.size.height
        shown = [block for block in panel.children if block.display]
        assert [block.id or "title" for block in shown if block.size.height < 1] == []
        await sees(pilot, window, "▓restore")


async def test_the_line_of_a_narrow_window(tmp_path: Path) -> None:
    """At 80 columns the panel is one line below the box."""
    window = Window(tmp_path, reply=lambda _: "ok")
    session_id = await window.ask("one")
    async with window.app.run_test(size=(80, 24)) as pilot:
        await window.app.stage.show(session_id)
        await sees(pilot, window, "ready · ")
        assert not window.app.stage.meters.display
        (line,) = [line for line in window.screen_text().split("\n") if "ready · " in line]
        assert "resident 10" in line
