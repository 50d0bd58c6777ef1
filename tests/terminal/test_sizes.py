"""The window in a real terminal of three sizes: everything is reached by keys, and the text is whole after a change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.terminal.terminal import Terminal, options

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="these tests type into tmux, which is missing")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("width", "height"), [(60, 16), (80, 24), (200, 50)])
def test_the_window_at(tmp_path: Path, width: int, height: int) -> None:
    """Chat in Korean, mark, search, help and list; then a window too small to draw in, and back."""
    with Terminal(*options(tmp_path), "--engine", "fake:200", width=width, height=height) as terminal:
        terminal.wait_for("Message")
        terminal.type("안녕하세요, a question with 한글")
        terminal.press("Enter")
        terminal.wait_for("You said: 안녕하세요, a question with 한글")
        terminal.wait_for("ready")
        lines = terminal.screen().splitlines()
        assert max(map(len, lines)) <= width
        terminal.press("M-Up")
        terminal.wait_for("║")
        terminal.press("Escape", "F1")
        terminal.wait_for("Writing")
        terminal.press("Escape", "C-f")
        terminal.type("한글")
        terminal.wait_for("안녕하세요")
        terminal.press("Escape")
        terminal.resize(20, 5)
        terminal.wait_for("The window needs")
        terminal.resize(width, height)
        terminal.wait_for("You said: 안녕하세요, a question with 한글")
        terminal.press("C-q")
        terminal.wait_for("ENDED 0")
