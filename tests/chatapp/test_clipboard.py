"""Which way a copied text goes: the terminal, a tool of the system, or a file."""

import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chatapp.clipboard import Clipboard, Terminal, run_tool

XTERM = {"TERM": "xterm-256color"}


@dataclass
class Tools:
    """Stands for the commands of a system: those that are there, with what they write; remembers what they got."""

    there: Mapping[str, bytes] = field(default_factory=dict)
    got: list[tuple[str, bytes | None]] = field(default_factory=list)

    def run(self, command: Sequence[str], data: bytes | None) -> bytes | None:
        """Run nothing."""
        line = " ".join(command)
        if line in self.there:
            self.got.append((line, data))
        return self.there.get(line)


def clipboard(
    folder: Path, environ: Mapping[str, str], system: str = "linux", **there: bytes
) -> tuple[Clipboard, Tools]:
    """A clipboard in this environment; `there` are commands by name, with a blank for each underline."""
    tools = Tools({name.replace("__", "-").replace("_", " "): out for name, out in there.items()})
    return Clipboard(Terminal.read(environ, system), folder, tools.run), tools


@pytest.mark.parametrize(
    "environ",
    [XTERM, {"TERM": "xterm-kitty"}, {"TERM": "foot", "SSH_TTY": "/dev/pts/1"}, {**XTERM, "DISPLAY": ":0"}],
)
def test_most_terminals_take_osc_52(tmp_path: Path, environ: dict[str, str]) -> None:
    """It works over ssh too, where no tool of this machine could."""
    assert clipboard(tmp_path, environ)[0].takes_osc52()


@pytest.mark.parametrize(
    ("environ", "system"),
    [
        ({"TERM": "linux"}, "linux"),
        ({"TERM": "dumb"}, "linux"),
        ({}, "linux"),
        ({"TERM": "vt220"}, "linux"),
        ({**XTERM, "TERM_PROGRAM": "Apple_Terminal"}, "darwin"),
        ({"TERM": "screen-256color", "STY": "1234.pts-0"}, "linux"),
    ],
)
def test_some_terminals_are_known_not_to(tmp_path: Path, environ: dict[str, str], system: str) -> None:
    """There is no answer to the sequence, so the environment decides."""
    assert not clipboard(tmp_path, environ, system)[0].takes_osc52()


@pytest.mark.parametrize(("option", "takes"), [(b"on\n", True), (b"external\n", False), (b"off\n", False)])
def test_tmux_is_asked(tmp_path: Path, option: bytes, takes: bool) -> None:
    """What a program inside may do to the clipboard is an option of tmux."""
    found, _ = clipboard(tmp_path, {"TERM": "tmux-256color", "TMUX": "/tmp/x"}, tmux_show___gv_set__clipboard=option)
    found = Clipboard(found.terminal, tmp_path, lambda command, _: option if "show" in command else None)
    assert found.takes_osc52() == takes


def test_tmux_passes_on_what_it_copies_itself(tmp_path: Path) -> None:
    """With its default, `external`, tmux sets the clipboard of the terminal for its own buffers."""
    got: list[bytes | None] = []

    def run(command: Sequence[str], data: bytes | None) -> bytes | None:
        if "show" in command:
            return b"external\n"
        got.append(data)
        return b"" if command[:2] == ("tmux", "load-buffer") else None

    found = Clipboard(Terminal.read({"TERM": "tmux", "TMUX": "x"}, "linux"), tmp_path, run)
    assert found.copy("hi").sentence == "Copied with tmux."
    assert got == [b"hi"]


@pytest.mark.parametrize(
    ("environ", "system", "tool"),
    [
        ({"TERM": "linux", "WAYLAND_DISPLAY": "wayland-0"}, "linux", "wl-copy"),
        ({"TERM": "dumb", "DISPLAY": ":0"}, "linux", "xclip -selection clipboard"),
        ({"TERM": "dumb", "DISPLAY": ":0"}, "linux", "xsel --input --clipboard"),
        ({**XTERM, "TERM_PROGRAM": "Apple_Terminal"}, "darwin", "pbcopy"),
        ({"TERM": "dumb", "WSL_DISTRO_NAME": "Ubuntu"}, "linux", "clip.exe"),
    ],
)
def test_a_tool_of_the_system_is_the_next_way(tmp_path: Path, environ: dict[str, str], system: str, tool: str) -> None:
    """It is named, and gets the text in the encoding that it reads."""
    tools = Tools({tool: b""})
    copied = Clipboard(Terminal.read(environ, system), tmp_path, tools.run).copy("글")
    assert copied.sentence == f"Copied with {tool.split()[0]}."
    assert tools.got == [(tool, "글".encode("utf-16" if tool == "clip.exe" else "utf-8"))]
    assert not list(tmp_path.iterdir())


def test_tools_of_another_screen_are_left_alone(tmp_path: Path) -> None:
    """Over ssh the clipboard of this machine is nobody's; without a display there is none."""
    remote = {**XTERM, "TERM_PROGRAM": "Apple_Terminal", "SSH_TTY": "/dev/pts/1"}
    for environ, system in ((remote, "darwin"), ({"TERM": "dumb"}, "linux")):
        tools = Tools({"pbcopy": b"", "xclip -selection clipboard": b"", "wl-copy": b""})
        assert Clipboard(Terminal.read(environ, system), tmp_path, tools.run).copy("x").way == "file"


def test_the_last_way_is_a_private_file(tmp_path: Path) -> None:
    """The sentence says where it is; a second copy takes the place of the first."""
    found, _ = clipboard(tmp_path / "window", {"TERM": "dumb"})
    found.copy("first")
    copied = found.copy("second")
    path = tmp_path / "window" / "copied.txt"
    assert copied.sentence == f"Your terminal does not take copies: the text is written to {path}."
    assert (path.read_text(encoding="utf-8"), stat.S_IMODE(path.stat().st_mode)) == ("second", 0o600)


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """Nobody is to believe that the text was copied."""
    (tmp_path / "window").write_text("a file in the place of the folder", encoding="utf-8")
    copied = clipboard(tmp_path / "window", {"TERM": "dumb"})[0].copy("text")
    assert copied.sentence.startswith("Nothing is copied: ")


def test_a_tool_is_run_with_the_text(tmp_path: Path) -> None:
    """What it writes comes back where nothing is handed over; a failure and a missing tool are the same."""
    assert run_tool(("printf", "on"), None) == b"on"
    assert run_tool(("tee", str(tmp_path / "got")), b"text") == b""
    assert (tmp_path / "got").read_bytes() == b"text"
    assert run_tool(("false",), b"x") is None
    assert run_tool(("no-such-tool-here",), b"x") is None


@pytest.mark.parametrize(
    ("value", "background"),
    [("0;15", "light"), ("15;0", "dark"), ("0;default;7", "light"), ("7;8", "dark"), ("", ""), ("15;default", "")],
)
def test_some_terminals_tell_their_background(value: str, background: str) -> None:
    """COLORFGBG ends with the number of the background's colour."""
    assert Terminal.read({"COLORFGBG": value}, "linux").background == background
