from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from chatapp import takeover
from chatapp.tui.stage import UNSAVED
from sessions.conversation import Draft
from sessions.errors import StoreError
from sessions.journal import Journal
from tests.chatapp.tui_window import Window, hears, sees, until

SIZE = (130, 36)
READING = "reading along"


@asynccontextmanager
async def two_windows(folder: Path) -> AsyncIterator[tuple[Window, Pilot[None], Window, Pilot[None], str]]:
    """Two windows on one conversation: the first one writes in it, the second one reads along."""
    one, other = Window(folder), Window(folder)
    session_id = await one.ask("first question")
    async with one.app.run_test(size=SIZE) as pilot, other.app.run_test(size=SIZE) as other_pilot:
        await one.app.stage.show(session_id)
        await other.app.stage.show(session_id)
        await sees(other_pilot, other, READING)
        yield one, pilot, other, other_pilot, session_id


async def test_the_second_window_reads_along(tmp_path: Path) -> None:
    """It says so and where the other one is, sends nothing, keeps what is typed, and shows what comes."""
    async with two_windows(tmp_path) as (one, pilot, other, other_pilot, session_id):
        assert READING not in one.screen_text()
        assert f"process {one.app.stage.leasing._leases.holder(session_id)}" in other.screen_text()
        await other_pilot.press(*"mine", "enter")
        await hears(other_pilot, other, "reading along. /takeover writes here.")
        await pilot.press(*"theirs", "enter")
        await sees(other_pilot, other, "You said: theirs")
        assert (other.composer.draft, one.composer.draft) == ("mine", "")
        questions = [message.text for message in one.manager.messages(session_id) if message.role == "user"]
        assert questions == ["first question", "theirs"]


async def test_what_is_let_go_is_taken(tmp_path: Path) -> None:
    """When the other window shows something else, this one writes here, with the draft that was left there."""
    async with two_windows(tmp_path) as (one, pilot, other, other_pilot, session_id):
        await pilot.press(*"half a thought")
        await pilot.press("ctrl+n")
        await hears(other_pilot, other, "written here now")
        await until(other_pilot, lambda: other.composer.draft == "half a thought", "the draft came along")
        assert READING not in other.screen_text()
        await one.app.stage.show(session_id)
        await sees(pilot, one, READING)
        assert one.composer.draft == ""


async def test_taking_over_by_hand(tmp_path: Path) -> None:
    """The other window notices, gives its draft along, reads from then on, and both say what happened."""
    async with two_windows(tmp_path) as (one, pilot, other, other_pilot, _):
        await pilot.press(*"half")
        await other_pilot.press(*"/takeover", "enter")
        await hears(other_pilot, other, "This conversation is written here now")
        await hears(pilot, one, "Another window has taken this conversation over")
        await sees(pilot, one, READING)
        await until(other_pilot, lambda: other.composer.draft == "half", "the draft came along")
        assert one.composer.draft == ""
        await other_pilot.press("!", "enter")
        await sees(pilot, one, "You said: half!")
        await pilot.press("f8")
        await hears(pilot, one, "This conversation is written here now")
        await sees(other_pilot, other, READING)


async def test_both_drafts_survive_taking_over(tmp_path: Path) -> None:
    """What was typed while reading stays in the box, and what was typed there comes back to an empty box."""
    async with two_windows(tmp_path) as (one, pilot, other, other_pilot, session_id):
        await pilot.press(*"theirs")
        await other_pilot.press(*"mine")
        await other_pilot.press("f8")
        await hears(other_pilot, other, "Another draft is kept")
        await sees(pilot, one, READING)
        assert (one.composer.draft, other.composer.draft) == ("", "mine")
        await other_pilot.press("enter")
        await sees(other_pilot, other, "You said: mine")
        await one.app.stage.show(UNSAVED)  # or it takes the conversation, and its draft, when that is free for a moment
        await other.app.stage.show(UNSAVED)
        await other.app.stage.show(session_id)
        assert other.composer.draft == "theirs"


async def test_an_answer_is_not_taken_over(tmp_path: Path) -> None:
    """While one is being written the request is refused with a sentence, and the other window keeps writing."""
    async with two_windows(tmp_path) as (one, _, other, other_pilot, session_id):
        with Journal(one.store.journal_dir, session_id, monotonic=one.app.stage.monotonic):
            await other_pilot.press("f8")
            await hears(other_pilot, other, "An answer is being written in the other window")
        assert one.app.stage.leasing.why(session_id) is None
        assert READING in other.screen_text()


