from __future__ import annotations

import threading
from pathlib import Path

import pytest
from textual.pilot import Pilot

from chatapp.tui import dialogs
from chatapp.tui.dialogs import TurnsScreen, WaysScreen
from chatapp.tui.summary import SummaryScreen
from tests.chatapp.tui_window import Window, hears, sees, until

WIDE = (100, 30)
SMALL = (60, 16)
LONG = "x" * 500


async def _two_turns(window: Window) -> str:
    session_id = await window.ask("first " + "a" * 300)
    await window.ask("second " + "b" * 300, session_id)
    window.app.stage.current = session_id
    return session_id


async def test_a_larger_context_is_offered_and_the_message_sent(tmp_path: Path) -> None:
    """Where model and memory allow it, the context grows and the same message is answered."""
    window = Window(tmp_path, reply=lambda _: "ok", n_ctx=1024, n_ctx_max=8192)
    session_id = await _two_turns(window)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history is there")
        window.composer.insert(LONG)
        await pilot.press("enter")
        await sees(pilot, window, "Larger context (2,048 tokens, needs 1.0 MiB more)")
        assert "context has 1,024" in " ".join(window.screen_text().split())
        assert window.composer.draft == LONG
        await pilot.press("enter")
        await until(pilot, lambda: len(window.manager.messages(session_id)) == 6, "the message is answered")
        info = window.app.stage.talk.model.info
        assert info is not None
        assert (info.n_ctx, window.composer.draft) == (2048, "")


async def test_no_larger_context_is_offered_where_there_is_none(tmp_path: Path) -> None:
    """A model that runs with all it was trained for offers the other ways; Escape leaves the draft in the box."""
    window = Window(tmp_path, reply=lambda _: "ok", n_ctx=1024)
    session_id = await _two_turns(window)
    async with window.app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history is there")
        window.composer.insert(LONG)
        await pilot.press("enter")
        await sees(pilot, window, "New conversation with a summary")
        assert "Larger context" not in window.screen_text()
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(window.app.screen, WaysScreen), "the dialog is closed")
        assert window.composer.draft == LONG
        assert len(window.manager.messages(session_id)) == 4


async def test_turns_can_be_left_out(tmp_path: Path) -> None:
    """The marked turn is missing in a new conversation that has the draft; the old one keeps all."""
    window = Window(tmp_path, reply=lambda _: "ok", n_ctx=1024)
    session_id = await _two_turns(window)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history is there")
        window.composer.insert(LONG)
        await pilot.press("enter")
        await sees(pilot, window, "Remove turns")
        await pilot.press("down", "enter")
        await sees(pilot, window, "[ ] first aaaa")
        await pilot.press("enter")
        await sees(pilot, window, "Mark at least one turn")
        await pilot.press("space")
        await sees(pilot, window, "[x] first aaaa")
        await sees(pilot, window, "it fits then")
        await pilot.press("enter")
        await until(pilot, lambda: window.app.stage.current != session_id, "the new conversation")
        await until(pilot, lambda: window.composer.draft == LONG, "the draft")
        texts = [message.text[:6] for message in window.manager.messages(window.app.stage.current)]
        assert texts == ["second", "ok"]
        assert len(window.manager.messages(session_id)) == 4
        await pilot.press("enter")
        await until(pilot, lambda: len(window.manager.messages(window.app.stage.current)) == 4, "it is answered")


async def test_a_conversation_goes_on_with_its_summary(tmp_path: Path) -> None:
    """The summary and the draft stand in the box of a new conversation, and nothing is sent."""
    window = Window(tmp_path, reply=lambda q: "all about letters" if q.startswith("Summarize") else "ok", n_ctx=1400)
    session_id = await window.ask("first " + "a" * 500)
    window.app.stage.current = session_id
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history is there")
        window.composer.insert("y" * 800)
        await pilot.press("enter")
        await sees(pilot, window, "New conversation with a summary")
        await pilot.press("enter")
        await until(pilot, lambda: window.app.stage.current == "", "a new conversation")
        await until(pilot, lambda: "all about letters" in window.composer.text, "the summary")
        assert window.composer.draft.endswith("y" * 800)
        assert len(window.manager.sessions()) == 1
        assert len(window.manager.messages(session_id)) == 2


