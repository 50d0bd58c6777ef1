from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Markdown

from chatapp.tui.blocks import LONG_PARAGRAPH, OpenBlock
from chatapp.tui.transcript import MAX_MOUNTED
from tests.chatapp.tui_window import Window, sees, until

WIDE = (120, 36)


async def test_a_long_conversation_mounts_a_bounded_window(tmp_path: Path) -> None:
    """Of 200 turns only the newest are mounted; scrolling up mounts older ones and never more than the limit."""
    window = Window(tmp_path)
    session_id = window.manager.new().id
    for n in range(200):
        question = window.store.add_question(session_id, f"question {n}", title="long")
        window.store.add_answer(question, f"Answer {n}", "complete", run=None)
    window.app.stage.current = session_id
    async with window.app.run_test(size=WIDE) as pilot:
        await sees(pilot, window, "Answer 199")
        transcript = window.transcript
        await until(pilot, lambda: transcript.n_mounted >= 24, "older ones follow")
        n_first = transcript.n_mounted
        assert n_first < MAX_MOUNTED
        for _ in range(12):
            await until(pilot, lambda: not transcript._is_moving, "the window stands still")
            await transcript.older()
            assert transcript.n_mounted <= MAX_MOUNTED
        assert transcript.n_mounted > n_first
        assert len(list(window.app.query("*"))) < 800
        transcript.focus()
        await pilot.press("home")
        await sees(pilot, window, "question 0")
        assert transcript.n_mounted <= MAX_MOUNTED
        await pilot.press("end")
        await sees(pilot, window, "Answer 199")


async def test_a_finished_answer_shows_exactly_the_stored_text(tmp_path: Path) -> None:
    """After the stream the Markdown source equals the stored text, whatever blocks it went through."""
    reply = (
        "Intro **bold**.\n\n```py\nx = 1\n\ny = 2\n```\n\n1. a\n2. b\n\n   more\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    )
    window = Window(tmp_path, reply=lambda _: reply, tokens_per_s=400)
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press(*"go", "enter")
        await until(
            pilot,
            lambda: any(markdown.source == reply for markdown in window.app.query(Markdown)),
            "the whole text is drawn",
        )
        assert window.transcript._turns.growing is None


@pytest.mark.parametrize(
    ("text", "settled"),
    [
        ("Hello wor", "Hello wor"),
        ("Hello\n\n", "Hello\n\n"),
        ("Hello\n\n``", "Hello\n\n"),
        ("Hello\n\n```py\nx = 1\n\ny", "Hello\n\n"),
        ("```py\nx = 1\n```\n", "```py\nx = 1\n```\n"),
        ("````\n```\n````\nso", "````\n```\n````\nso"),
        ("Intro\n\n- a\n- b\n\n  more\n- c", "Intro\n\n"),
        ("- a\n\nThen", "- a\n\nThen"),
        ("- a\n\n  the", ""),
        ("- a\n\nThen\nmore", "- a\n\nThen\nmore"),
        ("| a |\n|---|\n| 1", ""),
        ("| a |\n|---|\n\nDone\n", "| a |\n|---|\n\nDone\n"),
        ("# Title\nText", "# Title\nText"),
        ("x" * (LONG_PARAGRAPH + 1), ""),
    ],
)
def test_only_settled_blocks_are_rendered(text: str, settled: str) -> None:
    """An open fence, list, table or overlong paragraph waits until the next block begins."""
    assert text[: OpenBlock().feed(text)] == settled


def test_settled_text_is_the_same_in_one_piece_or_many() -> None:
    """Feeding character by character ends where feeding at once ends."""
    text = "Intro\n\n- a\n- b\n\nText\n\n```\ncode\n```\n\n> quote\n\nEnd *here*"
    grown = OpenBlock()
    ends = [grown.feed(text[:n]) for n in range(len(text) + 1)]
    assert ends[-1] == OpenBlock().feed(text)
