import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from chatapp.cli import cli
from chatapp.cli_serve import NOT_INSTALLED
from chatapp.config import SERVE_KEY
from chatapp.serve.secret import Secret, SecretError, random_secret, secret_in, secret_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tests press Ctrl+C by a signal")

KEY = "a-key-of-the-tests-own"


def command(folder: Path, *more: str) -> list[str]:
    """Return the command line that serves the fake engine."""
    folders = ["--data-dir", str(folder / "data"), "--cache-dir", str(folder / "cache")]
    return [sys.executable, "-P", "-m", "chatapp", "--engine", "fake", "serve", *folders, *more]


@contextmanager
def serving(folder: Path, *more: str, key: str | None = KEY) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the server for the block; yields it with the address that it printed."""
    environment = {name: value for name, value in os.environ.items() if name != SERVE_KEY}
    process = subprocess.Popen(
        command(folder, "--port", "0", *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment if key is None else environment | {SERVE_KEY: key},
    )
    try:
        assert process.stdout
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def ended(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the server where it cannot run."""
    environment = {name: value for name, value in os.environ.items() if name != SERVE_KEY}
    return subprocess.run(
        command(folder, *more), capture_output=True, text=True, timeout=60, check=False, env=environment
    )


def ready(process: subprocess.Popen[str]) -> list[str]:
    """Wait until the model is there; return what was said until then."""
    assert process.stderr
    lines: list[str] = []
    for line in process.stderr:
        if line.startswith("Ready"):
            return lines
        lines.append(line.rstrip("\n"))
    raise AssertionError(lines)


def ask(address: str, key: str, text: str = "hi") -> str:
    """Ask one question; return the answer."""
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    request = urllib.request.Request(  # noqa: S310 - our own address
        f"{address}/chat/completions", body, {"Authorization": f"Bearer {key}"}
    )
    with urllib.request.urlopen(request) as response:  # noqa: S310 - the same
        return str(json.load(response)["choices"][0]["message"]["content"])


def is_well(address: str) -> bool:
    """True as long as the server takes requests."""
    try:
        urllib.request.urlopen(address.removesuffix("/v1") + "/health", timeout=10).close()  # noqa: S310 - our own
    except OSError:
        return False
    return True


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_the_address_is_on_stdout_and_the_key_on_stderr(tmp_path: Path, how: str) -> None:
    """Each once; the key opens the door, and Ctrl+C or a polite kill ends the server."""
    with serving(tmp_path, key=None) as (process, address):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", address)
        (line,) = ready(process)
        key = line.removeprefix("API key: ")
        assert re.fullmatch(r"chatapp-[\w-]{43}", key)
        assert ask(address, key).startswith("You said")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(address, key + "x")
        process.send_signal(getattr(signal, how))
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


def test_nothing_that_was_said_is_kept_or_logged(tmp_path: Path) -> None:
    """No conversation, and no line on the terminal, holds the question or the key; KV is what stays."""
    with serving(tmp_path) as (process, address):
        assert ready(process) == []
        ask(address, KEY, "a very private question")
        with pytest.raises(urllib.error.HTTPError, match="400"):
            ask(address, KEY, "")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (out, err) == ("", "")
    kept = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert {path.parent.name for path in kept} == {"fake-kv"}
    assert not any(KEY.encode() in path.read_bytes() for path in kept)


def test_a_key_of_ones_own_is_not_printed(tmp_path: Path) -> None:
    """The variable gives it, a file wins over that, and one that is not there is made for its owner alone."""
    file = tmp_path / "keys" / "serve"
    with serving(tmp_path, "--api-key-file", str(file)) as (process, address):
        assert ready(process) == [f"API key: {file.read_text().strip()}"]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with serving(tmp_path, "--api-key-file", str(file)) as (process, address):
        assert ready(process) == []
        assert ask(address, file.read_text().strip())
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(address, KEY)


def test_other_machines_need_a_key_that_was_given(tmp_path: Path) -> None:
    """A random one on the terminal is for this machine; nothing is listened on before that is clear."""
    done = ended(tmp_path, "--host", "0.0.0.0")  # noqa: S104 - it does not come to that
    assert (done.returncode, done.stdout) == (2, "")
    assert "--api-key-file" in done.stderr
    with serving(tmp_path, "--host", "0.0.0.0") as (process, address):  # noqa: S104 - for a moment
        assert "not encrypted" in ready(process)[0]
        assert ask(address.replace("0.0.0.0", "127.0.0.1"), KEY)  # noqa: S104 - the same


