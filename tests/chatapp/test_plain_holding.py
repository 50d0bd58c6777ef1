"""Plain mode, a process of its own, beside a window on the same conversation: one of them writes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("a pty is POSIX's", allow_module_level=True)

from textual.pilot import Pilot

from tests.chatapp.plain_terminal import CTRL_C, ROOT, PlainTerminal, environment
from tests.chatapp.tui_window import Window, hears, sees, until

SIZE = (130, 36)
READING = "reading along"


@asynccontextmanager
async def window_on_one(folder: Path) -> AsyncIterator[tuple[Window, Pilot[None], str]]:
    """A window that writes in a conversation with one turn."""
    window = Window(folder / "data")
    session_id = await window.ask("first question")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        assert session_id in window.app.stage.leasing._leases.held
        yield window, pilot, session_id


async def seen(terminal: PlainTerminal, pattern: str) -> None:
    """Wait for a text of plain mode while the window goes on."""
    await asyncio.to_thread(terminal.wait_for, pattern)


async def enter(terminal: PlainTerminal, line: str) -> None:
    """Type a line at its prompt while the window goes on."""
    await asyncio.to_thread(terminal.enter, line)


def questions(window: Window, session_id: str) -> list[str]:
    """What was asked in a conversation."""
    return [message.text for message in window.manager.messages(session_id) if message.role == "user"]


async def test_what_a_window_has_is_read_and_taken_over(tmp_path: Path) -> None:
    """Nothing is sent or taken back until the window is asked for it, which then reads along."""
    async with window_on_one(tmp_path) as (window, pilot, session_id):
        with PlainTerminal(tmp_path, "--plain", "--session", session_id) as terminal:
            pid = window.app.stage.leasing._leases.holder(session_id)
            await seen(terminal, rf"Open in another window \(process {pid}\): reading along\. /takeover writes here\.")
            for line in ("mine", "/undo", "/again", "/tree 1"):
                await enter(terminal, line)
                await seen(terminal, READING)
            await enter(terminal, "/show")
            await seen(terminal, "first question")
            assert questions(window, session_id) == ["first question"]
            await enter(terminal, "/takeover")
            await seen(terminal, "This conversation is written here now")
            await hears(pilot, window, "Another window has taken this conversation over")
            await sees(pilot, window, READING)
            await enter(terminal, "mine")
            await sees(pilot, window, "You said: mine")
            await enter(terminal, "/takeover")
            await seen(terminal, "written in this window already")


async def test_a_window_gets_what_plain_mode_has(tmp_path: Path) -> None:
    """It is let go at the prompt; then a message is refused there, and what is refused ends in no list."""
    async with window_on_one(tmp_path) as (window, pilot, session_id):
        await window.app.stage.show("")
        with PlainTerminal(tmp_path, "--plain", "--session", session_id) as terminal:
            await seen(terminal, "Opened: first question")
            await seen(terminal, "> $")
            await window.app.stage.show(session_id)
            await sees(pilot, window, f"process {terminal.process.pid}")
            await pilot.press("f8")
            await hears(pilot, window, "This conversation is written here now")
            terminal.type("theirs\r")
            await seen(terminal, READING)
            await pilot.press(*"ours", "enter")
            await sees(pilot, window, "You said: ours")
            assert questions(window, session_id) == ["first question", "ours"]


async def test_an_answer_or_a_begun_message_is_not_given_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While plain mode answers, and while lines are gathered there, the window is told so."""
    async with window_on_one(tmp_path) as (window, pilot, session_id):
        await window.app.stage.show("")
        with PlainTerminal(tmp_path, "--plain", "--session", session_id, CHATAPP_ENGINE="fake:5") as terminal:
            await seen(terminal, "Opened: first question")
            await enter(terminal, "on" + " and on" * 200)
            await seen(terminal, "You said")
            await window.app.stage.show(session_id)
            await sees(pilot, window, READING)
            await pilot.press("f8")
            await hears(pilot, window, "An answer is being written in the other window")
            terminal.type(CTRL_C)
            await enter(terminal, '"""')
            await seen(terminal, r"\.\.\. $")
            monkeypatch.setattr("chatapp.takeover.ASK_S", 0.6)
            await pilot.press("f8")
            await hears(pilot, window, "does not let this conversation go")
            assert window.app.stage.leasing.is_reading


async def test_what_is_free_again_is_written(tmp_path: Path) -> None:
    """The window that had it shows something else: the next message of plain mode is sent, and nothing is left."""
    async with window_on_one(tmp_path) as (window, pilot, session_id):
        with PlainTerminal(tmp_path, "--plain", "--session", session_id) as terminal:
            await seen(terminal, READING)
            await window.app.stage.show("")
            await until(pilot, lambda: not window.app.stage.leasing._leases.held, "it is let go")
            await enter(terminal, "mine")
            await seen(terminal, "You said: ")
            await enter(terminal, "/quit")
            assert await asyncio.to_thread(terminal.ended) == 0
        assert questions(window, session_id) == ["first question", "mine"]
        assert list(window.manager.leases_dir.glob("*.lock")) == []


@pytest.mark.parametrize(("arguments", "code"), [(["--plain"], 1), ([], 0)])
async def test_lines_of_a_pipe_are_refused_and_one_question_is_as_with_run(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    """Who chats line by line is a window; a single question only waits for the turn that goes on."""
    async with window_on_one(tmp_path) as (window, _, session_id):
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "chatapp", *arguments, "--session", session_id],
            cwd=ROOT,
            env=environment(tmp_path),
            input=b"from a pipe\n",
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, READING in done.stderr.decode()) == (code, bool(code))
        assert len(questions(window, session_id)) == 2 - code
