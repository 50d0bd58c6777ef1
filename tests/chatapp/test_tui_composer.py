from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from textual import events

from chatapp.tui.chips import Chips, described
from chatapp.tui.composer import LONGEST_DRAFT
from chatapp.tui.messages import CountAsked
from models.engine import ModelInfo
from sessions.attachments import Part
from tests.chatapp.tui_window import Window, hears, until

SIZE = (100, 30)


@pytest.mark.parametrize("key", ["shift+enter", "alt+enter", "ctrl+j"])
async def test_new_line_keys(tmp_path: Path, key: str) -> None:
    """These keys begin a new line and send nothing."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press("a", key, "b")
        assert window.composer.draft == "a\nb"
        assert window.manager.sessions() == []


async def test_a_command_that_does_not_exist_types_nothing(tmp_path: Path) -> None:
    """A letter with Alt is a slip of the finger, and leaves the draft as it is."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        window.composer.post_message(events.Key("alt+y", "y"))
        await pilot.press("a", "b")
        assert window.composer.draft == "ab"


async def test_a_big_paste_is_a_chip_and_sent_whole(tmp_path: Path) -> None:
    """A megabyte on one line is shown as a few words, and every character of it is sent."""
    window = Window(tmp_path, reply=lambda _: "ok")
    pasted = "가" + "x" * 1_000_000
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press("a", " ")
        window.composer.post_message(events.Paste(pasted))
        await until(pilot, lambda: "[pasted 977 KiB #1]" in window.composer.text, "the chip")
        await pilot.press(" ", "b")
        assert window.composer.draft == f"a {pasted} b"


async def test_pastes_are_composed_and_harmless(tmp_path: Path) -> None:
    """Decomposed Hangul becomes whole syllables, escape sequences become visible."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        window.composer.post_message(events.Paste("\u1112\u1161\u11ab\u1100\u1173\u11af\r\n\x1b[2J"))
        await until(pilot, lambda: window.composer.draft != "", "the paste")
        assert window.composer.draft == "한글\n␛[2J"


@pytest.mark.parametrize("size", [1, 10_000])
async def test_what_cannot_be_kept_of_a_paste_is_counted(tmp_path: Path, size: int) -> None:
    """Line ends and marks in front go without a word, NUL and surrogates with a notice, direction marks stay."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        window.composer.post_message(events.Paste("\ufeffa\r\nb\rc\x00\ud800\u200f\u200d" + "x" * size))
        await until(pilot, lambda: window.composer.draft != "", "the paste")
        assert window.composer.draft == "a\nb\nc\ufffd\ufffd\u200f\u200d" + "x" * size
        notices = [notice.message for notice in window.app._notifications]
        assert notices == ["2 damaged character(s) in the input were replaced."]


async def test_the_box_grows_and_stops_growing(tmp_path: Path) -> None:
    """The box takes as many rows as the text has, eight at most."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        heights = [window.composer.content_size.height]
        for _ in range(12):
            await pilot.press("ctrl+j")
            await pilot.pause()
            heights.append(window.composer.content_size.height)
        assert heights == [1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8, 8]


async def test_drafts_belong_to_their_conversation(tmp_path: Path) -> None:
    """A draft is put aside when another conversation is shown and stands there again on coming back."""
    window = Window(tmp_path)
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press(*"half a thought")
        window.sidebar.focus()
        window.sidebar.highlighted = window.sidebar.get_option_index(session_id)
        await pilot.press("enter")
        await until(pilot, lambda: window.composer.draft == "", "the other conversation")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: window.composer.draft == "half a thought", "the draft")


async def test_letters_typed_in_the_text_go_to_the_box(tmp_path: Path) -> None:
    """Whoever scrolled and then types loses no letter."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press("a")
        window.app.query_one("#transcript").focus()
        await pilot.press("b", "c")
        assert (window.composer.draft, window.composer.has_focus) == ("abc", True)


