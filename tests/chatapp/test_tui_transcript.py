from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
from textual.widgets._toast import Toast

from chatapp.tui.markdown_text import MarkdownText
from chatapp.tui.openblock import LONG_PARAGRAPH, OpenBlock
from chatapp.tui.transcript import COMFORT, MAX_MOUNTED, Transcript
from chatapp.tui.viewer import ViewerScreen
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
        await until(pilot, lambda: transcript.n_mounted >= COMFORT, "older ones follow")
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
            lambda: any(markdown.source == reply for markdown in window.app.query(MarkdownText)),
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


def _stored(window: Window, n_turns: int) -> str:
    """Store a conversation of answers with all kinds of blocks; return its id."""
    session_id = window.manager.new().id
    answer = (
        "# Answer {n}\n\nSome **text** and `code`.\n\n- one\n\n```py\nx = 1\n```\n\n| a | b |\n|--|--|\n| 1 | 2 |\n"
    )
    for n in range(n_turns):
        question = window.store.add_question(session_id, f"question {n}", title=f"{n_turns} turns")
        window.store.add_answer(question, answer.replace("{n}", str(n)), "complete", run=None)
    return session_id


async def test_200_turns_cost_about_what_20_do(tmp_path: Path) -> None:
    """Opening 200 stored turns mounts as many widgets as 20 do, and takes no more than three times the CPU time."""
    window = Window(tmp_path)
    few, many = _stored(window, 20), _stored(window, 200)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model is there")
        seconds: dict[str, list[float]] = {few: [], many: []}
        widgets: dict[str, int] = {}
        for session_id, last in [(few, "Answer 19"), (many, "Answer 199")] * 4:
            begun = time.process_time()
            await window.app.stage.show(session_id)
            await sees(pilot, window, last)
            await until(pilot, lambda: window.transcript.n_mounted >= COMFORT, "older ones follow")
            seconds[session_id].append(time.process_time() - begun)
            widgets[session_id] = len(list(window.transcript.query("*")))
        assert widgets[many] <= widgets[few] + 2
        assert widgets[many] < 200
        assert min(seconds[many]) < 3 * min(seconds[few])


async def test_new_text_below_is_told_and_end_follows_again(tmp_path: Path) -> None:
    """Scrolled up, the view stays, a line says that text came below, and End shows it."""
    window = Window(tmp_path, reply=lambda _: "word " * 2000, tokens_per_s=2000)
    window.app.stage.current = _stored(window, 20)
    async with window.app.run_test(size=WIDE) as pilot:
        await sees(pilot, window, "Answer 19")
        await pilot.press(*"go", "enter")
        await sees(pilot, window, "word word")
        follows = [window.transcript.is_following]
        await pilot.press("pageup", "pageup")
        follows.append(window.transcript.is_following)
        await sees(pilot, window, "new text below")
        before = window.transcript.scroll_y
        grown = window.transcript.max_scroll_y
        await until(pilot, lambda: window.transcript.max_scroll_y > grown, "the text grows")
        assert window.transcript.scroll_y == before
        await pilot.press("ctrl+end")
        await until(pilot, lambda: "new text below" not in window.screen_text(), "the end is shown")
        follows.append(window.transcript.is_following)
        assert follows == [True, False, True]


async def test_a_key_shows_where_the_answer_begins(tmp_path: Path) -> None:
    """Alt+Home goes to the first line of a long answer while it grows; the view stays there."""
    window = Window(tmp_path, reply=lambda _: "The first line.\n\n" + "word\n\n" * 400, tokens_per_s=4000)
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press(*"go", "enter")
        await until(pilot, lambda: window.transcript.max_scroll_y > 40, "the answer is long")
        assert "The first line." not in window.screen_text()
        await pilot.press("alt+home")
        await sees(pilot, window, "The first line.")
        await until(pilot, lambda: not window.app.stage.talk.live, "the turn ends")
        assert "The first line." in window.screen_text()


async def test_a_selection_of_an_answer_is_its_text(tmp_path: Path) -> None:
    """Text chosen with the mouse is copied without the line ends that only the window has."""
    sentence = "a long line of many words that the window has to wrap because it is wider than the window is " * 2
    window = Window(tmp_path, reply=lambda _: f"{sentence}\n\n- item")
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press(*"go", "enter")
        await until(pilot, lambda: len(window.transcript.messages) == 2, "the answer is there")
        await sees(pilot, window, "item")
        region = window.app.query(MarkdownText).last().content_region
        await pilot.mouse_down(offset=region.offset)
        await pilot.hover(offset=region.bottom_right - (1, 2))
        await pilot.mouse_up(offset=region.bottom_right - (1, 2))
        selected = window.app.screen.get_selected_text()
        assert selected is not None
        assert selected.strip() == sentence.strip() or selected.startswith(sentence.strip())


