from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Static

from chatapp.config import Settings
from chatapp.modellist import models_here
from chatapp.tui.keymap import Keymap
from chatapp.tui.keys import KEYS
from models.fake import FakeDisk
from sessions.loading import Shelf
from tests.chatapp.tui_window import Window, sees, until
from tests.models.ggufs import gguf, llama, tensor

WIDE = (120, 36)
HOSTILE = "Look: [/INST] [bold]x[/] <b>tag</b> <think>hm</think>\n\n\x1b]52;c;aGk=\x1b\\\x1b[2J\x9b31m `[/oops]`\n"


async def test_a_message_is_answered(tmp_path: Path) -> None:
    """Enter sends the draft; question and answer stand on the screen and in the store."""
    window = Window(tmp_path)
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press(*"hello", "enter")
        await sees(pilot, window, "You said: hello")
        await until(pilot, lambda: window.manager.running is None, "the answer is complete")
        [summary] = window.manager.sessions()
        assert window.manager.messages(summary.session.id)[0].text == "hello"
        assert window.composer.draft == ""


async def test_escape_keeps_the_partial_answer(tmp_path: Path) -> None:
    """Escape ends the answer; what was said stays, marked as stopped, and the composer works again."""
    window = Window(tmp_path, reply=lambda _: "word " * 50)
    window.engine.hang_at = 20
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press(*"go", "enter")
        await sees(pilot, window, "word word word word")
        await pilot.press("escape")
        await sees(pilot, window, "stopped by you")
        [summary] = window.manager.sessions()
        answer = window.manager.messages(summary.session.id)[-1]
        assert (answer.text, answer.status) == ("word word word word ", "stopped")
        window.engine.hang_at = None
        await pilot.press(*"on", "enter")
        await until(pilot, lambda: len(window.manager.messages(summary.session.id)) == 4, "a second turn")


async def test_resuming_shows_restored_tokens(tmp_path: Path) -> None:
    """A conversation chosen in the list is painted from the store, and the meters say what came from disk."""
    disk = FakeDisk()
    earlier = Window(tmp_path, disk=disk)
    await earlier.ask("remember this")
    earlier.store.close()
    window = Window(tmp_path, disk=disk)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.sidebar.option_count == 2, "the list is filled")
        window.sidebar.focus()
        await pilot.press("down", "enter")
        await sees(pilot, window, "You said: remember this")
        n_restored = window.manager.sessions()[0].n_tokens
        await sees(pilot, window, f"restored {n_restored} tokens in")
        assert "prefilled 0" in window.screen_text()
        await pilot.press(*"more", "enter")
        await sees(pilot, window, f"resident {n_restored}")


async def test_hostile_text_stays_text(tmp_path: Path) -> None:
    """Markup, tags and escape sequences of a model are shown as text; no control character reaches the screen."""
    window = Window(tmp_path, reply=lambda _: HOSTILE)
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press(*"[/x] [red]", "enter")
        await sees(pilot, window, "[/oops]")
        await until(pilot, lambda: window.manager.running is None, "the answer is complete")
        await pilot.pause()
        text = window.screen_text()
        assert "[/INST]" in text
        assert "<b>tag</b>" in text
        assert "<think>hm</think>" in text
        assert not {c for c in text if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0}


async def test_answers_go_on_behind_the_screen(tmp_path: Path) -> None:
    """An answer goes on while another conversation is shown, and tokens never land in the wrong one."""
    window = Window(tmp_path, reply=lambda q: f"answer to {q}, " * 12)
    other = await window.ask("the other")
    window.engine.hang_at = 30
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press(*"first", "enter")
        await sees(pilot, window, "answer to first, answer to fir")
        first = next(s.session.id for s in window.manager.sessions() if s.session.title == "first")
        window.sidebar.focus()
        window.sidebar.highlighted = window.sidebar.get_option_index(other)
        await pilot.press("enter")
        await sees(pilot, window, "answer to the other")
        await until(pilot, lambda: window.composer.has_focus, "the composer has the focus")
        assert "answer to first" not in window.screen_text()
        await pilot.press(*"second", "enter")
        await sees(pilot, window, "queued")
        window.sidebar.focus()
        window.sidebar.highlighted = window.sidebar.get_option_index(first)
        await pilot.press("enter")
        await sees(pilot, window, "answer to first, answer to fir")
        window.engine.hang_at = None
        await pilot.press("escape")
        await until(pilot, lambda: len(window.manager.messages(other)) == 4, "the queued message is answered")
        assert window.manager.messages(other)[-1].text == "answer to second, " * 12
        assert "answer to second" not in window.screen_text()


