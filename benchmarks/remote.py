"""What a remote engine adds to the wire: `python -m benchmarks.remote` against a server in another process.

Two figures: time a token beyond reading the same bytes from a raw socket, and many requests at once over one pool. The
server sends token by token and does nothing else, so what is measured is our own work: parsing, events, deadlines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import sys
import time
from multiprocessing.connection import Connection

from models.engine import Entry, Failed, Finished, Piece, Prompt, Sampling
from models.remote import RemoteEngine
from models.remote_profile import RemoteProfile

LIMIT_MS = 0.3
PROMPT = Prompt((Entry("system", "Be brief."), Entry("user", "Count.")))


def _event(text: str | None, finish: str | None = None) -> bytes:
    """An event of the size that servers send."""
    choice = {"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": finish}
    whole = {"id": "chatcmpl-" + "x" * 32, "created": 1, "model": "m", "object": "chat.completion.chunk"}
    return b"data: " + json.dumps({"choices": [choice], **whole}).encode() + b"\n\n"


def _stream(n_tokens: int) -> list[bytes]:
    events = [_event(" word") for _ in range(n_tokens)]
    usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": n_tokens}}
    return [*events, _event(None, "stop"), b"data: " + json.dumps(usage).encode() + b"\n\n", b"data: [DONE]\n\n"]


def _serve(n_tokens: int, parent: Connection) -> None:
    """A server that answers each chat request with the same stream, a chunk an event."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = [b"%x\r\n%s\r\n" % (len(event), event) for event in _stream(n_tokens)] + [b"0\r\n\r\n"]
    models = b'{"data": [{"id": "m", "max_model_len": 100000}]}'

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                lines = [line for line in request.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                length = int(lines[0].split(b":")[1]) if lines else 0
                await reader.readexactly(length)
                if b"/chat/completions" in request:
                    writer.write(head)
                    for chunk in chunks:
                        writer.write(chunk)
                        await asyncio.sleep(0.0002)  # as they come from a model: one by one
                else:
                    found = b"/models" in request
                    status, body = (b"200 OK", models) if found else (b"404 Not Found", b"{}")
                    fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
                    writer.write(b"HTTP/1.1 " + status + b"\r\n" + fields + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        parent.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def _raw_s(port: int) -> float:
    """Seconds to read one stream from a socket, unparsed."""
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        started = time.perf_counter()
        connection.sendall(request)
        tail = b""
        while not tail.endswith(b"0\r\n\r\n"):
            received = connection.recv(65_536)
            if not received:
                raise SystemExit("the server hung up")
            tail = (tail + received)[-16:]
        return time.perf_counter() - started


async def _turn_s(engine: RemoteEngine, n_tokens: int) -> float:
    started = time.perf_counter()
    n_pieces, is_whole = 0, False
    async for event in engine.generate(PROMPT, Sampling()):
        n_pieces += isinstance(event, Piece)
        is_whole = is_whole or isinstance(event, Finished)
        if isinstance(event, Failed):
            raise SystemExit(event.message)
    if n_pieces != n_tokens or not is_whole:
        raise SystemExit(f"{n_pieces} of {n_tokens} tokens came")
    return time.perf_counter() - started


async def _measure(port: int, n_tokens: int, n_runs: int, n_rows: int) -> dict[str, float]:
    profile = RemoteProfile("bench", f"http://127.0.0.1:{port}/v1", n_parallel=n_rows)
    engine = RemoteEngine(profile)
    async for _ in engine.load():
        pass
    await _turn_s(engine, n_tokens)
    turns, raws, cpus = [], [], []
    for _ in range(n_runs):
        raws.append(await asyncio.to_thread(_raw_s, port))
        cpu = time.process_time()
        turns.append(await _turn_s(engine, n_tokens))
        cpus.append(time.process_time() - cpu)
    started = time.perf_counter()
    await asyncio.gather(*(_turn_s(engine, n_tokens) for _ in range(n_rows)))
    parallel_s = time.perf_counter() - started
    await engine.close()
    turn, raw = statistics.median(turns), statistics.median(raws)
    return {
        "tokens": n_tokens,
        "raw_ms_per_token": raw / n_tokens * 1000,
        "engine_ms_per_token": turn / n_tokens * 1000,
        "overhead_ms_per_token": (turn - raw) / n_tokens * 1000,
        "cpu_ms_per_token": statistics.median(cpus) / n_tokens * 1000,
        "parallel_rows": n_rows,
        "parallel_s": parallel_s,
        "parallel_tokens_per_s": n_rows * n_tokens / parallel_s,
    }


def main() -> int:
    """Print the figures as JSON; 1 if a token takes more than the limit, by the clock or of the processor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--rows", type=int, default=64)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=_serve, args=(options.tokens, there), daemon=True)
    server.start()
    try:
        found = asyncio.run(_measure(here.recv(), options.tokens, options.runs, options.rows))
    finally:
        server.kill()
        server.join()
    print(json.dumps({key: round(value, 4) for key, value in found.items()}, indent=1))
    return 0 if max(found["overhead_ms_per_token"], found["cpu_ms_per_token"]) < LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
