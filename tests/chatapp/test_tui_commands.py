from pathlib import Path

import pytest
from textual.widgets import TextArea

from chatapp.tui.commands import VERBS
from chatapp.tui.keymap import Keymap
from chatapp.tui.screens import help_text
from tests.chatapp.tui_window import Window, hears, sees, until

SIZE = (100, 30)
PAGE = (Path(__file__).parents[2] / "docs" / "window.md").read_text(encoding="utf-8")


def test_the_help_and_the_manual_have_every_verb() -> None:
    """What can be typed is listed in the window and in docs/window.md."""
    text = " ".join(help_text(Keymap(), 400).plain.split())
    assert [verb.name for verb in VERBS if verb.usage not in text or verb.sentence not in text] == []
    assert [verb.usage for verb in VERBS if f"| `{verb.usage}` |" not in PAGE] == []


async def test_a_slash_lists_commands_and_tab_completes(tmp_path: Path) -> None:
    """What fits is listed above the box; a completed command that takes nothing is done by Enter."""
    window = Window(tmp_path)
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        await pilot.press("slash")
        await sees(pilot, window, "/attach FILE")
        await pilot.press("d", "o")
        assert "/attach FILE" not in window.screen_text()
        await pilot.press("tab")
        assert window.composer.text == "/done"
        await pilot.press("enter")
        await sees(pilot, window, "✓ done")
        assert window.composer.text == ""
        assert len(window.manager.messages(session_id)) == 2


async def test_escape_hides_the_list_and_sends_nothing(tmp_path: Path) -> None:
    """The word stays as it is typed, and the list stays away for it."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press("slash", "n")
        await until(pilot, lambda: window.app.desk.completing.is_shown, "the list")
        await pilot.press("escape", "e")
        await until(pilot, lambda: not window.app.desk.completing.is_shown, "no list")
        assert window.composer.text == "/ne"


async def test_arguments_are_passed_and_completed(tmp_path: Path) -> None:
    """What stands behind the name is what the verb works with; values are offered."""
    window = Window(tmp_path)
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        for typed in ("/rename 새 제목", "/task another task", "/tag work 한글"):
            window.composer.insert(typed)
            await pilot.press("enter")
        session = window.manager.session(session_id)
        assert (session.title, session.task, session.tags) == ("새 제목", "another task", ("work", "한글"))
        window.composer.insert("/sampling cr")
        await until(pilot, lambda: window.app.desk.completing.is_shown, "the values")
        await pilot.press("tab", "enter")
        await hears(pilot, window, "'creative'")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("/nonsense", "There is no command /nonsense"),
        ("/ new", "There is no command /"),
        ("/new x", "/new takes nothing behind it"),
        ("/task", "/task is not possible here and now"),
        ("/sampling warm", "/sampling takes one of"),
        ("/attach", "/attach FILE"),
    ],
)
async def test_what_cannot_be_done_is_said_and_not_sent(tmp_path: Path, typed: str, said: str) -> None:
    """The text stays in the box."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        window.composer.insert(typed)
        await pilot.press("escape", "enter")
        await hears(pilot, window, said)
        assert window.composer.text == typed
        assert window.manager.sessions() == []


async def test_two_slashes_send_one(tmp_path: Path) -> None:
    """A message may begin with a slash; taken back, it stands in the box so that it means the same."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        window.composer.insert("//etc/hosts?")
        await pilot.press("enter")
        await sees(pilot, window, "You said: /etc/hosts?")
        await until(pilot, lambda: not window.app.stage.talk.live, "the end of the answer")
        await window.app.branching.do("undo")
        assert window.composer.text == "//etc/hosts?"


async def test_a_pasted_text_with_a_slash_is_no_command(tmp_path: Path) -> None:
    """Only what is typed can be one."""
    window = Window(tmp_path, reply=lambda _: "ok")
    async with window.app.run_test(size=SIZE) as pilot:
        window.composer._insert("/var/log " * 2000)
        await pilot.press("enter")
        await until(pilot, lambda: len(window.engine.prompts) == 1, "it is sent")


async def test_the_palette_has_the_verbs(tmp_path: Path) -> None:
    """One registry feeds it too; a verb that needs an argument is begun in the box."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        found = {one.title: one for one in window.app.get_system_commands(window.app.screen)}
        assert "Task line" not in found  # there is no conversation yet
        found["Attach a file"].callback()
        await pilot.pause()
        assert window.composer.text == "/attach "


async def test_a_list_for_another_word_takes_no_enter(tmp_path: Path) -> None:
    """Typed faster than the list follows, a command is what was typed, not what was offered for its first letter."""
    window = Window(tmp_path, reply=lambda _: "ok")
    key = await window.ask("hello")
    window.app.stage.current = key
    async with window.app.run_test(size=(100, 30)) as pilot:
        await pilot.press("slash")
        completing = window.composer.completing
        assert completing is not None
        await until(pilot, lambda: completing.is_shown, "the list is there")
        with window.app.prevent(TextArea.Changed, TextArea.SelectionChanged):
            window.composer.insert("rename quite another title")
            assert not completing.takes("enter")
        await pilot.press("enter")
        await until(pilot, lambda: window.manager.session(key).title == "quite another title", "it was done")
