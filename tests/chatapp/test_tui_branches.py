from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList

from chatapp.tui.branchtree import TreeScreen, tree_rows
from models.engine import Sampling
from sessions.conversation import Message
from tests.chatapp.tui_window import Window, hears, sees, until

WIDE = (120, 36)


async def opened(folder: Path, *questions: str, reply: str | None = None) -> Window:
    """A window that will show a conversation with these turns."""
    window = Window(folder, reply=(lambda _: reply) if reply else None)
    session_id = None
    for question in questions:
        session_id = await window.ask(question, session_id)
    window.app.stage.current = session_id or ""
    return window


async def ready(pilot: Pilot[None], window: Window) -> None:
    """Wait until the conversation is painted and resident."""
    await until(pilot, lambda: window.transcript.n_mounted > 0, "the messages")
    await until(pilot, lambda: window.app.stage.readings.activity == "idle", "it is resident")
    await until(pilot, lambda: window.app.stage.readings.context_tokens > 0, "it is counted")


def texts(window: Window) -> list[str]:
    """The branch that is shown, from the store."""
    return [message.text for message in window.manager.messages(window.app.stage.current)]


def message(number: int, parent: int | None, role: str = "user", text: str = "") -> Message:
    """A message of a tree."""
    return Message(number, "s", role, text or f"m{number}", "complete", None, None, 0.0, parent)  # type: ignore[arg-type]


async def test_a_question_is_edited(tmp_path: Path) -> None:
    """E brings the text into the box; Enter makes another version, and the arrows show either; both are kept."""
    window = await opened(tmp_path, "first", "second")
    async with window.app.run_test(size=WIDE) as pilot:
        await ready(pilot, window)
        await pilot.press(*"waiting", "alt+up", *"[[[", "e")
        await sees(pilot, window, "Escape gives up")
        assert window.composer.draft == "first"
        await pilot.press("end", *" anew", "enter")
        await sees(pilot, window, "You said: first anew")
        await until(pilot, lambda: window.manager.running is None, "the answer is complete")
        assert texts(window)[0] == "first anew"
        assert len(texts(window)) == 2
        assert window.composer.draft == "waiting"
        assert not window.app.stage.editing.hint.display
        await sees(pilot, window, "2/2")
        await pilot.press("alt+up", "left_square_bracket", "left")
        await sees(pilot, window, "You said: second")
        assert texts(window)[0] == "first"
        await sees(pilot, window, "1/2")
        await pilot.press("right")
        await until(pilot, lambda: texts(window)[0] == "first anew", "the other version")


async def test_editing_can_be_given_up(tmp_path: Path) -> None:
    """Escape, and another conversation, put the draft back that was in the box."""
    window = await opened(tmp_path, "first")
    async with window.app.run_test(size=WIDE) as pilot:
        await ready(pilot, window)
        await pilot.press(*"waiting", "alt+up", "left_square_bracket", "e", "x", "escape")
        await until(pilot, lambda: window.composer.draft == "waiting", "the draft is back")
        assert not window.app.stage.editing.hint.display
        session_id = window.app.stage.current
        await pilot.press("alt+up", "e")
        assert window.composer.draft == "first"
        await pilot.press("ctrl+n")
        await until(pilot, lambda: window.app.stage.current == "", "a new one")
        await window.app.stage.show(session_id)
        assert window.composer.draft == "waiting"
        assert len(texts(window)) == 2


async def test_an_answer_is_given_once_more(tmp_path: Path) -> None:
    """R on an answer keeps both; what was said behind the first stays on its branch."""
    window = await opened(tmp_path, "first", "second")
    async with window.app.run_test(size=WIDE) as pilot:
        await ready(pilot, window)
        await pilot.press("alt+up", *"[[", "r")
        await until(pilot, lambda: len(texts(window)) == 2, "the second turn is on another branch")
        await until(pilot, lambda: window.manager.running is None, "the answer is complete")
        await sees(pilot, window, "2/2")
        assert "You said: second" not in window.screen_text()
        await pilot.press("alt+up", "left")
        await sees(pilot, window, "You said: second")