async def test_a_very_long_question_is_folded(tmp_path: Path) -> None:
    """A question of 400,000 characters, written by a command, is one line that opens a window of its own."""
    window = Window(tmp_path)
    session_id = window.manager.new().id
    window.store.add_question(session_id, "x" * 400_000, title="long")
    window.app.stage.current = session_id
    async with window.app.run_test(size=WIDE) as pilot:
        await sees(pilot, window, "long message")
        await pilot.press("alt+up", "enter")
        await until(pilot, lambda: isinstance(window.app.screen, ViewerScreen), "it is shown whole")


def _has_messages(transcript: Transcript, n: int) -> bool:
    return len(transcript.messages) == n


async def test_a_long_sitting_mounts_no_more_than_a_short_one(tmp_path: Path) -> None:
    """A turn that begins drops the widgets of the oldest messages; scrolling brings them back."""
    window = Window(tmp_path, reply=lambda question: f"answer to {question}")
    async with window.app.run_test(size=WIDE) as pilot:
        transcript = window.transcript
        for n in range(COMFORT):
            await pilot.press(*f"q{n}", "enter")
            await until(pilot, partial(_has_messages, transcript, 2 * n + 2), "it is answered")
        assert transcript.n_mounted <= COMFORT + 2
        transcript.focus()
        await pilot.press("home")
        await sees(pilot, window, "answer to q0")


async def test_short_messages_fill_a_tall_window(tmp_path: Path) -> None:
    """However little the newest messages say, there is more than a screen of them to scroll through."""
    window = Window(tmp_path)
    session_id = window.manager.new().id
    for n in range(60):
        question = window.store.add_question(session_id, f"q{n}", title="short")
        window.store.add_answer(question, f"a{n}", "complete", run=None)
    window.app.stage.current = session_id
    async with window.app.run_test(size=(120, 50)) as pilot:
        await sees(pilot, window, "a59")
        await until(pilot, lambda: window.transcript.max_scroll_y >= window.transcript.size.height, "it is filled")
        assert window.transcript.n_mounted < MAX_MOUNTED


@pytest.mark.parametrize("head", ["", "```py\n", "- one\n"], ids=["prose", "code", "list"])
async def test_a_growing_answer_draws_only_its_new_lines(tmp_path: Path, head: str) -> None:
    """A row that stands already is the same row in the next frame, though the answer got higher."""
    window = Window(tmp_path)
    async with window.app.run_test(size=WIDE) as pilot:
        text = MarkdownText()
        await window.transcript.mount(text)
        given = head + "".join(f"- line {n}\n" for n in range(12))
        text.grow(given)
        await until(pilot, lambda: text.region.height >= 12, "there is room for it")
        before = text.render_lines(text.size.region)
        text.grow(given + "- more\n- and more\n")
        await until(pilot, lambda: text.region.height == len(before) + 2, "there is room for more")
        now = text.render_lines(text.size.region)
        assert len(now) == len(before) + 2
        assert [at for at, (was, row) in enumerate(zip(before, now, strict=False)) if was is not row] == []


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (100, 30), (130, 36), (200, 50)])
@pytest.mark.parametrize("before", ["", "x"], ids=["even", "odd"])
async def test_a_notification_loses_no_wide_character(tmp_path: Path, size: tuple[int, int], before: str) -> None:
    """Each syllable is there, wherever the edges of the widgets below it are."""
    window = Window(tmp_path)
    window.app.stage.current = _stored(window, 4)
    sentence = before + "이 대화는 지금 답변 중입니다. Escape를 누르면 멈추고, 쓴 글 1개는 그대로 남습니다."
    async with window.app.run_test(size=size, notifications=True) as pilot:
        await sees(pilot, window, "x = 1")
        window.app.notify(sentence, markup=False)
        await until(pilot, lambda: any(toast.region for toast in window.app.screen.query(Toast)), "it is shown")
        region = window.app.screen.query_one(Toast).region
        rows = window.app.screen._compositor.render_strips()[region.y : region.bottom]
        shown = "".join(strip.crop(region.x + 1, region.right).text for strip in rows)
        assert "".join(shown.split()) == "".join(sentence.split())
