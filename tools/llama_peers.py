"""Builds llama-server and llama-bench once per machine and set of flags: `python -m tools.llama_peers` prints where.

They are the peers `benchmarks/` measures against, so they are made of the llama.cpp source inside the pinned
llama-cpp-python and with the flags of chatapp's own wheel. Like the wheels, they stay in the user's cache.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from tools import bootstrap, native, wheels
from tools.native import Build
from tools.progress import Reporter
from tools.wheels import BuildError, _follow

TARGETS = ("llama-server", "llama-bench")
# What scikit-build-core and shared libraries imply for the wheel has to be said here; the rest leaves parts out.
OWN_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DCMAKE_POSITION_INDEPENDENT_CODE=ON",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)


def file_name(target: str) -> str:
    """Return the name of the program `target` on this system."""
    return f"{target}.exe" if sys.platform == "win32" else target


def plan(version: str, machine: native.Machine, user_args: str, env: Mapping[str, str]) -> Build:
    """Return the wheel's build with the programs' own flags added; `user_args` come last, so they win."""
    return native.plan(version, machine, f"{' '.join(OWN_FLAGS)} {user_args}", env)


def peers_path(wheel_store: Path, build: Build) -> Path:
    """Return the folder the programs of `build` are kept in: beside the folder of the wheels."""
    return wheel_store.with_name("llama-peers") / build.key


def configure_command(source: Path, folder: Path, build: Build) -> list[str]:
    """Return the command that prepares `folder` for compiling `source`."""
    return ["cmake", "-S", str(source), "-B", str(folder), *shlex.split(build.cmake_args)]


def missing_tools(path: str | None) -> list[str]:
    """Return which of cmake and ninja are not on the search path `path`; each is a package of that name too."""
    return [name for name in ("cmake", "ninja") if shutil.which(name, path=path) is None]


def obtain(wheel_store: Path, build: Build, env: Mapping[str, str], out: TextIO) -> Path:
    """Return the folder with the programs of `build`, compiling them only if no other process did before.

    What is in the folder is always complete. Raises `BuildError`.
    """
    path = peers_path(wheel_store, build)
    if path.exists():
        return path
    with wheels.locked(path.with_name(f"{build.key}.lock"), out):
        if not path.exists():
            _compile(path, build, env, out)
    return path


def _compile(path: Path, build: Build, env: Mapping[str, str], out: TextIO) -> None:
    log_path = path.with_name(f"{build.key}.log")
    print("compiling llama-server and llama-bench once for this machine (about 10 minutes on 2 cores)", file=out)
    print(f"  flags: {build.cmake_args}\n  log:   {log_path}", file=out, flush=True)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="llama-peers-") as name, log_path.open("w", encoding="utf-8") as log:
        work = Path(name)
        environment = _with_tools(work / "tools", {**env, "PIP_NO_INPUT": "1"}, log, out)
        source = _download(work / "sdist", build, environment, log, out)
        _step(configure_command(source, work / "build", build), "configured", environment, log, out)
        command = ["cmake", "--build", str(work / "build"), "--config", "Release", "--target", *TARGETS]
        _step([*command, "--parallel", str(os.cpu_count() or 2)], "compiled", environment, log, out)
        part = path.with_name(f"{build.key}.part")
        shutil.rmtree(part, ignore_errors=True)  # left by a build that was killed; the lock says it is dead
        part.mkdir()
        for target in TARGETS:
            made = next((work / "build" / "bin").rglob(file_name(target)), None)
            if made is None:
                raise BuildError(f"The build ended without an error but left no {target}; the whole log: {log_path}")
            shutil.copy2(made, part)
        part.replace(path)
    print(f"compiled in {time.monotonic() - started_s:.0f} s", file=out, flush=True)


def _with_tools(folder: Path, env: Mapping[str, str], log: TextIO, out: TextIO) -> dict[str, str]:
    """Return `env` with cmake and ninja on its path, from a throwaway environment where the system has none."""
    result = dict(env)
    if missing := missing_tools(env.get("PATH")):
        _step([sys.executable, "-m", "venv", str(folder)], "given their build tools", env, log, out)
        python = bootstrap.venv_python(folder)
        _step([str(python), "-m", "pip", "install", *missing], "given their build tools", env, log, out)
        result["PATH"] = os.pathsep.join([str(python.parent), *filter(None, [env.get("PATH")])])
    if sys.platform != "win32":
        result.setdefault("CMAKE_GENERATOR", "Ninja")
    return result


def _download(folder: Path, build: Build, env: Mapping[str, str], log: TextIO, out: TextIO) -> Path:
    """Return the folder of llama.cpp inside the unpacked source distribution."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python"]
    command += [f"llama-cpp-python=={build.version}", "-d", str(folder)]
    _step(command, "downloaded (is the network there?)", env, log, out)
    archive = next(folder.glob("*.tar.gz"))
    # The tarfile module of early Python 3.11 cannot unpack safely.
    _step(["cmake", "-E", "chdir", str(folder), "cmake", "-E", "tar", "xzf", archive.name], "unpacked", env, log, out)
    return next(folder.glob("*/vendor/llama.cpp"))


def _step(command: list[str], done: str, env: Mapping[str, str], log: TextIO, out: TextIO) -> None:
    """Run `command`; `done` is the past participle that is missing from the programs when it fails."""
    status, _ = _follow(command, env, log, Reporter(out))
    if status != 0:
        raise BuildError(f"{' and '.join(TARGETS)} could not be {done}; the whole log: {log.name}")


def planned(root: Path, env: Mapping[str, str]) -> Build:
    """Return the build whose flags are those of the environment `root/.venv`. Raises `BuildError`."""
    machine = native.probe(env)
    if machine is None:
        raise BuildError(bootstrap.NO_COMPILER)
    version = bootstrap.read_project(root / "pyproject.toml").llama_version
    return plan(version, machine, bootstrap._user_args(bootstrap.read_state(root / ".venv"), env), env)


def main() -> int:
    """Make the programs and print their folder; 0 ok, 1 failed, 130 interrupted."""
    try:
        build = planned(Path(__file__).resolve().parent.parent, os.environ)
        print(obtain(wheels.store_path(os.environ), build, os.environ, sys.stderr))
    except (BuildError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run it again to start over", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