async def test_a_stopped_answer_goes_on(tmp_path: Path) -> None:
    """C lets it go on: its text never leaves the screen, only new tokens are counted, and the store has all of it."""
    window = await opened(tmp_path, reply="word " * 40)
    window.engine.hang_at = 20
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press(*"go", "enter")
        await sees(pilot, window, "word word word word")
        await pilot.press("escape")
        await sees(pilot, window, "Alt+Up, then C")
        await until(pilot, lambda: window.app.stage.readings.activity == "idle", "it is stopped")
        window.engine.hang_at = 5
        await pilot.press("alt+up", "c")
        readings = window.app.stage.readings
        await until(pilot, lambda: readings.n_output == 5, "five more tokens")
        assert "word word word word word" in window.screen_text()
        assert len([line for line in window.screen_text().splitlines() if "word word" in line]) == 1
        n_prompt = readings.reuse.total if readings.reuse else 0
        assert readings.context_tokens == n_prompt + 5
        window.engine.hang_at = None
        await pilot.press("escape")
        await until(pilot, lambda: window.manager.running is None, "it is stopped again")
        assert texts(window) == ["go", "word " * 5]
        await pilot.press("alt+up", "c")
        await until(pilot, lambda: texts(window) == ["go", "word " * 40], "the whole answer")
        await until(pilot, lambda: not window.app.stage.talk.live, "the window knows")
        assert "stopped by you" not in window.screen_text()
        assert "lets the answer go on" not in window.screen_text()


async def test_live_and_reopened_figures_agree(tmp_path: Path) -> None:
    """The context counts the same behind a turn as when the conversation is opened anew."""
    window = await opened(tmp_path, "first")
    async with window.app.run_test(size=WIDE) as pilot:
        await ready(pilot, window)
        await pilot.press(*"more", "enter")
        await until(pilot, lambda: len(texts(window)) == 4, "a second turn")
        await until(pilot, lambda: not window.app.stage.talk.live, "it is over")
        live = window.app.stage.readings.context_tokens
        session_id = window.app.stage.current
        stored = sum(len(one.run.ids) for one in window.manager.messages(session_id) if one.run)
        assert live == stored
        window.app.stage.talk.forget(session_id)
        await window.app.stage.show(session_id)
        await until(pilot, lambda: window.app.stage.readings.context_tokens == live, "the same")


async def test_a_fork_begins_with_what_was_said(tmp_path: Path) -> None:
    """F on a message makes a conversation of its own up to it, and shows that one."""
    window = await opened(tmp_path, "first", "second")
    origin = window.app.stage.current
    async with window.app.run_test(size=WIDE) as pilot:
        await ready(pilot, window)
        await pilot.press("alt+up", *"[[", "f")
        await until(pilot, lambda: window.app.stage.current != origin, "the fork is shown")
        assert texts(window) == [message.text for message in window.manager.messages(origin)[:2]]
        assert window.manager.session(window.app.stage.current).forked_from == origin


async def test_a_turn_is_taken_back(tmp_path: Path) -> None:
    """Ctrl+Z in the text shows one turn less and puts its question into the box; the tree has it still."""
    window = await opened(tmp_path, "first", "/second")
    async with window.app.run_test(size=WIDE) as pilot:
        await ready(pilot, window)
        window.transcript.focus()
        await pilot.press("ctrl+z")
        await until(pilot, lambda: window.composer.text == "//second", "the question is back, as it is written")
        assert len(texts(window)) == 2
        assert "You said: **/second" not in window.screen_text()
        await pilot.press("enter")
        await until(pilot, lambda: len(texts(window)) == 4, "it was sent again")
        assert texts(window)[2] == "/second"


async def test_copy_leaves_the_reasoning_out(tmp_path: Path) -> None:
    """Y copies the marked answer without its reasoning."""
    window = await opened(tmp_path, "first", reply="<think>\nhm\n</think>\n\nThe answer")
    async with window.app.run_test(size=WIDE) as pilot:
        await ready(pilot, window)
        await pilot.press("alt+up", "y")
        await hears(pilot, window, "Copied")
        assert window.app.clipboard == "The answer"


async def test_the_tree_shows_any_branch(tmp_path: Path) -> None:
    """T lists all branches, with the shown one marked; Enter shows another."""
    window = await opened(tmp_path, "first")
    session_id = window.app.stage.current
    async for _ in window.manager.regenerate(session_id, Sampling()):
        pass
    await window.ask("only here", session_id)
    async with window.app.run_test(size=WIDE) as pilot:
        await ready(pilot, window)
        await pilot.press("alt+up", "t")
        await sees(pilot, window, "● is shown")
        assert isinstance(window.app.screen, TreeScreen)
        options = window.app.screen.query_one(OptionList)
        assert options.option_count == 5
        options.highlighted = 1
        await pilot.press("enter")
        await until(pilot, lambda: len(texts(window)) == 2, "the first answer's branch")
        await until(pilot, lambda: "only here" not in window.screen_text(), "the other is out of sight")


