"""The main job in a real terminal, on the real model: chat, quit, come back, and go on at once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.terminal.terminal import Terminal, options

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="these tests type into tmux, which is missing")


@pytest.mark.timeout(300)
def test_a_conversation_comes_back_from_disk(tmp_path: Path) -> None:
    """After quitting and choosing the session in the sidebar, its tokens are restored, not computed."""
    with Terminal(*options(tmp_path)) as terminal:
        terminal.wait_for("Message")
        terminal.type("Name three rivers in Korea. 한강 말고도 알려 줘.")
        terminal.press("Enter")
        terminal.wait_for(r"decode")
        terminal.press("Escape")
        terminal.wait_for(r"written .*[1-9]")
        terminal.press("C-q")
        terminal.wait_for("ENDED 0")
    with Terminal(*options(tmp_path)) as terminal:
        terminal.wait_for("Name three rivers")
        terminal.press("BTab", "BTab")
        terminal.wait_for("To trash")  # the list has the focus
        terminal.press("Down", "Enter")
        restored = terminal.wait_for(r"restored ([1-9][\d,]*)")
        n_restored = int(restored[1].replace(",", ""))
        assert n_restored > 20
        terminal.type("And in Japan?")
        terminal.press("Enter")
        terminal.wait_for(r"resident [1-9]")
        prefilled = terminal.wait_for(r"prefilled ([1-9][\d,]*)")
        assert int(prefilled[1].replace(",", "")) < 30
        terminal.press("C-q")
        terminal.wait_for("ENDED 0")
