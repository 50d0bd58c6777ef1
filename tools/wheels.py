"""Compiles llama-cpp-python once per machine and set of flags, and keeps the wheel for later environments.

pip's own cache cannot do this: it ignores CMAKE_ARGS and would hand out a wheel built with other flags.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO

from tools.native import Build
from tools.progress import Reporter

_SHOWN_LOG_LINES = 40


class BuildError(Exception):
    """Compiling failed; the message holds the end of the log and where the rest is."""


def store_path(env: Mapping[str, str], system: str = sys.platform) -> Path:
    """Return the folder for compiled wheels below the user's cache folder."""
    if system == "win32":
        base = Path(env.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif system == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "chatapp" / "wheels"


def find_wheel(store: Path, key: str) -> Path | None:
    """Return the stored wheel of this key, or None; what is stored is always complete."""
    return next((store / key).glob("*.whl"), None)


def obtain(store: Path, build: Build, compile_into: Callable[[Path], None], out: TextIO) -> Path:
    """Return the wheel of `build`, calling `compile_into(folder)` only if no other process made it before."""
    if (wheel := find_wheel(store, build.key)) is not None:
        return wheel
    with locked(store / f"{build.key}.lock", out):
        if (wheel := find_wheel(store, build.key)) is not None:
            return wheel
        part = store / f"{build.key}.part"
        shutil.rmtree(part, ignore_errors=True)  # left by a build that was killed; the lock says it is dead
        part.mkdir(parents=True)
        compile_into(part)
        shutil.rmtree(store / build.key, ignore_errors=True)
        part.replace(store / build.key)
    wheel = find_wheel(store, build.key)
    if wheel is None:
        raise BuildError("the build ended without an error but left no wheel")
    return wheel


def compile_wheel(python: Path, build: Build, folder: Path, env: Mapping[str, str], out: TextIO) -> None:
    """Compile into `folder`, with progress on `out` and everything else in a log beside the wheels."""
    log_path = folder.with_suffix(".log")
    print("compiling llama.cpp once for this machine (5 to 10 minutes on 2 cores)", file=out)
    print(f"  flags: {build.cmake_args}\n  log:   {log_path}", file=out, flush=True)
    requirement = f"llama-cpp-python=={build.version}"
    command = [str(python), "-m", "pip", "wheel", "-v", "--no-cache-dir", "--no-deps"]
    command += ["--no-binary", "llama-cpp-python", requirement, "-w", str(folder)]
    started_s = time.monotonic()
    with log_path.open("w", encoding="utf-8") as log:
        status, tail = _follow(command, {**env, "CMAKE_ARGS": build.cmake_args}, log, Reporter(out))
    if status != 0:
        raise BuildError("\n".join([*tail, f"llama.cpp could not be compiled; the whole log: {log_path}"]))
    print(f"compiled in {time.monotonic() - started_s:.0f} s", file=out, flush=True)


def _follow(command: list[str], env: Mapping[str, str], log: TextIO, reporter: Reporter) -> tuple[int, deque[str]]:
    """Run `command`, copying its output to `log`; return its exit status and the last lines."""
    tail: deque[str] = deque(maxlen=_SHOWN_LOG_LINES)
    with subprocess.Popen(
        command,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None, "stdout was asked for as a pipe"
        try:
            for line in process.stdout:
                log.write(line)
                tail.append(line.rstrip()[:500])
                reporter.feed(line)
        finally:
            reporter.close()
    return process.returncode, tail


@contextmanager
def locked(path: Path, out: TextIO) -> Iterator[None]:
    """Hold the lock file `path`, waiting for another process that has it; the lock ends with its process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if not _try_lock(file):
            print("waiting for another installation to finish", file=out, flush=True)
            while not _try_lock(file):
                time.sleep(0.2)
        yield


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[bytes]) -> bool:
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
