"""llama-server's own HTTP server in a process of its own: `python -m tests.models.llama_http MODEL PORT SLOTS KEY`."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from models.remote import RemoteEngine
from models.remote_profile import RemoteProfile
from tests.models.helpers import starter

KEY = "sk-only-for-this-server"
N_CTX = 2048
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """A running server and the folder of its slot files."""

    port: int
    slots: Path
    process: subprocess.Popen[str]

    def engine(self, **fields: Any) -> RemoteEngine:
        """An engine for it."""
        url = f"http://127.0.0.1:{self.port}"
        return RemoteEngine(RemoteProfile("local", **{"base_url": url, "key": lambda: KEY, **fields}))


@contextmanager
def llama_server(slots: Path, binary: Path | None = None) -> Iterator[LlamaServer]:
    """Run a server of the starter model: the one in the xllamacpp package, or a llama-server that was built.

    Skips the test where neither is there.
    """
    model = starter()
    port = free_port()
    slots.mkdir(exist_ok=True)
    if binary is None:
        pytest.importorskip("xllamacpp")
        command = [sys.executable, "-m", "tests.models.llama_http", str(model), str(port), str(slots), KEY]
    else:
        command = [str(binary), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-t", "1", "-np", "1"]
        command += ["-c", str(N_CTX), "-fa", "off", "--alias", "starter", "--api-key", KEY, "--metrics"]
        command += ["--slot-save-path", f"{slots}/", "--offline", "--no-warmup", "--sse-ping-interval", "1"]
    with (slots / "server.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, env={**os.environ, "LLAMA_OFFLINE": "1"}
        )
    try:
        _wait(process, port)
        yield LlamaServer(port, slots, process)
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def free_port() -> int:
    """A port of loopback that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait(process: subprocess.Popen[str], port: int) -> None:
    """Wait until the server answers that its model is there."""
    deadline = time.monotonic() + 60
    pause = threading.Event()
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urlopen(Request(f"http://127.0.0.1:{port}/health"), timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pause.wait(0.05)
    raise AssertionError("llama-server did not start")


def serve(model: Path, port: int, slots: Path, key: str) -> None:
    """Serve until the process is ended."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {"starter"}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = N_CTX
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.warmup = False
    params.slot_save_path = f"{slots}/"
    params.api_keys = [key]
    params.endpoint_metrics = True
    params.ui = False
    server = xllamacpp.Server(params)
    threading.Event().wait()
    del server


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
