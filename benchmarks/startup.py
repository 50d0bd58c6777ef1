"""How soon the program answers: `--help`, and the window taking a key, measured in a real pseudo-terminal.

`python benchmarks/startup.py [--repeats 5]` prints one JSON object; seconds, medians. The window's figure is
the time from starting the process until a typed word is on the screen, while the model still loads.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from chatapp.firststart import note_welcome

_WORD = b"xylophone"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    _help(), _window()  # the first of each fills the page cache
    figures = {
        "help_s": statistics.median(_help() for _ in range(repeats)),
        "first_key_s": statistics.median(_window() for _ in range(repeats)),
        "bare_python_s": statistics.median(_run([sys.executable, "-c", "pass"]) for _ in range(repeats)),
    }
    print(json.dumps(figures))


def _help() -> float:
    return _run([sys.executable, "-m", "chatapp", "--help"])


def _run(command: list[str]) -> float:
    begun = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - begun


def _window() -> float:
    """Type into the window as soon as it has drawn anything, until the word is echoed."""
    with tempfile.TemporaryDirectory() as folder:
        note_welcome(Path(folder) / "window", "window")  # it would take the keys
        begun = time.monotonic()
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.update(TERM="xterm-256color", COLUMNS="120", LINES="36")
            flags = ["--data-dir", folder, "--cache-dir", folder]
            os.execv(sys.executable, [sys.executable, "-m", "chatapp", *flags])  # noqa: S606 - no shell is wanted
        seen, typed = b"", False
        try:
            while _WORD not in seen:
                assert time.monotonic() - begun < 30, "the window never took a key"
                if select.select([terminal], [], [], 0.01)[0]:
                    seen += os.read(terminal, 1 << 16)
                if not typed and b"Enter sends" in seen:
                    os.write(terminal, _WORD)
                    typed, seen = True, b""
            return time.monotonic() - begun
        finally:
            os.write(terminal, b"\x11")
            _drain(terminal, pid)


def _drain(terminal: int, pid: int) -> None:
    while True:
        try:
            if not os.read(terminal, 1 << 16):
                break
        except OSError:  # the other side is closed
            break
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
