"""Runs the server until Ctrl+C: listens, loads the model, and ends so that no answer is left without an end."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from dataclasses import dataclass

import click
from aiohttp import web

from chatapp.config import Settings
from chatapp.console import Narrator, on_ending_signals
from chatapp.engines import make_engine
from chatapp.oneshot import load
from chatapp.serve.chat import Chat, Served
from chatapp.serve.guard import Guard, is_loopback
from chatapp.serve.line import Line
from chatapp.serve.secret import Secret
from chatapp.serve.server import Server
from models.engine import Engine

SHUT_S = 2.0
"""How long connections may take to close when everything was sent."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How to serve.

    `name` is what clients call the model, None: its own. `grace_s` is how long running answers have when the server is
    ended.
    """

    host: str
    port: int
    secret: Secret
    name: str | None = None
    most_waiting: int = 32
    grace_s: float = 10.0


async def serve(settings: Settings, serving: Serving) -> int:
    """Serve until a signal; return the exit code. Raises `ClickException` and `EngineError` where it cannot run."""
    # Nothing that a client sent may reach a log, and the library's would have it.
    logging.getLogger("aiohttp").addHandler(logging.NullHandler())
    logging.getLogger("aiohttp").propagate = False
    engine = make_engine(settings)
    listening = _listen(serving.host, serving.port)
    line = Line(engine, most_waiting=serving.most_waiting)
    server = Server(Guard(serving.secret.key, serving.host), Chat(line), created=int(time.time()))
    runner = server.runner(SHUT_S)
    over, hurry = asyncio.Event(), asyncio.Event()

    def asked() -> None:
        (hurry if over.is_set() else over).set()

    on_ending_signals(asked)
    await runner.setup()
    try:
        site = web.SockSite(runner, listening)
        await site.start()
        _introduce(listening, serving)
        if await _is_loaded(settings, serving, engine, server, over):
            await over.wait()
        server.is_ending = True
        await site.stop()
        await line.close(serving.grace_s, hurry)
    finally:
        await runner.cleanup()
        await engine.close()
        await line.settle()
    return 0


async def _is_loaded(settings: Settings, serving: Serving, engine: Engine, server: Server, over: asyncio.Event) -> bool:
    """Load the model; False when the server is to end before it is there."""
    narrator = Narrator()
    loading = asyncio.create_task(load(settings, engine, narrator))
    ending = asyncio.create_task(over.wait())
    await asyncio.wait({loading, ending}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if not loading.done():
        loading.cancel()
        await asyncio.wait({loading})
        return False
    sampling, info = loading.result(), engine.info
    assert info, "a loaded engine says what it has"
    server.served = Served(serving.name or info.name, info, sampling)
    narrator.notice(f"Ready: {server.served.name}, {info.n_ctx:,} tokens of context. Ctrl+C ends it.")
    if info.kv_note:
        narrator.notice(f"KV is not kept on disk: {info.kv_note}.")
    return True


def _introduce(listening: socket.socket, serving: Serving) -> None:
    """Print the address on stdout, and on stderr the key if nobody knows it yet."""
    host, port = listening.getsockname()[:2]
    print(f"http://{f'[{host}]' if ':' in host else host}:{port}/v1", flush=True)
    narrator = Narrator()
    if serving.secret.is_new:
        narrator.notice(f"API key: {serving.secret.key}")
    if serving.secret.is_readable:
        narrator.notice("Other users of this machine may read the file of the key: `chmod 600` closes it.")
    if not is_loopback(serving.host):
        narrator.notice("Other machines can connect, and what they send is not encrypted: use a network you trust.")


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        return socket.create_server((str(address[0]), port), family=socket.AddressFamily(family))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise click.ClickException(
            f"{host} with port {port} cannot be used ({reason}): name another with --host or --port (0: a free one)."
        ) from error
