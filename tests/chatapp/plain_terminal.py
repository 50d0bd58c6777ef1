"""A terminal that only prints, for tests: the program on a pty, lines typed into it, what it writes read as text."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]
CTRL_C, CTRL_D = "\x03", "\x04"
_MODES = re.compile(r"\x1b\[\?[0-9;]*[hl]")
"""What readline switches: bracketed paste, the keypad."""
_RULED = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
"""
"""The pty becomes the terminal that rules the program."""
_CHATAPP = """
sys.argv[0] = "chatapp"
from chatapp.__main__ import main
main()
"""


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return an environment in which all that the program writes goes below a folder."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("CHATAPP_", "LC_", "TERM"))}
    return {
        **kept,
        "CHATAPP_DATA_DIR": str(folder / "data"),
        "CHATAPP_CACHE_DIR": str(folder / "cache"),
        "CHATAPP_CONFIG": os.devnull,
        "CHATAPP_ENGINE": "fake",
        "CHATAPP_POLICY": "off",
        "INPUTRC": os.devnull,
        "LANG": "C.UTF-8",
        "TERM": "xterm",
        **variables,
    }


class PlainTerminal:
    """`chatapp ARGUMENTS` on a pty of its own, ended with the block it is used in."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        program: str = _CHATAPP,
        stderr: IO[str] | None = None,
        **variables: str,
    ) -> None:
        """Start the program; it gets Ctrl+C and a hang-up as from a terminal. `stderr` None: that is the terminal.

        `program` is the Python text that is run.
        """
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _RULED + program, *arguments],
            cwd=ROOT,
            env=environment(folder, **variables),
            stdin=slave,
            stdout=slave,
            stderr=stderr or slave,
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""
        self._raw = b""
        self._seen = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hang_up()
        self.process.kill()
        self.process.wait()

    def type(self, text: str) -> None:
        """Type characters as they are."""
        os.write(self._master, text.encode())

    def enter(self, line: str) -> None:
        """Type a line at the prompt, once that is there."""
        self.wait_for(r"(?:^|\n|\r)> $")
        self.type(f"{line}\r")

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until what was written behind the last match matches, and return that."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := re.search(pattern, self.text[self._seen :])):
            assert time.monotonic() < deadline, f"never saw {pattern!r} in {self.text[self._seen :]!r}"
            assert self._read(deadline), f"ended without {pattern!r}: {self.text[self._seen :]!r}"
        self._seen += found.end()
        return found

    def ended(self) -> int:
        """Wait for the end of the program and return its exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(deadline):
            assert time.monotonic() < deadline, f"does not end: {self.text!r}"
        return self.process.wait(PATIENCE_S)

    def hang_up(self) -> None:
        """Close the terminal."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def _read(self, deadline: float) -> bool:
        """Take in what comes next; False at the end."""
        if not select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return True
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # Linux says so when nobody has the other end
            return False
        self._raw += data
        self.text = _MODES.sub("", self._raw.decode("utf-8", "replace")).replace("\r\n", "\n")
        return bool(data)
