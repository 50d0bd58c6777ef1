from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.app import App, SystemCommand
from textual.command import CommandPalette
from textual.widgets import Input

from chatapp import texts
from chatapp.tui.palette import TEXTUALS, translated
from tests.chatapp.tui_window import Window


@pytest.fixture(autouse=True)
def _english_again() -> Iterator[None]:
    yield
    texts.use("en")


async def test_every_command_of_textual_can_be_translated() -> None:
    """What Textual offers by itself is marked, title and sentence; a new Textual with another one fails here."""
    app: App[None] = App()
    async with app.run_test():
        found = list(app.get_system_commands(app.screen))
    assert found
    assert [text for one in found for text in (one.title, one.help) if text not in TEXTUALS] == []


def test_commands_of_textual_are_translated() -> None:
    """Title and sentence are in the reader's language, what is done stays."""
    texts.use("ko")
    command = SystemCommand("Theme", "Change the current theme", test_commands_of_textual_are_translated)
    (one,) = translated([command])
    assert (one.title, one.callback) == ("테마", command.callback)
    assert one.help not in ("", command.help)


async def test_the_palette_asks_in_the_readers_language(tmp_path: Path) -> None:
    """The key opens the palette with a question in Korean, and once only."""
    texts.use("ko")
    window = Window(tmp_path)
    async with window.app.run_test(size=(100, 30)) as pilot:
        await pilot.press("ctrl+p")
        window.app.action_command_palette()
        await pilot.pause()
        assert window.app.screen.query_one(Input).placeholder == "명령 검색…"
        assert sum(isinstance(screen, CommandPalette) for screen in window.app.screen_stack) == 1
