"""The launcher in the desktop's menu: an entry and an icon by the rules of freedesktop.org."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import platformdirs

ENTRY = Path("applications/chatapp.desktop")
ICON = Path("icons/hicolor/scalable/apps/chatapp.svg")
_MARK = "X-Chatapp-Launcher=true"
_UNQUOTED = re.compile(r"[A-Za-z0-9_./+,:@=-]+")

ADVICE = {
    "darwin": "macOS has no such launchers: make one in Shortcuts that runs `chatapp` or `chatapp web` in a shell.",
    "win32": "Windows has no such launchers: make a shortcut with the target `chatapp` or `chatapp web`.",
}


class NotOurs(Exception):
    """Another program's launcher has the name; the message is one sentence for the user."""


def advice(platform: str) -> str | None:
    """Return what to do on a system without such launchers, by its `sys.platform`."""
    return ADVICE.get(platform)


def has_web() -> bool:
    """True if the packages of `chatapp web` are installed."""
    return importlib.util.find_spec("textual_serve") is not None


def data_home() -> Path:
    """Return the user's data folder; XDG_DATA_HOME names it."""
    return platformdirs.user_data_path()


def program(interpreter: str) -> list[str]:
    """Return the command line that starts this program, wherever it is called from."""
    command = Path(interpreter).with_name("chatapp")
    return [str(command)] if command.is_file() else [interpreter, "-m", "chatapp"]


def install(folder: Path, command: Sequence[str], *, in_browser: bool) -> Path:
    """Write entry and icon below a data folder; return the entry. Raises `NotOurs` and `OSError`."""
    entry, icon = folder / ENTRY, folder / ICON
    _check(entry)
    for path, data in (
        (icon, files("chatapp.web").joinpath("chatapp.svg").read_bytes()),
        (entry, entry_text(command, in_browser=in_browser).encode()),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_bytes(data)
        temporary.replace(path)
    return entry


def remove(folder: Path) -> bool:
    """Delete entry and icon; False: there was none. Raises `NotOurs` and `OSError`."""
    _check(folder / ENTRY)
    is_there = (folder / ENTRY).exists()
    for path in (ENTRY, ICON):
        (folder / path).unlink(missing_ok=True)
    return is_there


def entry_text(command: Sequence[str], *, in_browser: bool) -> str:
    """Return the entry of a launcher for a command line.

    The server ends with its browser window, because no terminal is there to end it.
    """
    line = [*command, "web", "--end-with-window"] if in_browser else list(command)
    return "\n".join(
        [
            "[Desktop Entry]",
            "Type=Application",
            "Version=1.0",
            "Name=chatapp",
            "GenericName=Chat assistant",
            "GenericName[ko]=대화 도우미",
            "Comment=Chat with a model on this computer",
            "Comment[ko]=이 컴퓨터의 모델과 대화",
            f"TryExec={_escaped(command[0])}",
            f"Exec={' '.join(_quoted(word) for word in line)}",
            "Icon=chatapp",
            f"Terminal={'false' if in_browser else 'true'}",
            "Categories=Utility;",
            "Keywords=chat;assistant;llm;ai;",
            "StartupNotify=false",
            _MARK,
            "",
        ]
    )


def _quoted(word: str) -> str:
    """A word of `Exec`: quoted by its own rule, then escaped by that of all strings; % begins a field code."""
    word = word.replace("%", "%%")
    if not _UNQUOTED.fullmatch(word):
        word = '"' + re.sub(r'(["`$\\])', r"\\\1", word) + '"'
    return _escaped(word)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace("\t", r"\t").replace("\r", r"\r")


def _check(entry: Path) -> None:
    if entry.exists() and _MARK not in entry.read_text(encoding="utf-8", errors="replace").splitlines():
        raise NotOurs(f"{entry} is of another program: move it away first.")
