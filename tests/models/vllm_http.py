"""vLLM on this machine's processor in a process of its own, or a server that the user names."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from models.remote import RemoteEngine
from models.remote_profile import RemoteProfile
from tests.models.llama_http import free_port
from tools.bootstrap import venv_python

KEY = "sk-only-for-this-server"
N_CTX = 2048
BLOCK = 32
"""Tokens that its cache keeps or forgets together."""
_START_S = 300
_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
}


@dataclass(frozen=True, slots=True)
class VllmServer:
    """A running server; `process` is None if it is not ours."""

    url: str
    key: str | None
    process: subprocess.Popen[bytes] | None

    def engine(self, **fields: Any) -> RemoteEngine:
        """An engine for it."""
        key = self.key
        return RemoteEngine(RemoteProfile("team", self.url, **{"key": (lambda: key) if key else None, **fields}))

    def kill(self) -> None:
        """End it and what it started, at once."""
        assert self.process, "only what was started here is killed"
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def vllm_server(where: str, log: Path) -> Iterator[VllmServer]:
    """Run what `tools.vllm_server` has set up in the folder `where`, or use the server at that address."""
    if where.startswith(("http://", "https://")):
        yield VllmServer(where, os.environ.get("VLLM_KEY"), None)
        return
    port, folder = free_port(), Path(where)
    command = [str(venv_python(folder / "venv")), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(folder / "model"), "--served-model-name", "starter", "--api-key", KEY]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(N_CTX), "--max-num-seqs", "4"]
    command += ["--dtype", "bfloat16", "--enforce-eager", "--block-size", str(BLOCK)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env={**os.environ, **_ENVIRONMENT}, start_new_session=True
        )
    running = VllmServer(f"http://127.0.0.1:{port}", KEY, process)
    try:
        _wait(process, port, log)
        yield running
    finally:
        if process.poll() is None:
            running.kill()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until the server answers that it is well."""
    deadline = time.monotonic() + _START_S
    pause = threading.Event()
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urlopen(Request(f"http://127.0.0.1:{port}/health"), timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pause.wait(0.2)
    raise AssertionError(f"vLLM did not start: {log.read_text(errors='replace')[-2000:]}")
