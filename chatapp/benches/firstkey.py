"""How soon the window takes a key, in a pseudo-terminal; POSIX only."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import tempfile
import time
from pathlib import Path

from chatapp.config import Settings
from chatapp.firststart import note_welcome
from models.errors import EngineError

_WORD = b"xylophone"
_READY = b"Enter sends"
_DEADLINE_S = 60.0
_NEVER = "The window never took a key: start `chatapp` by hand to see why."
# `env` sets them, so that the surroundings of this process stay what they are.
_ENV = ("env", "TERM=xterm-256color", "COLUMNS=120", "LINES=36", "CHATAPP_LANGUAGE=en", "CHATAPP_PLAIN=off")


def first_key_s(settings: Settings) -> float:
    """Return the seconds from starting the program until a typed word is on the screen, while the model loads.

    It is typed as soon as the box is drawn. Raises `EngineError` if that never happens.
    """
    with tempfile.TemporaryDirectory() as folder:
        note_welcome(Path(folder) / "window", "window")  # it would take the keys
        flags = ["--data-dir", folder, "--cache-dir", folder, "--model", str(settings.model)]
        begun = time.monotonic()
        pid, terminal = pty.fork()
        if pid == 0:
            os.execvp(_ENV[0], [*_ENV, sys.executable, "-m", "chatapp", *flags])  # noqa: S606 - no shell is wanted
        try:
            _type(terminal, begun)
            return time.monotonic() - begun
        finally:
            os.kill(pid, signal.SIGTERM)
            _drain(terminal)
            os.waitpid(pid, 0)


def _type(terminal: int, begun: float) -> None:
    seen, typed = b"", False
    while not (typed and _WORD in seen):
        if time.monotonic() - begun > _DEADLINE_S:
            raise EngineError(_NEVER)
        if select.select([terminal], [], [], 0.01)[0]:
            said = _read(terminal)
            if not said:
                raise EngineError(_NEVER)
            seen += said
        if not typed and _READY in seen:
            os.write(terminal, _WORD)
            typed, seen = True, b""


def _drain(terminal: int) -> None:
    """Read what it says until it has ended."""
    while _read(terminal):
        pass


def _read(terminal: int) -> bytes:
    """What it says; nothing once it has ended, of which Linux makes an error."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""
