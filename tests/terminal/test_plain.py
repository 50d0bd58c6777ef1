"""Plain mode on the real model: an answer, and the same conversation back from disk."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("a pty is POSIX's", allow_module_level=True)

from tests.chatapp.plain_terminal import CTRL_C, CTRL_D, PlainTerminal
from tests.terminal.terminal import options


@pytest.mark.timeout(300)
def test_a_conversation_in_plain_mode_comes_back_from_disk(tmp_path: Path) -> None:
    """An answer comes, Ctrl+D leaves, and `--session last` restores the tokens instead of reading them."""
    flags = [*options(tmp_path), "--engine", "llama", "--plain"]
    with PlainTerminal(tmp_path, *flags) as terminal:
        terminal.enter("Tell me a long story about three rivers in Korea.")
        terminal.wait_for(r"(?s)Korea\.\s+\w.{30}")
        terminal.type(CTRL_C)
        terminal.wait_for("> $")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    with PlainTerminal(tmp_path, *flags, "--session", "last") as terminal:
        assert int(terminal.wait_for(r"Restored (\d+) tokens from disk in")[1]) > 20
        terminal.enter("/stats on")
        terminal.enter("And in Japan?")
        # Not stopped: Ctrl+C has the terminal drop what nobody has read yet, at the end of an answer what it cost.
        assert int(terminal.wait_for(r"prefilled (\d+)")[1]) < 30