def test_a_tree_is_indented_where_it_branches() -> None:
    """A line of turns is not set in; what stands behind a choice is, and each branch stays together."""
    messages = [
        message(1, None, "system"),
        message(2, 1),
        message(3, 2, "assistant"),
        message(4, 2, "assistant", "<think>\nx\n</think>\n\n\x1b[31mred"),
        message(5, 3),
        message(6, 4),
    ]
    rows = tree_rows(messages, {2, 4, 6})
    assert [(row.message_id, row.depth) for row in rows] == [(2, 0), (3, 1), (5, 1), (4, 1), (6, 1)]
    assert [row.message_id for row in rows if row.is_shown] == [2, 4, 6]
    assert rows[3].line == "␛[31mred"


async def test_no_verb_writes_while_an_answer_is_written(tmp_path: Path) -> None:
    """Editing, another answer and taking back are refused with a sentence; nothing is changed."""
    window = await opened(tmp_path, "first")
    async with window.app.run_test(size=WIDE) as pilot:
        await ready(pilot, window)
        window.engine.hang_at = 3
        await pilot.press(*"go", "enter")
        await until(pilot, lambda: window.app.stage.readings.n_output == 3, "it hangs")
        for keys in (("alt+up", "r"), ("left_square_bracket", "e"), ("ctrl+z",)):
            window.app.clear_notifications()
            await pilot.press(*keys)
            await hears(pilot, window, "Escape stops the answer")
        assert window.composer.draft == ""
        await pilot.press("escape")
        await until(pilot, lambda: window.manager.running is None, "Escape stops it all the same")
        assert len(texts(window)) == 4


async def test_letters_without_a_mark_go_to_the_box(tmp_path: Path) -> None:
    """The keys of the verbs are letters like all others until a message is marked, and after Escape again."""
    window = await opened(tmp_path, "first")
    async with window.app.run_test(size=WIDE) as pilot:
        await ready(pilot, window)
        window.transcript.focus()
        await pilot.press("e")
        assert window.composer.draft == "e"
        await pilot.press("alt+up", "escape")
        assert window.transcript.marked is None
        await pilot.press("r")
        assert window.composer.draft == "er"


async def test_a_taken_back_edit_restores_the_branch(tmp_path: Path) -> None:
    """An edited question that waited and was taken back is edited again; the branch stands as it was."""
    window = await opened(tmp_path, "first", "second")
    session_id = window.app.stage.current
    async with window.app.run_test(size=WIDE) as pilot:
        await ready(pilot, window)
        window.engine.hang_at = 2
        await pilot.press("ctrl+n", *"other", "enter")
        await until(pilot, lambda: window.app.stage.readings.n_output == 2, "another one runs")
        await window.app.stage.show(session_id)
        await pilot.press("alt+up", *"[[[", "e", "end", "x", "enter")
        await sees(pilot, window, "queued")
        assert "You said: second" not in window.screen_text()
        await pilot.press("escape")
        await sees(pilot, window, "You said: second")
        await until(pilot, lambda: window.composer.draft == "firstx", "it is edited again")
        assert window.app.stage.editing.question_id is not None
        await pilot.press("escape")
        assert window.composer.draft == ""


@pytest.mark.parametrize("size", [(100, 30), (80, 24), (60, 16)])
async def test_marks_fit_small_windows(tmp_path: Path, size: tuple[int, int]) -> None:
    """A marked message of a long conversation is on the screen, whatever its size; widgets stay bounded."""
    window = Window(tmp_path)
    session_id = window.manager.new().id
    for n in range(200):
        question = window.store.add_question(session_id, f"질문 {n} " + "한강 자전거 여행 " * 12, title="긴 제목 " * 30)
        window.store.add_answer(question, f"답 {n}", "complete", run=None)
    window.app.stage.current = session_id
    target = window.manager.messages(session_id)[101]
    async with window.app.run_test(size=size) as pilot:
        await sees(pilot, window, "답 199")
        await window.app.branching.show(target.id)
        await sees(pilot, window, "답 50")
        for _ in range(6):
            await pilot.press("left_square_bracket")
        await sees(pilot, window, "질문 48")
        assert len(list(window.app.query("*"))) < 500
        assert window.transcript.marked is not None
