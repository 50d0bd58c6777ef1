"""Makes .venv ready to run: `python -m tools.bootstrap [--dev]`, with nothing but the standard library.

Up to date means that what `.venv/chatapp-state.json` records is what would be installed now. The file is
written last and removed before anything is changed, so an environment without it is half-made and remade.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from tools import native, wheels

STATE_NAME = "chatapp-state.json"
NO_COMPILER = (
    "chatapp compiles llama.cpp and found no working C and C++ compiler: install one "
    "(Debian, Ubuntu: apt install build-essential; Fedora: dnf install gcc-c++; "
    "macOS: xcode-select --install)"
)


class SetupError(Exception):
    """The environment cannot be made; the message says why and what would help."""


@dataclass(frozen=True, slots=True)
class State:
    """What an environment holds."""

    root: str
    """The project's folder: an environment moved elsewhere points back to the old one."""
    project: str
    """Hash of pyproject.toml."""
    native_key: str
    """`native.Build.key` of the installed llama-cpp-python."""
    cmake_args: str
    """The user's own CMAKE_ARGS, which later runs without that variable keep."""
    dev: bool

    def satisfies(self, wanted: State) -> bool:
        """Return True when nothing has to be installed; development tools may be there unasked."""
        return (self.root, self.project, self.native_key) == (
            wanted.root,
            wanted.project,
            wanted.native_key,
        ) and self.dev >= wanted.dev


@dataclass(frozen=True, slots=True)
class Project:
    """What pyproject.toml says about the installation."""

    digest: str
    llama_version: str
    starter: tuple[str, ...]
    """Requirements that are installed without their own dependencies."""


def read_project(path: Path) -> Project:
    """Read pyproject.toml, the one place versions are written in."""
    data = path.read_bytes()
    table = tomllib.loads(data.decode())["project"]
    versions = [line.split("==")[1] for line in table["dependencies"] if line.startswith("llama-cpp-python==")]
    assert len(versions) == 1, "pyproject.toml pins llama-cpp-python exactly, once"
    starter = tuple(table["optional-dependencies"]["starter"])
    return Project(hashlib.sha256(data).hexdigest(), versions[0].strip(), starter)