async def test_a_summary_can_be_stopped(tmp_path: Path) -> None:
    """Escape ends it, the ways are offered again, and the engine is free."""
    window = Window(tmp_path, reply=lambda _: "word " * 20, n_ctx=1400)
    session_id = await window.ask("first " + "a" * 500)
    window.app.stage.current = session_id
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history is there")
        window.engine.hang_at = 20
        window.composer.insert("y" * 800)
        await pilot.press("enter")
        await sees(pilot, window, "New conversation with a summary")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(window.app.screen, SummaryScreen), "the summary is written")
        await sees(pilot, window, "word word word word")
        await pilot.press("escape")
        await sees(pilot, window, "Remove turns")
        await pilot.press("escape")
        await until(pilot, lambda: not window.manager._lock.locked(), "the engine is free")
        assert (window.app.stage.current, window.composer.text[-3:]) == (session_id, "yyy")


async def test_what_the_engine_finds_too_long_is_offered_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that nobody could count before comes back into the box, with the engine's sentence and the ways out."""

    async def nobody_counts(_text: str) -> None:
        return None

    window = Window(tmp_path, reply=lambda _: "ok", n_ctx=1024, n_ctx_max=8192)
    monkeypatch.setattr(window.manager, "count", nobody_counts)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model is there")
        window.composer.insert("z" * 1200)
        await pilot.press("enter")
        await sees(pilot, window, "which is more than the context of 1024")
        await sees(pilot, window, "The context is full")
        assert "Remove turns" not in window.screen_text()
        assert window.composer.draft == "z" * 1200
        await sees(pilot, window, "Larger context (2,048 tokens")
        await pilot.press("enter")
        session_id = window.app.stage.current
        await until(pilot, lambda: window.manager.messages(session_id)[-1].text == "ok", "it is answered")
        assert window.composer.draft == ""


async def test_the_list_of_turns_says_what_is_missing(tmp_path: Path) -> None:
    """As long as too little is marked, the screen says how many tokens more have to go."""
    window = Window(tmp_path, reply=lambda _: "ok", n_ctx=1024)
    await _two_turns(window)
    async with window.app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history is there")
        window.composer.insert("x" * 900)
        await pilot.press("enter")
        await sees(pilot, window, "Remove turns")
        await pilot.press("down", "enter")
        await until(pilot, lambda: isinstance(window.app.screen, TurnsScreen), "the list")
        await pilot.press("space")
        await sees(pilot, window, "more have to go")
        await pilot.press("space")
        await until(pilot, lambda: "[x]" in window.screen_text(), "marks")


@pytest.mark.parametrize("where", ["behind", "inside"])
async def test_what_is_typed_while_a_message_is_counted(tmp_path: Path, where: str) -> None:
    """Behind it, it is the next message, and stays; a message that is changed itself is not sent, and that is said."""
    gate = threading.Event()

    def count(_text: str) -> int:
        gate.wait(60)
        return 1

    window = Window(tmp_path, reply=lambda _: "ok", n_ctx=1024)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model is there")
        window.composer._count = count  # without showing a count, which would wait here
        window.composer.insert("x" * 860)
        await pilot.press("enter")
        if where == "inside":
            window.composer.move_cursor((0, 0))
        window.composer.insert("more")
        gate.set()
        if where == "inside":
            await hears(pilot, window, "Not sent")
            assert window.composer.draft == "more" + "x" * 860
            assert window.manager.sessions() == []
        else:
            await until(pilot, lambda: len(window.manager.sessions()) == 1, "the message is sent")
            (row,) = window.manager.sessions()
            await until(pilot, lambda: row.session.id not in window.app.stage.talk.live, "it is answered")
            assert window.manager.messages(row.session.id)[0].text == "x" * 860
            assert window.composer.draft == "more"


async def test_an_answer_that_fills_the_context_goes_on_in_a_larger_one(tmp_path: Path) -> None:
    """Asked to go on without room, the same ways are offered; there is nothing to sum up, so that is not one."""
    window = Window(tmp_path, reply=lambda _: "x" * 3000, n_ctx=1024, n_ctx_max=8192)
    session_id = await window.ask("first")
    window.app.stage.current = session_id
    n_before = len(window.manager.messages(session_id)[-1].text)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history is there")
        window.transcript.focus()
        await pilot.press("alt+up", "c")
        await sees(pilot, window, "Larger context")
        assert "with a summary" not in window.screen_text()
        await pilot.press("enter")
        await until(pilot, lambda: len(window.manager.messages(session_id)[-1].text) > n_before, "the answer went on")
        assert len(window.manager.messages(session_id)) == 2


