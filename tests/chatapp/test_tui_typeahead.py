"""What is written in the window is read ahead, in the right place and no other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from textual import events

from models.engine import Finished, Sampling
from sessions.conversation import Draft
from sessions.loading import Shelf
from tests.chatapp.tui_window import Window, sees, until

SIZE = (120, 36)
PASTE = "Read all of this before you answer, word for word. " * 20


def always() -> bool:
    """Reading ahead is allowed."""
    return True


def typist(tmp_path: Path, may: Callable[[], bool] | None = always, session_id: str | None = None) -> Window:
    """A window that reads drafts ahead."""
    shelf = Shelf(lambda _model: Path("fake.gguf"))
    return Window(tmp_path, reply=lambda _: "ok", may_read_ahead=may, session_id=session_id, shelf=shelf)


async def test_a_paste_is_read_ahead_and_told(tmp_path: Path) -> None:
    """The meters say how many tokens are ready; the turn that is sent counts them as resident."""
    window = typist(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        window.composer.post_message(events.Paste(PASTE))
        await sees(pilot, window, "tokens read ahead")
        n_ready = window.app.readings.ahead.n_ready if window.app.readings.ahead else 0
        assert n_ready > 900
        assert f"draft: {n_ready:,} tokens read ahead" in window.screen_text()
        await pilot.press("enter")
        await until(pilot, lambda: window.app.readings.stats.resident_tokens is not None, "the answer")
        stats = window.app.readings.stats
        assert stats.resident_tokens is not None
        assert stats.resident_tokens >= n_ready
        assert stats.prefilled_tokens is not None
        assert stats.prefilled_tokens < 20
        await until(pilot, lambda: "read ahead" not in window.screen_text(), "the line is gone")


async def test_the_draft_of_a_conversation_stands_behind_its_history(tmp_path: Path) -> None:
    """What the engine is given is the prompt that sending makes, with the runs that are known."""
    session_id = await typist(tmp_path).ask("First question")
    window = typist(tmp_path, session_id=session_id)
    async with window.app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history")
        await pilot.press(*"and then")
        await until(pilot, lambda: bool(window.engine.drafts), "the draft")
        await pilot.press("enter")
        await until(pilot, lambda: len(window.engine.prompts) == 2, "the question")
        drafted, sent = window.engine.drafts[-1], window.engine.prompts[-1]
        assert drafted.entries == sent.entries
        assert [entry.run is None for entry in drafted.entries] == [False, False, True]


async def test_what_is_sent_is_what_was_read(tmp_path: Path) -> None:
    """A chip's text is in the draft as it is in the message, and two slashes are one."""
    window = typist(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press("slash", "slash", "a", "space")
        window.composer.post_message(events.Paste("x y " * 3_000))
        await until(pilot, lambda: bool(window.engine.drafts), "the draft")
        await pilot.press("enter")
        await until(pilot, lambda: bool(window.engine.prompts), "the question")
        assert window.engine.drafts[-1].entries[-1].text == window.engine.prompts[-1].entries[-1].text
        assert window.engine.drafts[-1].entries[-1].text.startswith("/a x y")


@pytest.mark.parametrize("may", [None, lambda: False])
async def test_where_it_is_not_allowed_nothing_is_read(tmp_path: Path, may: Callable[[], bool] | None) -> None:
    """Switched off, or on battery: no draft leaves the window before it is sent."""
    window = typist(tmp_path, may)
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press(*"some words here")
        # What would have been read is read by asking the same object as the timer does.
        window.app._ahead._look()
        await pilot.press("enter")
        await until(pilot, lambda: bool(window.engine.prompts), "the question")
        assert window.engine.drafts == []


async def test_commands_and_edits_are_not_read(tmp_path: Path) -> None:
    """A command is not sent, and an edited question would cost what stands behind it."""
    session_id = await typist(tmp_path).ask("First question")
    window = typist(tmp_path, session_id=session_id)
    async with window.app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history")
        await pilot.press(*"/help me please")
        window.app._ahead._look()
        window.composer.clear_draft()
        question = window.manager.messages(session_id)[0]
        window.app.stage.editing.begin(question, Draft("First question, and more of it"))
        window.app._ahead._look()
        await pilot.pause()
        assert window.engine.drafts == []


async def test_no_draft_is_read_while_an_answer_is_written(tmp_path: Path) -> None:
    """It is read when the answer is there."""
    window = Window(tmp_path, reply=lambda _: "word " * 40, tokens_per_s=100, may_read_ahead=always)
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press("a", "enter")
        await until(pilot, lambda: bool(window.app.stage.talk.live), "the turn")
        await pilot.press(*"next words")
        window.app._ahead._look()
        assert window.engine.drafts == []
        await until(pilot, lambda: bool(window.engine.drafts), "the draft")
        assert not window.app.stage.talk.live
        assert window.engine.drafts[0].entries[-1].text == "next words"


async def test_an_emptied_box_says_nothing(tmp_path: Path) -> None:
    """The line goes with the draft."""
    window = typist(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        window.composer.post_message(events.Paste(PASTE))
        await sees(pilot, window, "tokens read ahead")
        window.composer.clear_draft()
        await until(pilot, lambda: "read ahead" not in window.screen_text(), "the line is gone")


@pytest.mark.parametrize("left", ["", "   ", "/help"])
async def test_what_is_not_to_be_sent_any_more_is_not_read_on(tmp_path: Path, left: str) -> None:
    """A paste that was taken out of the box again, or gave way to a command, costs nothing more and is not told."""
    window = typist(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        gate, n_read = asyncio.Event(), 0

        async def pause(_seconds: float) -> None:
            nonlocal n_read
            await gate.wait()
            n_read += 1

        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model")
        window.engine._sleep = pause
        window.composer.rewrite(PASTE)
        await until(pilot, lambda: bool(window.engine.drafts), "the draft")
        reading = next(one for one in window.app.workers if one.group == "typeahead")
        window.composer.rewrite(left)
        await until(pilot, lambda: reading.is_finished, "its end, while it hangs")
        gate.set()
        await pilot.pause()
        assert (n_read, window.app.readings.ahead) == (0, None)


async def test_a_draft_that_nobody_reads_is_not_told_as_read(tmp_path: Path) -> None:
    """Once the engine has gone, or another model came, nothing of the draft is ready any more."""
    window = typist(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        window.composer.rewrite(PASTE)
        await sees(pilot, window, "tokens read ahead")
        window.engine._info = None
        window.composer.rewrite(PASTE + "And more.")
        await until(pilot, lambda: "read ahead" not in window.screen_text(), "the line is gone")


async def test_a_draft_that_grows_does_not_end_its_reading(tmp_path: Path) -> None:
    """What goes on where the one being read ends waits; a draft with another beginning takes its place."""
    window = typist(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        gate = asyncio.Event()

        async def pause(_seconds: float) -> None:
            await gate.wait()

        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model")
        window.engine._sleep = pause
        await pilot.press(*"one two three")
        await until(pilot, lambda: len(window.engine.drafts) == 1, "the first draft")
        await pilot.press(*" four")
        window.app._ahead._look()
        await pilot.pause()
        assert len(window.engine.drafts) == 1
        gate.set()
        await until(pilot, lambda: len(window.engine.drafts) == 2, "the longer one")
        assert window.engine.drafts[1].entries[-1].text == "one two three four"
        gate.clear()
        await pilot.press(*" five six")
        await until(pilot, lambda: len(window.engine.drafts) == 3, "a third")
        window.composer.rewrite("something else altogether")
        await until(pilot, lambda: len(window.engine.drafts) == 4, "the other one, while the third hangs")
        assert window.engine.drafts[3].entries[-1].text == "something else altogether"
        gate.set()


async def test_a_send_does_not_wait_for_a_draft(tmp_path: Path) -> None:
    """The reading of a draft hangs, and the question is answered all the same."""
    window = typist(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        never = asyncio.Event()
        usual = window.app.stage.manager

        async def pause(_seconds: float) -> None:
            if window.engine.drafts and not window.engine.prompts:
                await never.wait()

        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model")
        window.engine._sleep = pause
        await pilot.press(*"one two three")
        await until(pilot, lambda: len(window.engine.drafts) == 1, "the draft")
        finished = [
            event
            async for event in usual.send(usual.new().id, "Another question", Sampling())
            if isinstance(event, Finished)
        ]
        assert [event.reason for event in finished] == ["end"]
        never.set()


# --- the list ---


class Prefetched:
    """Counts what is fetched instead of reading it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fetched: list[tuple[Sequence[tuple[str, str]], str | None]] = []
        self.went_on: list[bool] = []

    def tips(self, session_id: str) -> Sequence[tuple[str, str]]:
        """One tip that names the conversation."""
        self.asked.append(session_id)
        return [("generation", session_id)]

    def fetch(self, tips: Sequence[tuple[str, str]], fingerprint: str | None, goes_on: Callable[[], bool]) -> int:
        """Remember who asks."""
        self.went_on.append(goes_on())
        self.fetched.append((tips, fingerprint))
        return 0


async def test_the_row_under_the_cursor_is_prefetched(tmp_path: Path) -> None:
    """Where it rests, and not what it passes; the conversation on the screen is resident anyway."""
    made = Window(tmp_path)
    ids = [await made.ask(f"Question {n}") for n in range(3)]
    prefetched, shelf = Prefetched(), Shelf(lambda _model: Path("fake.gguf"))
    window = Window(tmp_path, prefetcher=prefetched, session_id=ids[2], shelf=shelf)
    async with window.app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history")
        prefetched.asked.clear()
        prefetched.fetched.clear()
        for session_id in (ids[1], ids[2], ids[0]):
            window.app._prefetch.highlighted(session_id)
        await until(pilot, lambda: bool(prefetched.fetched), "the prefetch")
        assert prefetched.asked == [ids[0]]
        info = window.engine.info
        assert info is not None
        assert prefetched.fetched == [([("generation", ids[0])], info.fingerprint)]
        assert prefetched.went_on[-1]


class Stuck(Prefetched):
    """The first prefetch hangs at a slow disk until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = threading.Event()

    def fetch(self, tips: Sequence[tuple[str, str]], fingerprint: str | None, goes_on: Callable[[], bool]) -> int:
        """Remember who asks, and hang the first time."""
        self.fetched.append((tips, fingerprint))
        if len(self.fetched) == 1:
            self.disk.wait()
        self.went_on.append(goes_on())
        return 0


async def test_a_cursor_that_comes_back_prefetches_again(tmp_path: Path) -> None:
    """The prefetch that still hangs ends, and does not take the new one of the same conversation along."""
    made = Window(tmp_path)
    ids = [await made.ask(f"Question {n}") for n in range(2)]
    stuck = Stuck()
    window = Window(tmp_path, prefetcher=stuck)
    async with window.app.run_test(size=SIZE) as pilot:
        try:
            await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model")
            window.app._prefetch.highlighted(ids[0])
            await until(pilot, lambda: len(stuck.fetched) == 1, "the first")
            window.app._prefetch.highlighted(ids[1])
            window.app._prefetch.highlighted(ids[0])
            await until(pilot, lambda: len(stuck.went_on) == 1, "the second")
            assert stuck.fetched[0] == stuck.fetched[1]
            stuck.disk.set()
            await until(pilot, lambda: len(stuck.went_on) == 2, "the first again")
            assert stuck.went_on == [True, False]
        finally:
            stuck.disk.set()