async def test_a_waiting_message_can_be_taken_back(tmp_path: Path) -> None:
    """Escape on a queued message returns it to the composer and leaves the running answer alone."""
    window = Window(tmp_path, reply=lambda _: "word " * 50)
    window.engine.hang_at = 20
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press(*"first", "enter")
        await sees(pilot, window, "word word")
        await pilot.press("ctrl+n", *"second", "enter")
        await sees(pilot, window, "queued")
        await pilot.press("escape")
        await until(pilot, lambda: window.composer.draft == "second", "the draft is back")
        assert window.manager.running is not None


async def test_a_failed_turn_is_told_and_the_draft_kept(tmp_path: Path) -> None:
    """When the engine dies the sentence stands in the conversation and the message in the composer."""
    window = Window(tmp_path)
    window.engine.crash_at = 0
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press(*"hello", "enter")
        await sees(pilot, window, "starts the engine again")
        assert window.composer.draft == "hello"
        assert "Traceback" not in window.screen_text()
        window.engine.crash_at = None
        await pilot.press("enter")
        await sees(pilot, window, "You said: hello")


async def test_a_model_that_cannot_load_leaves_conversations_readable(tmp_path: Path) -> None:
    """The reason stands in the window; stored conversations can be opened and read."""
    earlier = Window(tmp_path)
    session_id = await earlier.ask("remember this")
    earlier.store.close()
    shelf = Shelf(lambda _: Path("fake.gguf"))
    window = Window(tmp_path, load_error="The model file is cut off.", session_id=session_id, shelf=shelf)
    async with window.app.run_test(size=WIDE) as pilot:
        await sees(pilot, window, "The model file is cut")
        await sees(pilot, window, "You said: remember this")
        await sees(pilot, window, "no model")


async def test_a_done_conversation_takes_no_message(tmp_path: Path) -> None:
    """A done conversation says so in the composer, and takes text again after F4."""
    window = Window(tmp_path)
    session_id = await window.ask("task")
    window.manager.mark_done(session_id)
    window.app.stage.current = session_id
    async with window.app.run_test(size=WIDE) as pilot:
        await sees(pilot, window, "F4 reopens it")
        await pilot.press(*"more", "enter")
        assert window.composer.draft == ""
        assert len(window.manager.messages(session_id)) == 2
        await pilot.press("f4")
        await until(pilot, lambda: not window.composer.read_only, "the composer is free")
        await pilot.press(*"more", "enter")
        await until(pilot, lambda: len(window.manager.messages(session_id)) == 4, "a second turn")


async def test_trash_can_be_undone(tmp_path: Path) -> None:
    """Delete in the list moves a conversation to the trash, U takes it back."""
    window = Window(tmp_path)
    await window.ask("keep me")
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.sidebar.option_count == 2, "the list is filled")
        window.sidebar.focus()
        await pilot.press("down", "delete")
        await until(pilot, lambda: not window.manager.sessions(), "it is in the trash")
        await pilot.press("u")
        await until(pilot, lambda: len(window.manager.sessions()) == 1, "it is back")


@pytest.mark.parametrize("size", [(39, 20), (100, 9), (1, 1)])
async def test_too_small_says_so(tmp_path: Path, size: tuple[int, int]) -> None:
    """Below 40 x 10 cells only a panel is shown; nothing is lost when the window grows again."""
    window = Window(tmp_path)
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press(*"draft")
        await pilot.resize_terminal(*size)
        await until(pilot, lambda: bool(window.app.query_one("#too-small", Static).display), "the panel")
        assert not window.app.query_one("#main").display
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: bool(window.app.query_one("#main").display), "the window")
        assert window.composer.draft == "draft"


@pytest.mark.parametrize(("width", "sidebar", "meters"), [(120, True, True), (90, True, False), (60, False, False)])
async def test_panels_fold_away(tmp_path: Path, width: int, sidebar: bool, meters: bool) -> None:
    """Below 100 columns the meters are one line, below 80 the list hides."""
    window = Window(tmp_path)
    async with window.app.run_test(size=(width, 24)) as pilot:
        await pilot.pause()
        shown = (window.app.query_one("#library").display, window.app.query_one("#meters").display)
        assert shown == (sidebar, meters)
        assert window.app.query_one("#meter-line").display is not meters