async def test_the_draft_is_counted_with_each_key(tmp_path: Path) -> None:
    """The border says how many tokens the draft has, exactly where that can be counted, else about how many."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press("a", "b", "c")
        assert str(window.composer.border_subtitle) == ""
        window.composer.count_with(lambda text: 7 * len(text))
        assert str(window.composer.border_subtitle) == "21 tokens"
        await pilot.press("d")
        assert str(window.composer.border_subtitle) == "28 tokens"
        window.composer.count_with(None)
        assert str(window.composer.border_subtitle) == "≈ 1 token"
        window.composer.clear_draft()
        await pilot.pause()
        assert str(window.composer.border_subtitle) == ""


async def test_the_counter_is_made_for_the_loaded_model(tmp_path: Path) -> None:
    """As soon as the model is there, and not on the thread that takes the keys."""
    asked: list[tuple[str, bool]] = []

    def make(info: ModelInfo) -> Callable[[str], int]:
        asked.append((info.name, threading.current_thread() is threading.main_thread()))
        return len

    window = Window(tmp_path)
    window.app._hearing._make_counter = make
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press("a", "b")
        await until(pilot, lambda: str(window.composer.border_subtitle) == "2 tokens", "the count")
    assert asked == [("fake", False)]


@pytest.mark.parametrize("n_before", [0, 5])
async def test_a_paste_beyond_the_longest_message_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_before: int
) -> None:
    """One sentence says so, the text is not even looked at, and what was there stays."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press(*"x" * n_before)
        monkeypatch.setattr("chatapp.tui.composer.scrub", lambda _: pytest.fail("the paste was read"))
        window.composer.post_message(events.Paste("p" * (LONGEST_DRAFT + 1 - n_before)))
        await hears(pilot, window, "at most 2,000,000 characters")
        assert window.composer.draft == "x" * n_before


async def test_pastes_count_together(tmp_path: Path) -> None:
    """What fits alone is refused if the draft has something long already; the longest is still taken."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        window.composer.post_message(events.Paste("p" * LONGEST_DRAFT))
        await until(pilot, lambda: window.composer.n_characters == LONGEST_DRAFT, "the longest paste")
        window.composer.post_message(events.Paste("q"))
        await hears(pilot, window, "at most 2,000,000 characters")
        assert window.composer.draft == "p" * LONGEST_DRAFT


async def test_a_long_draft_is_estimated_at_once_and_counted_after_a_pause(tmp_path: Path) -> None:
    """No key waits for the counter: it is asked in another thread, after the last one."""
    window = Window(tmp_path)
    threads: list[threading.Thread] = []

    def count(text: str) -> int:
        threads.append(threading.current_thread())
        return len(text)

    async with window.app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model is there")
        window.composer.count_with(count)
        window.composer.post_message(events.Paste("p" * 120_000))
        await until(pilot, lambda: str(window.composer.border_subtitle) == "≈ 30,000 tokens", "the estimate")
        assert threading.main_thread() not in threads
        await until(pilot, lambda: str(window.composer.border_subtitle) == "120,000 tokens", "the count")
        assert threads[0] is not threading.main_thread()


async def test_the_engine_counts_where_nothing_else_can(tmp_path: Path) -> None:
    """The estimate stands until the engine's number comes; a changed draft never gets an old number."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model is there")
        window.composer.count_with(None)
        await pilot.press(*"abcdefgh")
        assert str(window.composer.border_subtitle) == "≈ 2 tokens"
        await until(pilot, lambda: str(window.composer.border_subtitle) == "8 tokens", "the engine's count")
        window.composer.counted(0, 99)
        assert str(window.composer.border_subtitle) == "8 tokens"


async def test_nothing_is_counted_by_the_engine_while_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate stays while an answer is written; the count follows when it is complete."""
    window = Window(tmp_path, reply=lambda _: "word " * 20)
    window.engine.hang_at = 10
    asked: list[str] = []
    count = window.manager.count

    async def counting(text: str) -> int | None:
        asked.append(text)
        return await count(text)

    monkeypatch.setattr(window.manager, "count", counting)
    async with window.app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model is there")
        window.composer.count_with(None)
        await pilot.press(*"go", "enter")
        await until(pilot, lambda: window.app.readings.n_output == 10, "it answers")
        await pilot.press(*"abcd")
        window.app.on_count_asked(CountAsked("abcd", 0))
        await pilot.pause()
        assert asked == []
        await pilot.press("escape")
        await until(pilot, lambda: str(window.composer.border_subtitle) == "4 tokens", "the count")
        assert asked == ["abcd"]


async def test_an_opening_can_be_edited_before_a_big_draft(tmp_path: Path) -> None:
    """A text of ours of one long line stands in the box in full; the draft behind it stays a chip, and all is sent."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press(*"old")
        opening = "A summary. " * 300 + "\n\n"
        window.composer.begin_with(opening, "d" * 9_000, "waiting")
        assert window.composer.text == opening + "[pasted 8.8 KiB #1]\n\nwaiting"
        assert window.composer.draft == opening + "d" * 9_000 + "\n\nwaiting"


def test_a_chip_says_that_no_context_holds_it() -> None:
    """As soon as it is counted; another model may hold it, so that is counted again."""
    chips = Chips()
    mark = chips.add(Part("log.txt", "a log"), "log.txt")

    chips.counted(mark, 5000, 4096)
    said = described(chips.shown(mark)[mark]).plain
    chips.forget_counts()

    assert "5,000 tokens, more than the context of 4,096 holds" in said
    assert "holds" not in described(chips.shown(mark)[mark]).plain
    chips.counted(mark, 5000, 8192)
    assert "holds" not in described(chips.shown(mark)[mark]).plain