async def test_a_window_that_asks_something_gives_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that is being looked at there is about to be sent there: who asks is told."""
    monkeypatch.setattr(takeover, "ASK_S", 0.6)
    async with two_windows(tmp_path) as (one, pilot, other, other_pilot, _):
        await pilot.press(*"/system", "enter")
        await until(pilot, lambda: one.app.stage.is_conversing, "it asks")
        await other_pilot.press("f8")
        await hears(other_pilot, other, "does not let this conversation go")
        assert READING in other.screen_text()


async def test_only_a_reader_takes_over(tmp_path: Path) -> None:
    """Where nobody else has it there is nothing to take over."""
    window = Window(tmp_path)
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        await pilot.press(*"/takeover", "enter")
        await hears(pilot, window, "written in this window already")


async def test_a_command_may_write_while_a_window_is_idle(tmp_path: Path) -> None:
    """What `run --session` asks is answered and shown; the window goes on writing."""
    window, command = Window(tmp_path), Window(tmp_path)
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        async for _ in command.manager.load():
            pass
        await command.ask("from a command", session_id)
        await sees(pilot, window, "You said: from a command")
        await pilot.press(*"and on", "enter")
        await sees(pilot, window, "You said: and on")


async def test_nothing_is_changed_while_an_answer_is_written_elsewhere(tmp_path: Path) -> None:
    """A window that writes here waits for a command's answer; versions and turns are left alone meanwhile."""
    window = Window(tmp_path)
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        with Journal(window.store.journal_dir, session_id, monotonic=window.app.stage.monotonic):
            await pilot.press(*"/undo", "enter")
            await hears(pilot, window, "is being answered in another window")
        assert len(window.manager.messages(session_id)) == 2


async def test_no_lock_file_is_left(tmp_path: Path) -> None:
    """Windows that end cleanly leave nothing behind, whatever they had open."""
    async with two_windows(tmp_path) as (one, *_):
        folder = one.manager.leases_dir
        assert list(folder.glob("*.lock")) != []
    assert list(folder.iterdir()) == []
    assert list(one.store.journal_dir.iterdir()) == []


async def test_what_killed_windows_left_is_removed(tmp_path: Path) -> None:
    """The next window does it while it has nothing else to do."""
    window = Window(tmp_path)
    left = [window.manager.leases_dir / "dead.lock", window.store.journal_dir / "dead.lock"]
    window.manager.leases_dir.mkdir()
    for path in left:
        path.touch()
    async with window.app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: not any(path.exists() for path in left), "they are gone")


async def test_new_drafts_of_two_windows_both_survive(tmp_path: Path) -> None:
    """Each window has its own; what they leave comes back one after the other."""
    one, other = Window(tmp_path), Window(tmp_path)
    async with one.app.run_test(size=SIZE) as pilot, other.app.run_test(size=SIZE) as other_pilot:
        await pilot.press(*"first")
        await other_pilot.press(*"second")
        for window in (one, other):
            window.app.stage.save_draft()
            await window.app.stage.show(UNSAVED)
        assert (one.composer.draft, other.composer.draft) == ("first", "second")
    later = Window(tmp_path)
    async with later.app.run_test(size=SIZE) as pilot:
        assert later.composer.draft == "second"
        await pilot.press("enter")
        await sees(pilot, later, "You said: second")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: later.composer.draft == "first", "the other draft is there")


async def test_a_draft_that_the_disk_did_not_take_stays_in_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there when its conversation is shown again, and is saved as soon as that works."""
    window = Window(tmp_path)
    session_id = await window.ask("one")
    drafts = window.app.stage.drafts
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        with monkeypatch.context() as broken:
            broken.setattr(window.manager, "keep_draft", _full)
            await pilot.press(*"half")
            await window.app.stage.show(UNSAVED)
            await hears(pilot, window, "Drafts are not saved")
        assert not drafts.let_go(session_id)
        await window.app.stage.show(session_id)
        assert window.composer.draft == "half"
        assert drafts.keep(session_id, Draft("half"))
        assert window.manager.draft(session_id) == Draft("half")


def _full(*_: object) -> None:
    raise StoreError("the disk is full.")
