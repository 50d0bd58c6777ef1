"""A real terminal for tests: the program in a tmux pane, keys typed into it, its screen read as text."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE_S = 90.0
_POLL_S = 0.1


class Terminal:
    """One tmux server with one pane, ended with the block it is used in."""

    def __init__(self, *arguments: str, width: int = 130, height: int = 40, policy: str = "off") -> None:
        """Start `chatapp ARGUMENTS` under a task policy; the pane stays after the program ends."""
        self._socket = f"chatapp-test-{uuid.uuid4().hex[:8]}"
        program = shlex.join([sys.executable, "-m", "chatapp", *arguments])
        # The test runner's idea of a terminal size must not reach the program.
        command = f"unset COLUMNS LINES; CHATAPP_POLICY={policy} {program}; echo ENDED $?; exec cat"
        size = ["-x", str(width), "-y", str(height)]
        self._tmux("-f", os.devnull, "new-session", "-d", *size, command)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tmux("kill-server")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._socket, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def type(self, text: str) -> None:
        """Type characters as they are."""
        self._tmux("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names, such as Enter, Escape, C-q."""
        self._tmux("send-keys", *keys)

    def screen(self) -> str:
        """What the terminal shows."""
        return self._tmux("capture-pane", "-p")

    def resize(self, width: int, height: int) -> None:
        """Make the terminal smaller or larger."""
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the screen matches; fails with the screen after `PATIENCE_S`."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            screen = self.screen()
            if found := re.search(pattern, screen):
                return found
            assert time.monotonic() < deadline, f"never saw {pattern!r}; the screen is\n{screen}"
            time.sleep(_POLL_S)


def options(folder: Path) -> list[str]:
    """Flags that keep everything in `folder`, with settings that need no measuring."""
    folders = ["--data-dir", str(folder / "data"), "--cache-dir", str(folder / "cache")]
    return [*folders, "--threads", "1", "--flash-attention", "off", "--ctx", "2048"]
