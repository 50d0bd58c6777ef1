import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chatapp import desktop
from chatapp.cli import cli

HARD = '/opt/my "chat" $HOME/100%/`x`/back\\slash/chatapp'


@pytest.fixture(autouse=True)
def _linux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))


def entry(path: Path) -> dict[str, str]:
    """Return the keys of a launcher."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "[Desktop Entry]"
    return dict(line.split("=", 1) for line in lines[1:])


def run(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(cli, ["desktop-entry", *arguments])


def unescaped(line: str) -> list[str]:
    """Read a command line by the rules of the specification: of strings, of `Exec`, of field codes."""
    string = line.replace("\\\\", "\\")
    words = re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', string)
    return [re.sub(r"\\(.)", r"\1", quoted or plain).replace("%%", "%") for quoted, plain in words]


def test_the_launcher_is_installed_below_xdg_data_home(tmp_path: Path) -> None:
    """Its path is printed; the program it names is there, and it opens in a terminal."""
    done = run()
    path = tmp_path / "share/applications/chatapp.desktop"
    assert (done.exit_code, done.stdout) == (0, f"{path}\n")
    values = entry(path)
    assert (values["Terminal"], values["Icon"]) == ("true", "chatapp")
    assert unescaped(values["Exec"]) == desktop.program(sys.executable)
    assert Path(values["TryExec"]).is_file()
    assert (tmp_path / "share/icons/hicolor/scalable/apps/chatapp.svg").is_file()


def test_it_opens_in_the_browser_where_that_is_wanted(tmp_path: Path) -> None:
    """The second kind takes the place of the first; its server ends with the window."""
    run()
    assert run("--browser").exit_code == 0
    values = entry(tmp_path / "share/applications/chatapp.desktop")
    assert values["Terminal"] == "false"
    assert unescaped(values["Exec"]) == [*desktop.program(sys.executable), "web", "--end-with-window"]


def test_it_is_removed_again(tmp_path: Path) -> None:
    """Nothing stays behind; where nothing is, that is said."""
    run()
    done = run("--remove")
    assert (done.exit_code, done.stderr) == (0, "The launcher was removed.\n")
    assert [path for path in (tmp_path / "share").rglob("*") if path.is_file()] == []
    done = run("--remove")
    assert (done.exit_code, done.stderr) == (0, "There is no launcher.\n")


@pytest.mark.parametrize("arguments", [[], ["--browser"], ["--remove"]])
def test_the_launcher_of_another_program_is_left_alone(tmp_path: Path, arguments: list[str]) -> None:
    """One that happens to have the name is neither replaced nor removed."""
    path = tmp_path / "share/applications/chatapp.desktop"
    path.parent.mkdir(parents=True)
    path.write_text("[Desktop Entry]\nName=Something else\n")
    done = run(*arguments)
    assert (done.exit_code, done.stderr) == (1, f"Error: {path} is of another program: move it away first.\n")
    assert "Something else" in path.read_text()


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_told_what_to_do(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    """One sentence, nothing done, exit code 2."""
    monkeypatch.setattr(sys, "platform", platform)
    done = run()
    assert (done.exit_code, desktop.ADVICE[platform] in done.stderr) == (2, True)


def test_remove_takes_no_kind() -> None:
    """There is only one launcher."""
    assert run("--remove", "--browser").exit_code == 2


def test_a_browser_needs_its_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No launcher is installed that could not open."""
    monkeypatch.setattr(desktop, "has_web", lambda: False)
    done = run("--browser")
    assert (done.exit_code, "textual-serve" in done.stderr) == (1, True)
    assert not (tmp_path / "share").exists()


@pytest.mark.parametrize("word", [HARD, "/a b/chatapp", "/한글/chatapp", "/plain/chatapp"])
def test_any_path_survives_quoting(tmp_path: Path, word: str) -> None:
    """Blanks, quotation marks, backslashes and per cent signs in a folder's name do no harm."""
    path = tmp_path / "x.desktop"
    path.write_text(desktop.entry_text([word], in_browser=True), encoding="utf-8")
    line = entry(path)["Exec"]
    assert unescaped(line) == [word, "web", "--end-with-window"]


@pytest.mark.parametrize("in_browser", [False, True])
@pytest.mark.parametrize("word", [HARD, "/usr/bin/chatapp"])
@pytest.mark.skipif(shutil.which("desktop-file-validate") is None, reason="desktop-file-validate is not installed")
def test_the_launcher_is_valid(tmp_path: Path, word: str, in_browser: bool) -> None:
    """The desktop's own tool finds nothing, not even a hint."""
    path = tmp_path / "chatapp.desktop"
    path.write_text(desktop.entry_text([word], in_browser=in_browser), encoding="utf-8")
    done = subprocess.run(["desktop-file-validate", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_icon_is_a_picture_without_anything_from_outside(tmp_path: Path) -> None:
    """It is well-formed, square, and refers to nothing."""
    run()
    text = (tmp_path / "share/icons/hicolor/scalable/apps/chatapp.svg").read_text()
    root = ET.fromstring(text)  # noqa: S314 - our own file
    assert root.get("viewBox") == "0 0 128 128"
    assert text.count("http") == 1  # the name of the format