async def test_a_second_enter_answers_no_dialog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is pressed before anybody could read the dialog is not an answer to it."""
    monkeypatch.setattr(dialogs, "GUARD_S", 3600)
    window = Window(tmp_path, reply=lambda _: "ok", n_ctx=1024)
    await _two_turns(window)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history is there")
        window.composer.insert(LONG)
        await pilot.press("enter")
        await sees(pilot, window, "The context is full")
        await pilot.press("enter", "enter")
        assert isinstance(window.app.screen, WaysScreen)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(window.app.screen, WaysScreen), "Escape always closes it")


async def _edit(pilot: Pilot[None], window: Window, nth: int, text: str) -> None:
    """Edit a question, by its number from the end: the box has this text, and it was sent."""
    window.transcript.focus()
    await pilot.press(*["alt+up"] * (2 * nth), "e")
    await until(pilot, lambda: window.app.stage.editing.question_id is not None, "the question is in the box")
    window.composer.clear_draft()
    window.composer.insert(text)
    await pilot.press("enter")


async def test_an_edit_that_is_too_long_is_offered_a_larger_context(tmp_path: Path) -> None:
    """The ways of a message are those of an edit, but a summary would hold what the edit leaves behind."""
    window = Window(tmp_path, reply=lambda _: "ok", n_ctx=1024, n_ctx_max=8192)
    session_id = await _two_turns(window)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history is there")
        await _edit(pilot, window, 1, "y" * 800)
        await sees(pilot, window, "Larger context (2,048 tokens")
        assert "with a summary" not in window.screen_text()
        await pilot.press("enter")
        await until(pilot, lambda: window.manager.messages(session_id)[-2].text == "y" * 800, "it is stored")
        await until(pilot, lambda: window.manager.messages(session_id)[-1].text == "ok", "it is answered")
        assert len(window.manager.messages(session_id)) == 4
        assert window.app.stage.editing.question_id is None


async def test_an_edit_stays_in_the_box_when_the_dialog_is_cancelled(tmp_path: Path) -> None:
    """The branch that is shown is the old one, and the text is still an edit."""
    window = Window(tmp_path, reply=lambda _: "ok", n_ctx=1024, n_ctx_max=8192)
    session_id = await _two_turns(window)
    before = window.manager.messages(session_id)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history is there")
        await _edit(pilot, window, 1, "y" * 800)
        await sees(pilot, window, "The edited text stays in the box")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(window.app.screen, WaysScreen), "the dialog is closed")
        assert window.composer.draft == "y" * 800
        assert window.app.stage.editing.question_id == before[-2].id
        assert window.manager.messages(session_id) == before


async def test_an_edit_counts_only_what_comes_before_it(tmp_path: Path) -> None:
    """What would not fit behind the whole conversation fits in the place of its first question."""
    window = Window(tmp_path, reply=lambda _: "ok", n_ctx=1024)
    session_id = await _two_turns(window)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history is there")
        await _edit(pilot, window, 2, LONG)
        await until(pilot, lambda: window.manager.messages(session_id)[0].text == LONG, "it is stored")
        await until(pilot, lambda: len(window.manager.messages(session_id)) == 2, "it is answered")


async def test_turns_before_an_edit_can_be_left_out(tmp_path: Path) -> None:
    """The copy ends before the edited question and has the text in its box; the old one is as it was."""
    window = Window(tmp_path, reply=lambda _: "ok", n_ctx=1024)
    session_id = await _two_turns(window)
    before = window.manager.messages(session_id)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history is there")
        window.composer.insert("a draft that waits")
        await _edit(pilot, window, 1, "y" * 800)
        await sees(pilot, window, "Remove turns")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(window.app.screen, TurnsScreen), "the list")
        assert "second" not in window.screen_text()
        await pilot.press("space", "enter")
        await until(pilot, lambda: window.app.stage.current != session_id, "the copy is shown")
        assert window.manager.messages(window.app.stage.current) == []
        assert window.composer.draft == "y" * 800
        assert window.app.stage.editing.question_id is None
        assert window.manager.messages(session_id) == before
        await window.app.stage.show(session_id)
        assert window.composer.draft == "a draft that waits"