def read_state(venv: Path) -> State | None:
    """Return what `venv` holds, or None when that is unknown: absent, half-made, or made by someone else."""
    try:
        record = json.loads((venv / STATE_NAME).read_text(encoding="utf-8"))
        return State(
            root=str(record["root"]),
            project=str(record["project"]),
            native_key=str(record["native_key"]),
            cmake_args=str(record["cmake_args"]),
            dev=bool(record["dev"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_state(venv: Path, state: State) -> None:
    """Record what `venv` holds, in one step."""
    temporary = venv / f"{STATE_NAME}.tmp"
    temporary.write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")
    temporary.replace(venv / STATE_NAME)


def remake_reason(venv: Path, state: State | None, root: Path) -> str | None:
    """Say why `venv` cannot be kept, or return None when it can be kept or brought up to date."""
    if not venv.exists():
        return "there is none yet"
    if state is None:
        return "it is half-made"
    if state.root != str(root):
        return f"it was made for {state.root}"
    if not _runs(venv_python(venv)):
        return "its Python does not run"
    return None


def venv_python(venv: Path) -> Path:
    """Return the interpreter of `venv`."""
    return venv / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def ensure(root: Path, dev: bool, env: Mapping[str, str], out: TextIO) -> None:
    """Make `root/.venv` hold the project, with development tools if `dev`; return at once when it does."""
    store = wheels.store_path(env)
    if _is_ready(root, dev, env):
        return
    lock_name = f"venv-{hashlib.sha256(str(root).encode()).hexdigest()[:16]}.lock"
    with wheels.locked(store / lock_name, out):
        if not _is_ready(root, dev, env):  # another process may have made it while this one waited
            _make(root, dev, env, store, out)


def _is_ready(root: Path, dev: bool, env: Mapping[str, str]) -> bool:
    venv = root / ".venv"
    state = read_state(venv)
    if state is None or remake_reason(venv, state, root) is not None:
        return False
    project = read_project(root / "pyproject.toml")
    build = _plan(project, state, env)
    # Without a compiler nothing could be built, so what is installed has to do.
    key = build.key if build is not None else state.native_key
    return state.satisfies(State(str(root), project.digest, key, "", dev))


def _plan(project: Project, state: State | None, env: Mapping[str, str]) -> native.Build | None:
    machine = native.probe(env)
    if machine is None:
        return None
    return native.plan(project.llama_version, machine, _user_args(state, env), env)


def _user_args(state: State | None, env: Mapping[str, str]) -> str:
    """Return CMAKE_ARGS; when unset, those of the last installation, so that a GPU build stays one."""
    return env.get("CMAKE_ARGS", state.cmake_args if state is not None else "").strip()


def _make(root: Path, dev: bool, env: Mapping[str, str], store: Path, out: TextIO) -> None:
    venv = root / ".venv"
    state = read_state(venv)
    project = read_project(root / "pyproject.toml")
    build = _plan(project, state, env)
    if build is None:
        raise SetupError(NO_COMPILER)
    reason = remake_reason(venv, state, root)
    if reason is not None:
        print(f"making .venv ({reason})", file=out, flush=True)
        _create(venv, env)
    python = venv_python(venv)
    wheel = wheels.obtain(store, build, lambda folder: wheels.compile_wheel(python, build, folder, env, out), out)
    print("installing packages into .venv", file=out, flush=True)
    (venv / STATE_NAME).unlink(missing_ok=True)
    had_dev = state is not None and state.dev and reason is None
    if reason is not None or state is None or state.native_key != build.key:
        # The wheel comes first, so that the project's own requirement on it is already met.
        _install(python, ["--reinstall", "--no-deps", str(wheel)], env, out)
    _install(python, ["-e", f"{root}[dev]" if dev or had_dev else str(root)], env, out)
    _install(python, ["--no-deps", *project.starter], env, out)
    write_state(venv, State(str(root), project.digest, build.key, _user_args(state, env), dev=dev or had_dev))


def _create(venv: Path, env: Mapping[str, str]) -> None:
    if venv.is_symlink() or venv.is_file():
        venv.unlink()
    elif venv.exists():
        shutil.rmtree(venv)
    # Not sys.executable: that may be the .venv which was just removed.
    base: str = getattr(sys, "_base_executable", sys.executable)
    if shutil.which("uv"):
        command = ["uv", "venv", "--quiet", "--seed", "--python", base, str(venv)]
        if _run(command, env) is None:
            return
        shutil.rmtree(venv, ignore_errors=True)
    problem = _run([base, "-m", "venv", str(venv)], env)
    if problem is not None:
        hint = "on Debian and Ubuntu, apt install python3-venv; or install uv"
        raise SetupError(f"{problem}\n.venv could not be made with {base} ({hint})")


def _install(python: Path, what: list[str], env: Mapping[str, str], out: TextIO) -> None:
    if shutil.which("uv"):
        problem = _run(["uv", "pip", "install", "--quiet", "--python", str(python), *what], env)
        if problem is None:
            return
        # uv does not read pip's configuration, where a mirror or a certificate may be named.
        print("uv could not install, trying pip", file=out, flush=True)
    arguments = ["--force-reinstall" if word == "--reinstall" else word for word in what]
    problem = _run([str(python), "-m", "pip", "install", "--quiet", *arguments], env)
    if problem is not None:
        raise SetupError(f"{problem}\npip could not install {what[-1]}; is the network there?")


def _run(command: list[str], env: Mapping[str, str]) -> str | None:
    """Run quietly; return None, or on failure all that was said."""
    environment = {**env, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else done.stdout.rstrip()


def _runs(python: Path) -> bool:
    return _run([str(python), "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], os.environ) is None


def main() -> int:
    """Make the environment of the project this file belongs to; 0 ok, 1 failed, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tools.bootstrap", description="make .venv ready to run")
    parser.add_argument("--dev", action="store_true", help="with the tools that tests and checks need")
    arguments = parser.parse_args()
    try:
        ensure(Path(__file__).resolve().parent.parent, arguments.dev, os.environ, sys.stderr)
    except (SetupError, wheels.BuildError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run it again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