def test_only_this_machine_is_listened_on(tmp_path: Path) -> None:
    """No other address of it answers, unless one is named."""
    with serving(tmp_path) as (_, address):
        port = int(address.split(":")[2].split("/")[0])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=10)


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    """One sentence names it and the way out; so for an address that is not this machine's."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = ended(tmp_path, "--port", str(taken.getsockname()[1]))
    assert (done.returncode, done.stdout, "cannot be used" in done.stderr) == (1, "", True)


def test_a_model_that_cannot_be_loaded_ends_it(tmp_path: Path) -> None:
    """With the engine's sentence, not a server that never gets ready."""
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    done = ended(tmp_path, "--port", "0", "--engine", "llama", "--model", str(tmp_path / "bad.gguf"))
    assert (done.returncode, done.stderr.splitlines()[-1].startswith("Error: ")) == (1, True)


def test_a_name_for_clients(tmp_path: Path) -> None:
    """They see the one that was given, and may still use the model's own."""
    with serving(tmp_path, "--name", "house") as (process, address):
        ready(process)
        request = urllib.request.Request(  # noqa: S310 - our own address
            f"{address}/models", headers={"Authorization": f"Bearer {KEY}"}
        )
        with urllib.request.urlopen(request) as response:  # noqa: S310 - the same
            assert [model["id"] for model in json.load(response)["data"]] == ["house"]


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    """An answer that still runs is cut, though it had an hour."""
    with serving(tmp_path, "--grace", "3600", "--engine", "fake:1") as (process, address):
        ready(process)
        body = json.dumps({"stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
        request = urllib.request.Request(  # noqa: S310 - our own address
            f"{address}/chat/completions", body, {"Authorization": f"Bearer {KEY}"}
        )
        with urllib.request.urlopen(request) as response:  # noqa: S310 - the same
            assert b"assistant" in response.readline()
            process.send_signal(signal.SIGTERM)
            while is_well(address):
                pass
            process.send_signal(signal.SIGTERM)
            frames = response.read().split(b"\n\n")
        assert process.wait(timeout=60) == 0
    assert b'"code":"stopping"' in frames[-2]


@pytest.mark.parametrize("text", ["", "short", "x" * 513, "with a space in it", "two\nlines of a key", "schlüssel" * 3])
def test_keys_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    """The sentence names where it came from, and nothing of the key."""
    (tmp_path / "key").write_text(text, encoding="utf-8")
    with pytest.raises(SecretError) as one:
        secret_of(text, "the variable X")
    with pytest.raises(SecretError, match="key"):
        secret_in(tmp_path / "key")
    assert ("the variable X" in str(one.value), bool(text) and text in str(one.value)) == (True, False)


def test_a_key_that_others_may_read_is_told(tmp_path: Path) -> None:
    """It works all the same; white space around it is none of it."""
    (tmp_path / "key").write_text(f"  {KEY}\n")
    (tmp_path / "key").chmod(0o644)
    assert secret_in(tmp_path / "key") == Secret(KEY, is_readable=True)
    (tmp_path / "key").chmod(0o600)
    assert secret_in(tmp_path / "key") == Secret(KEY)


def test_a_key_file_that_cannot_be_is_told(tmp_path: Path) -> None:
    """One sentence, with the flag that names another."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SecretError, match="--api-key-file"):
        secret_in(tmp_path / "file" / "key")


def test_random_keys_are_no_options() -> None:
    """Each is another one, and none begins with a dash."""
    keys = {random_secret().key for _ in range(50)}
    assert (len(keys), {key.startswith("chatapp-") for key in keys}) == (50, {True})


def test_missing_packages_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the extra, one sentence says how to install it."""
    for name in list(sys.modules):
        if name.startswith(("chatapp.serve", "aiohttp")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    done = CliRunner().invoke(cli, ["serve", "--data-dir", str(tmp_path)])
    assert (done.exit_code, done.output) == (1, f"Error: {NOT_INSTALLED}\n")


def test_the_command_line_loads_no_server() -> None:
    """What only `chatapp serve` needs is not imported for other commands."""
    script = "import sys, chatapp.cli, chatapp.cli_serve; print('aiohttp' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
    )
