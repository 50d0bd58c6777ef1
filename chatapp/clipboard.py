"""Copies text out of the program: through the terminal (OSC 52), by a tool of the system, else into a file.

A terminal never says whether it took an OSC 52 sequence, so that is decided beforehand, from the environment.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from chatapp.texts import tr, tr_later
from models.cachefile import write_atomically

TOOL_WAIT_S = 2.0
"""How long a tool may take, in seconds; one whose display does not answer would take forever."""
FILE = "copied.txt"

Run = Callable[[Sequence[str], bytes | None], bytes | None]
"""Runs a command with this input and returns what it wrote; None if it is not there, failed or took too long."""
Way = Literal["terminal", "tool", "file"]


@dataclass(frozen=True, slots=True)
class Terminal:
    """What the environment tells of the terminal and the system around it; the default is a terminal without flaws."""

    kind: str = "xterm-256color"
    program: str = ""
    in_tmux: bool = False
    in_screen: bool = False
    has_wayland: bool = False
    has_x11: bool = False
    is_remote: bool = False
    system: str = "linux"
    """As `sys.platform` names it; `wsl` is Linux below Windows."""
    background: Literal["", "dark", "light"] = ""
    """Empty where the terminal does not tell."""

    @classmethod
    def read(cls, environ: Mapping[str, str], system: str) -> Terminal:
        """Return what these variables tell."""
        colors = environ.get("COLORFGBG", "").split(";")
        number = int(colors[-1]) if len(colors) > 1 and colors[-1].isdecimal() else None
        return cls(
            kind=environ.get("TERM", "") or ("windows" if system == "win32" else "dumb"),
            program=environ.get("TERM_PROGRAM", ""),
            in_tmux=bool(environ.get("TMUX")),
            in_screen=bool(environ.get("STY")),
            has_wayland=bool(environ.get("WAYLAND_DISPLAY")),
            has_x11=bool(environ.get("DISPLAY")),
            is_remote=bool(environ.get("SSH_CONNECTION") or environ.get("SSH_TTY")),
            system="wsl" if environ.get("WSL_DISTRO_NAME") else system,
            # Of the 16 colours 7 and 9 to 15 are light; rxvt, Konsole and others write the background last.
            background="" if number is None or number > 15 else "light" if number == 7 or number > 8 else "dark",
        )


@dataclass(frozen=True, slots=True)
class Copied:
    """Which way a text went, and the sentence that says so, which `tr` may be given."""

    way: Way
    sentence: str


THROUGH_TERMINAL = Copied("terminal", tr_later("Copied through the terminal (OSC 52)."))


def run_tool(command: Sequence[str], data: bytes | None) -> bytes | None:
    """Run a command that is on the path; see `Run`."""
    if (program := shutil.which(command[0])) is None:
        return None
    try:
        # Not a pipe where something is handed over: wl-copy and xclip stay behind, and would hold it open.
        out = subprocess.PIPE if data is None else subprocess.DEVNULL
        done = subprocess.run(
            [program, *command[1:]], input=data, stdout=out, stderr=subprocess.DEVNULL, timeout=TOOL_WAIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout or b"") if done.returncode == 0 else None


@dataclass(frozen=True, slots=True)
class Clipboard:
    """The ways out of this terminal; `folder` holds the file of the last one."""

    terminal: Terminal = field(default_factory=Terminal)
    folder: Path = Path()
    run: Run = run_tool

    def takes_osc52(self) -> bool:
        """True if the terminal is expected to take the sequence; asks tmux where that stands between."""
        terminal = self.terminal
        if terminal.in_tmux:
            # "external", tmux's default, sets the clipboard for tmux itself but not for a program inside it.
            return (self.run(("tmux", "show", "-gv", "set-clipboard"), None) or b"").strip() == b"on"
        if terminal.in_screen or terminal.program == "Apple_Terminal":
            return False
        return terminal.kind not in ("linux", "dumb") and not terminal.kind.startswith(("vt", "screen"))

    def copy(self, text: str) -> Copied:
        """Copy a text by a tool, else into the file. Blocks for some seconds at most; never raises."""
        for command in self._tools():
            data = text.encode("utf-16") if command[0] == "clip.exe" else text.encode()
            if self.run(command, data) is not None:
                return Copied("tool", tr("Copied with {tool}.").format(tool=command[0]))
        path = self.folder / FILE
        # Not what an earlier copy left: a failed write is told by the missing file.
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            write_atomically(path, text.encode())
            if path.is_file():
                written = tr("Your terminal does not take copies: the text is written to {path}.")
                return Copied("file", written.format(path=path))
        lost = tr("Nothing is copied: your terminal takes no copies, and {path} cannot be written.")
        return Copied("file", lost.format(path=path))

    def _tools(self) -> list[tuple[str, ...]]:
        """Commands that may set the clipboard of the screen that the user looks at."""
        terminal = self.terminal
        found: list[tuple[str, ...]] = []
        if terminal.in_tmux:
            found += [("tmux", "load-buffer", "-w", "-")] if self._tmux_passes_on() else []
        if terminal.has_wayland:
            found.append(("wl-copy",))
        if terminal.has_x11:
            found += [("xclip", "-selection", "clipboard"), ("xsel", "--input", "--clipboard")]
        if terminal.system == "darwin" and not terminal.is_remote:
            found.append(("pbcopy",))
        if terminal.system in ("wsl", "win32") and not terminal.is_remote:
            found.append(("clip.exe",))
        return found

    def _tmux_passes_on(self) -> bool:
        return (self.run(("tmux", "show", "-gv", "set-clipboard"), None) or b"").strip() == b"external"
