from __future__ import annotations

from pathlib import Path

import pytest

from chatapp.tui.live import LiveAnswer
from chatapp.tui.markdown_text import MarkdownText
from chatapp.tui.thinking import LIVE, Folds, Thought, ThoughtBlock, block_text
from models.engine import Piece
from tests.chatapp.tui_window import Window, sees, until

WIDE = (100, 30)
REPLY = "<think>\nfirst line\nsecond line\nthird line\nfourth line\nfifth line\n</think>\n\nThe **answer**."


async def test_reasoning_is_shown_while_it_is_written_and_folds_when_it_ends(tmp_path: Path) -> None:
    """While it grows its last lines are to be seen, then one line; F5 shows and hides all of it."""
    window = Window(tmp_path, reply=lambda _: REPLY)
    window.engine.hang_at = REPLY.index("\n</think>")
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press(*"go", "enter")
        await sees(pilot, window, "fifth line")
        assert "thinking…" in window.screen_text()
        assert "first line" not in window.screen_text()
        assert "<think>" not in window.screen_text()
        window.engine.hang_at = None
        window.engine._cancelled.set()
        await sees(pilot, window, "stopped by you")
        await pilot.press(*"on", "enter")
        await sees(pilot, window, "The answer.")
        assert window.screen_text().count("▸ reasoning") == 2
        assert "first line" not in window.screen_text()
        await pilot.press("f5")
        await sees(pilot, window, "▾ reasoning")
        assert window.screen_text().count("first line") == 2
        await pilot.press("f5")
        await until(pilot, lambda: "first line" not in window.screen_text(), "all is folded")


async def test_the_answer_has_no_reasoning_in_it(tmp_path: Path) -> None:
    """Markdown gets the answer alone, while it is written and from the store."""
    window = Window(tmp_path, reply=lambda _: REPLY)
    session_id = await window.ask("one")
    window.app.stage.current = session_id
    async with window.app.run_test(size=WIDE) as pilot:
        await sees(pilot, window, "The answer.")
        await pilot.press(*"two", "enter")
        await until(pilot, lambda: len(window.manager.messages(session_id)) == 4, "it is stored")
        await until(
            pilot,
            lambda: [md.source for md in window.app.query(MarkdownText)] == ["The **answer**."] * 2,
            "both answers are drawn",
        )


async def test_a_click_unfolds_one_block_which_stays_so(tmp_path: Path) -> None:
    """The block that was clicked is unfolded still when its conversation comes back; the other one is not."""
    window = Window(tmp_path, reply=lambda _: REPLY)
    session_id = await window.ask("one")
    await window.ask("two", session_id)
    window.app.stage.current = session_id
    async with window.app.run_test(size=WIDE) as pilot:
        await sees(pilot, window, "▸ reasoning")
        await until(pilot, lambda: len(window.app.query(ThoughtBlock)) == 2, "both blocks")
        await pilot.click(window.app.query(ThoughtBlock)[1], offset=(3, 0))
        await sees(pilot, window, "▾ reasoning")
        assert window.screen_text().count("first line") == 1
        await window.app.action_new()
        await until(pilot, lambda: "reasoning" not in window.screen_text(), "another conversation")
        await window.app.stage.show(session_id)
        await sees(pilot, window, "▾ reasoning")
        assert window.screen_text().count("first line") == 1


async def test_f5_is_offered_where_there_is_reasoning(tmp_path: Path) -> None:
    """The footer names the key only in a conversation with a block."""
    window = Window(tmp_path, reply=lambda q: REPLY if q == "think" else "plain")
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press(*"no", "enter")
        await sees(pilot, window, "plain")
        await until(pilot, lambda: window.manager.running is None, "the answer is complete")
        assert "Reasoning" not in window.screen_text()
        await pilot.press(*"think", "enter")
        await sees(pilot, window, "f5 Reasoning")


async def test_reasoning_cannot_command_the_terminal(tmp_path: Path) -> None:
    """Markup and escape sequences in reasoning are text."""
    window = Window(tmp_path, reply=lambda _: "<think>[/oops] \x1b]52;c;aGk=\x1b\\ [red]</think>\nok")
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press(*"go", "enter")
        await sees(pilot, window, "▸ reasoning")
        await until(pilot, lambda: window.manager.running is None, "the answer is complete")
        await pilot.press("f5")
        await sees(pilot, window, "[/oops] ␛]52")
        assert "\x1b" not in window.screen_text()


@pytest.mark.parametrize(
    ("thought", "is_unfolded", "text"),
    [
        (Thought("a", 412, 12.0, is_open=False), False, "▸ reasoning · 412 tokens · 12 s"),
        (Thought("abc", None, None, is_open=False), False, "▸ reasoning · 3 characters"),
        (Thought("\na\nb\n", 1, None, is_open=False), True, "▾ reasoning · 1 token\na\nb"),
        (Thought("1\n2\n3\n4\n5\n", 10, 5.0, is_open=True), False, "thinking… 10 tokens, 5.00 s\n2\n3\n4\n5"),
        (Thought("", 0, 0.0, is_open=True), False, "thinking… 0 tokens, <1 ms"),
    ],
)
def test_what_a_block_says(thought: Thought, is_unfolded: bool, text: str) -> None:
    """The header has what is known; the text follows its state."""
    assert block_text(thought, is_unfolded=is_unfolded).plain == text


def test_folds_of_all_and_of_one() -> None:
    """One block can differ from the others; toggling all makes them alike again."""
    folds = Folds()
    folds.toggle(7)
    assert [folds.is_unfolded(key) for key in (6, 7)] == [False, True]
    folds.toggle_all()
    assert [folds.is_unfolded(key) for key in (6, 7)] == [True, True]
    folds.toggle(LIVE)
    folds.settle(8, 3.0)
    assert (folds.is_unfolded(8), folds.is_unfolded(LIVE), folds.seconds(8)) == (False, True, 3.0)


def test_reasoning_is_counted_and_timed_until_it_ends() -> None:
    """Tokens and seconds of the block stop with its end mark, and the answer begins behind it."""
    live = LiveAnswer("s", "q", 0)
    live.take(Piece("<think>", (1,)), 10.0)
    live.take(Piece("so", (2, 3)), 11.0)
    assert live.thought == Thought("so", 3, 1.0, is_open=True)
    live.take(Piece("</think>", (4,)), 12.5)
    live.take(Piece("\n\nYes", (5, 6)), 20.0)
    assert live.thought == Thought("so", 4, 2.5, is_open=False)
    assert live.answer == "Yes"
