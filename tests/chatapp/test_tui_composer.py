from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from textual import events

from models.engine import ModelInfo
from tests.chatapp.tui_window import Window, until

SIZE = (100, 30)


@pytest.mark.parametrize("key", ["shift+enter", "alt+enter", "ctrl+j"])
async def test_new_line_keys(tmp_path: Path, key: str) -> None:
    """These keys begin a new line and send nothing."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press("a", key, "b")
        assert window.composer.draft == "a\nb"
        assert window.manager.sessions() == []


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
        assert str(window.composer.border_subtitle) == "≈ 1 tokens"
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
    window.app._make_counter = make
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press("a", "b")
        await until(pilot, lambda: str(window.composer.border_subtitle) == "2 tokens", "the count")
    assert asked == [("fake", False)]