async def test_ctrl_c_twice_quits_while_answering(tmp_path: Path) -> None:
    """The second Ctrl+C quits although an answer runs; what was said by then is stored."""
    window = Window(tmp_path, reply=lambda _: "word " * 50)
    window.engine.hang_at = 20
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press(*"go", "enter")
        await sees(pilot, window, "word word word word")
        await pilot.press("ctrl+c")
        await pilot.press("ctrl+c")
        await until(pilot, lambda: not window.app.is_running, "the window is closed")
    [summary] = window.manager.sessions()
    assert window.manager.messages(summary.session.id)[-1].text == "word word word word "


async def test_every_key_is_documented() -> None:
    """The help and docs/keys.md list the same keys."""
    page = (Path(__file__).parents[2] / "docs" / "keys.md").read_text(encoding="utf-8")
    rows = [f"| {Keymap().fill(key)} | {what} |" for _, keys in KEYS for key, what in keys]
    assert [row for row in rows if row not in page] == []


async def test_what_the_model_recommends_is_used(tmp_path: Path) -> None:
    """Where nobody chose, what is usual for the model counts."""
    window = Window(tmp_path)
    window.app.stage.talk._sampling = None
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model is there")
        info = window.app.stage.talk.model.info
        assert info is not None
        recommended = replace(info.sampling, temperature=0.3)
        window.app.stage.talk.model.info = replace(info, sampling=recommended)
        await pilot.press(*"hello", "enter")
        await sees(pilot, window, "You said: hello")
    assert window.engine.samplings == [recommended]


async def test_a_filling_context_is_told_on_the_box(tmp_path: Path) -> None:
    """Its border says how full the context is, in words too."""
    window = Window(tmp_path, reply=lambda _: "x" * 450, n_ctx=1024)
    async with window.app.run_test(size=(60, 16)) as pilot:
        await pilot.press(*"go", "enter")
        await until(pilot, lambda: window.manager.running is None, "the answer is complete")
        assert str(window.composer.border_title or "") == ""
        window.composer.insert("y" * 30)
        await pilot.press("enter")
        await sees(pilot, window, "context 92%: nearly full")
        assert window.composer.has_class("-full")
        await window.app.action_new()
        await until(pilot, lambda: not window.composer.has_class("-full"), "another conversation has room")
        assert "context" not in str(window.composer.border_title)


async def test_the_help_has_the_facts_of_the_model(tmp_path: Path) -> None:
    """F1 lists the keys, and below them what is known of the model."""
    window = Window(tmp_path)
    async with window.app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model is there")
        await pilot.press("f1")
        await sees(pilot, window, "send the message")
        await pilot.press("end")
        await sees(pilot, window, "trained for 32,768")


def test_the_window_opens_without_what_it_may_never_show() -> None:
    """Dialogs, the list of models and what reads their headers are imported when they are first needed."""
    code = "import sys, chatapp.window; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    late = {
        f"chatapp.tui.{name}"
        for name in (
            "branchtree",
            "costscreen",
            "dialogs",
            "editor",
            "lines",
            "screens",
            "snippetscreens",
            "statscreen",
            "summary",
            "systemscreen",
            "viewer",
        )
    }
    late |= {"models.catalog", "models.tokens", "models.price"}
    assert "chatapp.tui.app" in loaded
    assert late & set(loaded) == set()


def test_the_models_that_can_be_chosen(tmp_path: Path) -> None:
    """Those that can be used are listed, with what is known of them and whether they fit; a damaged one is not."""
    folder = tmp_path / "data" / "models"
    folder.mkdir(parents=True)
    (folder / "good.gguf").write_bytes(gguf(llama(), [tensor("t", [8])], data=bytes(32)))
    (folder / "bad.gguf").write_bytes(b"GGUFnot a model")
    choices = models_here(Settings(tmp_path / "data", tmp_path / "cache"))
    own = [choice for choice in choices if choice.path.parent == folder]
    assert [(choice.name, choice.fits) for choice in own] == [("good", True)]
    assert "own" in own[0].detail
