"""Runs the server until Ctrl+C, and shows the browser where it is."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from chatapp.console import on_ending_signals
from chatapp.web.child import KILL_S, LEAVE_S
from chatapp.web.door import HOST, Door, address
from chatapp.web.running import find, only_one, tell
from chatapp.web.server import WebServer

TEXT_BROWSERS = {"www-browser", "links", "elinks", "lynx", "w3m"}
"""They would take this terminal, and run no scripts."""


class WebError(Exception):
    """The server cannot run; the message is one sentence for the user."""


def serve(arguments: Sequence[str], data_dir: Path, port: int, *, opens_browser: bool, ends_with_window: bool) -> None:
    """Print the page's address and serve it until Ctrl+C; `arguments` start the chat window's process.

    Where a server of this data folder runs already, its address is printed and opened. Raises `WebError`.
    """
    # What it logs is told by the page, or by the window itself.
    logging.getLogger("textual-serve").addHandler(logging.NullHandler())
    with only_one(data_dir) as is_only:
        if is_only:
            asyncio.run(_serve(arguments, data_dir, port, opens_browser, ends_with_window))
            return
    addresses = find(data_dir)
    if addresses is None:
        raise WebError("`chatapp web` runs already, but does not answer: try again in a moment, or end that one.")
    print(addresses[0], flush=True)
    print("`chatapp web` runs already: this is its address.", file=sys.stderr)
    if opens_browser:
        _open(addresses[1])


async def _serve(
    arguments: Sequence[str], data_dir: Path, port: int, opens_browser: bool, ends_with_window: bool
) -> None:
    listening = _listen(port)
    door = Door(listening.getsockname()[1])
    server = WebServer(arguments, door, ends_with_window=ends_with_window)
    # No access log: the secret is in the address.
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=LEAVE_S + 2 * KILL_S)
    on_ending_signals(server.over.set)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        tell(data_dir, door.port, door.token)
        print(door.url, flush=True)
        print("Open this address in a browser; Ctrl+C ends the server and the chat.", file=sys.stderr)
        if opens_browser:
            # A thread that does not hold up the end: some browsers return when they are closed.
            threading.Thread(target=_open, args=[address(door.port, door.code())], daemon=True).start()
        await server.over.wait()
    finally:
        await runner.cleanup()


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise WebError(f"Port {port} cannot be used ({reason}): name another with --port, or none.") from error


def _open(url: str) -> None:
    try:
        browser = webbrowser.get()
        is_open = getattr(browser, "name", "") not in TEXT_BROWSERS and browser.open(url)
    except webbrowser.Error:
        is_open = False
    if not is_open:
        print("No browser could be opened here: open the address yourself.", file=sys.stderr)
