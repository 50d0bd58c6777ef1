"""A pseudo terminal of our own: every byte the program writes, a screen made of them, signals and a hangup."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import pyte

from tests.terminal.terminal import PATIENCE_S

_BASE = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


class RawTerminal:
    """Runs `chatapp ARGUMENTS` with the given environment and nothing else of the tests'; ended with its block."""

    def __init__(
        self, *arguments: str, width: int = 100, height: int = 30, env: Mapping[str, str] | None = None
    ) -> None:
        given = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "CHATAPP_CONFIG": os.devnull, "CHATAPP_POLICY": "off"}
        environment = {name: value for name, value in (_BASE | given | dict(env or {})).items() if value}
        self.sent = b""
        """All bytes of the program so far."""
        self._screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self._screen)
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, [sys.executable, "-m", "chatapp", *arguments], environment)  # noqa: S606
        self._set_size(width, height)
        self._code: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if self._master >= 0:
            os.close(self._master)

    def _set_size(self, width: int, height: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def resize(self, width: int, height: int) -> None:
        """Make the terminal smaller or larger; the program gets SIGWINCH."""
        self._screen.resize(height, width)
        self._set_size(width, height)

    def type(self, text: str) -> None:
        """Send what a keyboard would."""
        os.write(self._master, text.encode())

    def paste(self, text: str) -> None:
        """Send what a terminal sends for a paste."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program."""
        os.kill(self.pid, number)

    def hang_up(self) -> None:
        """Close the terminal, as somebody who closes its window does."""
        os.close(self._master)
        self._master = -1

    def read(self, wait_s: float = 0.05) -> bool:
        """Take what the program has written; False at its end."""
        if not select.select([self._master], [], [], wait_s)[0]:
            return True
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # EIO: the other side is closed
            return False
        self.sent += data
        self._stream.feed(data)
        return bool(data)

    def screen(self) -> str:
        """What a terminal would show."""
        return "\n".join(self._screen.display)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the screen matches; fails with the screen after `PATIENCE_S`."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            is_open = self.read()
            if found := re.search(pattern, self.screen()):
                return found
            assert is_open, f"it ended before {pattern!r}; the screen is\n{self.screen()}"
            assert time.monotonic() < deadline, f"never saw {pattern!r}; the screen is\n{self.screen()}"

    def wait_for_state(self, letter: str) -> None:
        """Wait until the program is in a state as /proc has it: T stopped, S asleep."""
        deadline = time.monotonic() + PATIENCE_S
        while _state(self.pid) not in letter:
            self.read()
            assert time.monotonic() < deadline, f"never was in {letter}, but in {_state(self.pid)}"

    def exit_code(self) -> int:
        """Wait for the end; return the exit code, negative for a signal."""
        deadline = time.monotonic() + PATIENCE_S
        while self._code is None:
            if self._master >= 0:
                self.read()
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self._code = os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, "it does not end"
        while self._master >= 0 and self.read(0) and select.select([self._master], [], [], 0)[0]:
            pass
        return self._code


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0]
