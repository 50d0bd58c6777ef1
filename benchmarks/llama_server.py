"""Running llama-server and talking to it, for the benchmarks that put it beside the product."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from models.errors import EngineError

_START_S = 120.0
_ANSWER_S = 600.0


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer: seconds to its first text as the client sees them, the server's own `timings`, the token ids."""

    ttft_s: float
    timings: dict[str, Any]
    ids: tuple[int, ...]

    @property
    def tpot_s(self) -> float:
        """The server's own seconds per output token: it leaves the first one out, as ours do."""
        return float(self.timings["predicted_per_token_ms"]) / 1000


@dataclass(frozen=True, slots=True)
class Server:
    """A running server; `start_s` is process start until it is ready."""

    port: int
    start_s: float

    def post(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request."""
        with closing(_connection(self.port)) as connection:
            connection.request("POST", path, json.dumps(request).encode(), {"Content-Type": "application/json"})
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        if "error" in answer:
            raise EngineError(f"llama-server refused {path}: {answer['error']}")
        return answer

    def complete(self, ids: Sequence[int], n_tokens: int, **extras: Any) -> Completion:
        """Answer behind these token ids, greedily, streamed; what its slot holds of them is reused."""
        request = {"prompt": list(ids), "n_predict": n_tokens, "temperature": 0, "stream": True, "cache_prompt": True}
        body = json.dumps({**request, "return_tokens": True, **extras}).encode()
        with closing(_connection(self.port)) as connection:
            begun = time.monotonic()
            connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            ttft_s = 0.0
            chunks = []
            while line := answer.readline():
                if line.startswith(b"data: {"):
                    chunk = json.loads(line.removeprefix(b"data: "))
                    if chunk.get("content") and not ttft_s:
                        ttft_s = time.monotonic() - begun
                    chunks.append(chunk)
        if not chunks or "timings" not in chunks[-1]:
            raise EngineError(f"llama-server did not answer (status {answer.status}): {chunks}")
        ids = tuple(token for chunk in chunks for token in chunk.get("tokens", ()))
        return Completion(ttft_s, chunks[-1]["timings"], ids)


@contextmanager
def serving(program: Path, model: Path, flags: Sequence[str], log_path: Path) -> Iterator[Server]:
    """Run a server of its own for this model. Raises `EngineError` when it does not start."""
    port = _free_port()
    command = [str(program), "--model", str(model), "--host", "127.0.0.1", "--port", str(port), "--offline", *flags]
    begun = time.monotonic()
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        while not _is_ready(port):
            if process.poll() is not None or time.monotonic() - begun > _START_S:
                raise EngineError(f"llama-server does not run: {log_path.read_text(errors='replace')[-2000:]}")
            time.sleep(0.01)
        yield Server(port, time.monotonic() - begun)
    finally:
        process.kill()  # asked nicely, it would wait for its open streams
        process.wait()


def _connection(port: int) -> HTTPConnection:
    return HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)


def _is_ready(port: int) -> bool:
    with closing(_connection(port)) as connection:
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
