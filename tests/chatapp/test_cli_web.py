import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click
import pytest
from click.testing import CliRunner

from chatapp.cli import cli
from chatapp.cli_web import NOT_INSTALLED, as_arguments
from chatapp.config import BROWSER_DRIVER
from chatapp.web import serving
from chatapp.web.running import find, only_one, tell

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tests press Ctrl+C by a signal")


def command(folder: Path, *more: str) -> list[str]:
    """Return the command line that serves without opening a browser."""
    folders = ["--data-dir", str(folder / "data"), "--cache-dir", str(folder / "cache")]
    return [sys.executable, "-P", "-m", "chatapp", "--engine", "fake", "web", "--no-open", *folders, *more]


@contextmanager
def web(folder: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the server for the block; yields it with the address that it printed."""
    process = subprocess.Popen(command(folder, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def rest(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the end; return the exit code and what else was written."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_the_address_is_printed_and_ctrl_c_ends_the_server(tmp_path: Path) -> None:
    """Stdout has the address alone, stderr nothing secret, and nothing stays behind."""
    with web(tmp_path) as (process, url):
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{43})", url)
        assert found
        kept = tmp_path / "data" / "web.json"
        assert (json.loads(kept.read_text())["port"], kept.stat().st_mode & 0o777) == (int(found[1]), 0o600)
        with pytest.raises(urllib.error.HTTPError, match="403"):  # urllib keeps no cookie
            urllib.request.urlopen(url)  # noqa: S310 - our own address
        process.send_signal(signal.SIGINT)
        code, out, err = rest(process)
    assert (code, out, found[2] in err) == (0, "", False)
    assert [path.name for path in (tmp_path / "data").iterdir() if path.name.startswith("web.")] == []


@pytest.mark.parametrize("how", ["SIGTERM", "SIGHUP"])
def test_a_closed_terminal_ends_the_server(tmp_path: Path, how: str) -> None:
    """So does a polite kill, with the same end."""
    with web(tmp_path) as (process, _):
        process.send_signal(getattr(signal, how))
        assert rest(process)[0] == 0


def test_a_second_server_leads_to_the_first(tmp_path: Path) -> None:
    """There is one for a data folder: two would hold the model twice. Another folder has its own."""
    with web(tmp_path) as (_, url):
        second = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=60, check=True)
        assert (second.stdout.strip(), second.stderr) == (url, "`chatapp web` runs already: this is its address.\n")
        found = find(tmp_path / "data")
        assert found
        assert (found[0], found[1] != url) == (url, True)
        with web(tmp_path / "other") as (_, other):
            assert other != url


def test_a_killed_server_is_not_in_the_way(tmp_path: Path) -> None:
    """The next one takes its place, whatever it left behind."""
    with web(tmp_path) as (process, url):
        process.kill()
        process.wait()
    assert find(tmp_path / "data") is None
    with web(tmp_path) as (_, again):
        assert again not in ("", url)


def test_a_silent_server_is_told(tmp_path: Path) -> None:
    """Where the first does not answer, nothing is started, and the sentence says what to do."""
    with only_one(tmp_path / "data") as is_only:
        assert is_only
        for written in (None, "", "[]", '{"port": 1, "token": "x"}'):
            if written is not None:
                (tmp_path / "data" / "web.json").write_text(written)
            done = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=60, check=False)
            assert (done.returncode, done.stdout) == (1, "")
            assert "does not answer" in done.stderr


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    """One sentence names the port and the way out."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            command(tmp_path, "--port", str(port)), capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr.startswith(f"Error: Port {port} cannot be used")) == (1, True)


def test_only_this_machine_is_listened_on(tmp_path: Path) -> None:
    """No other address of the machine answers, and there is no option for one."""
    with web(tmp_path) as (_, url):
        port = int(url.split(":")[2].split("/")[0])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=10)
    assert "--host" not in CliRunner().invoke(cli, ["web", "--help"]).output


def test_missing_packages_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the extra, one sentence says how to install it."""
    for name in list(sys.modules):
        if name.startswith(("chatapp.web.", "textual_serve", "aiohttp")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    done = CliRunner().invoke(cli, ["web", "--data-dir", str(tmp_path)])
    assert (done.exit_code, done.output) == (1, f"Error: {NOT_INSTALLED}\n")


def test_the_command_line_loads_no_server() -> None:
    """What only `chatapp web` needs is not imported for other commands."""
    script = (
        "import sys, chatapp.cli, chatapp.cli_web; print([m for m in ('aiohttp', 'textual_serve') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_flags_reach_the_window() -> None:
    """Options are written so that the same values are read again, whatever they begin with."""
    given = {
        "model": "--odd name",
        "ctx": 2048,
        "kv": False,
        "lora": ("a=1", "b"),
        "threads": None,
        "config": Path("x y"),
    }
    arguments = as_arguments(cli, given)
    assert set(arguments) == {"--model=--odd name", "--ctx=2048", "--no-kv", "--lora=a=1", "--lora=b", "--config=x y"}
    read = cli.make_context("chatapp", arguments, resilient_parsing=True).params
    assert {name: read[name] for name in given} == given
    assert as_arguments(cli, {"kv": True}) == ["--kv"]


def test_a_flag_without_an_opposite_is_left_out() -> None:
    """Its absence is its other value."""
    one = click.Command("one", params=[click.Option(["--loud"], is_flag=True)])
    assert (as_arguments(one, {"loud": False}), as_arguments(one, {"loud": True})) == ([], ["--loud"])


def test_the_browser_is_shown_the_address_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A browser that takes it is left alone; one of the terminal, or none, is told of."""
    opened: list[str] = []

    class Shown:
        name = "firefox"

        def open(self, url: str) -> bool:
            opened.append(url)
            return True

    monkeypatch.setattr("webbrowser.get", Shown)
    serving._open("http://127.0.0.1:1/?token=x")
    assert (opened, capsys.readouterr().err) == (["http://127.0.0.1:1/?token=x"], "")
    Shown.name = "w3m"
    serving._open("http://127.0.0.1:1/?token=x")
    assert (len(opened), "open the address yourself" in capsys.readouterr().err) == (1, True)


def test_where_the_server_is_stays_private(tmp_path: Path) -> None:
    """A file that others could read before is closed to them before the secret is in it."""
    (tmp_path / "web.json").write_text("")
    (tmp_path / "web.json").chmod(0o644)
    tell(tmp_path, 1, "secret")
    assert (tmp_path / "web.json").stat().st_mode & 0o777 == 0o600


def test_the_window_leaves_when_its_server_is_gone(tmp_path: Path) -> None:
    """A killed server leaves no window, and no model in memory, behind."""
    folders = ["--data-dir", str(tmp_path / "data"), "--cache-dir", str(tmp_path / "cache")]
    arguments = [sys.executable, "-P", "-m", "chatapp", "--engine", "fake", *folders]
    environment = os.environ | {"TEXTUAL_DRIVER": BROWSER_DRIVER}
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as window:
        try:
            _close(window.stdin, window.stdout)
            assert window.stderr
            assert (window.wait(timeout=60), window.stderr.read()) == (0, b"")
        finally:
            window.kill()


def _close(stdin: IO[bytes] | None, stdout: IO[bytes] | None) -> None:
    """Let go of both pipes once the window is there."""
    assert stdin
    assert stdout
    assert stdout.readline() == b"__GANGLION__\n"
    stdout.close()
    stdin.close()
