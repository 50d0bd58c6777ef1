"""Long work with native code on behalf of a command: in a process of its own, which may abort and may not print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from models import hugepages
from models.errors import EngineDied, EngineError, ModelError

JobPhase = Literal["load", "tune", "types", "convert", "loss"]
Told = Callable[[JobPhase, int, int], None]
"""Receives what is done, and how far it is: done, in all."""

_LOG_BYTES = 4 << 20


def run_job(request: dict[str, Any], *, cache_dir: Path, told: Told) -> dict[str, Any]:
    """Have `models.jobworker` do what a request asks; returns its result. Raises `EngineError` in one sentence.

    What native code prints goes to `logs/jobs.log` in the cache folder. When this call is broken off, the process ends.
    """
    log_path = cache_dir.resolve() / "logs" / "jobs.log"
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        if log_path.exists() and log_path.stat().st_size > _LOG_BYTES:
            flags |= os.O_TRUNC
        log = os.open(log_path, flags, 0o600)
    except OSError as exc:
        raise EngineError(f"{log_path} cannot be written ({exc.strerror}): choose another --cache-dir.") from exc
    try:
        # -P and a fixed folder: a `models` in the user's own folder is never imported.
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "models.jobworker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=log_path.parent,
            env=hugepages.environment(),  # what is fastest here is measured as the engine will run
        )
    except OSError as exc:
        raise EngineDied(f"The process for this work cannot be started ({exc.strerror or exc}).") from exc
    finally:
        os.close(log)
    with child:
        return _talk(child, request, told, log_path)


def _talk(child: subprocess.Popen[bytes], request: dict[str, Any], told: Told, log_path: Path) -> dict[str, Any]:
    assert child.stdin is not None, "it is a pipe"
    assert child.stdout is not None, "it is a pipe"
    try:
        # It stays open: the child ends when it is closed.
        child.stdin.write(json.dumps(request).encode() + b"\n")
        child.stdin.flush()
        for line in child.stdout:
            message = json.loads(line)
            if "progress" in message:
                told(*message["progress"])
            elif "failed" in message:
                raise (ModelError if message["kind"] == "model" else EngineError)(message["failed"])
            else:
                result: dict[str, Any] = message["result"]
                return result
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise EngineDied(f"The process for this work broke; its log is {log_path}.") from exc
    finally:
        child.kill()
    raise EngineDied(f"The process for this work ended unexpectedly; its log is {log_path}.")
