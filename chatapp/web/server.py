"""The server on this machine behind `chatapp web`: one page, one browser window at a time."""

from __future__ import annotations

import asyncio
import html
import json
import string
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import textual_serve
from aiohttp import WSMsgType, web
from textual_serve.download_manager import DownloadManager

from chatapp.texts import language, tr, tr_later
from chatapp.web.child import LEAVE_S, Child
from chatapp.web.door import COOKIE, ENTRANCE, ONCE, SOCKET, Door

BUSY = tr_later("The chat is open in another browser window: close that one first.")
OPENING = tr_later("The chat is being opened.")
AGAIN = tr_later("Open again")
CLOSED = tr_later("The chat was closed.")
STOPPED = tr_later("chatapp was ended.")
FAILED = tr_later("The chat broke off: what it said is in the terminal that `chatapp web` runs in.")
ERROR = "Error: "
"""What the program's sentence begins with when it cannot go on."""
BROKEN = tr_later("The connection to chatapp broke off: if it was ended, start it again.")
MAX_MESSAGE_BYTES = 64 << 20
"""Longest paste, as JSON."""
HEARTBEAT_S = 15.0
CLOSE_S = 2.0
"""How long a browser may take to agree that a connection ends."""
MAX_CELLS = 1000

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Nothing from outside, nothing to outside, nothing around it. Styles are set by the terminal's own script."""

_STATIC = Path(textual_serve.__file__).parent / "static"
_OWN = {"page.js": "text/javascript", "page.css": "text/css", "chatapp.svg": "image/svg+xml"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Waits:
    """How long to wait, in seconds.

    `reload_s`: for the window of before, when a page comes; browsers let go of one page only when they have the next.
    `leave_s`: for an answer to be stored. `first_s` and `linger_s`: for a first and for a next page, where the server
    ends with its window.
    """

    reload_s: float = 2.0
    leave_s: float = LEAVE_S
    first_s: float = 60.0
    linger_s: float = 5.0


class WebServer:
    """Serves the page to whoever the door admits, and starts the chat window's process when the page connects."""

    def __init__(
        self, arguments: Sequence[str], door: Door, *, ends_with_window: bool = False, waits: Waits = Waits()
    ) -> None:
        self.over = asyncio.Event()
        """The server is to end."""
        self._arguments = arguments
        self._door = door
        self._waits = waits
        self._downloads = DownloadManager()
        self._seat = asyncio.Lock()
        self._n_waiting = 0
        self._is_leaving = False
        self._ends_with_window = ends_with_window
        self._timer: asyncio.TimerHandle | None = None
        self._linger(waits.first_s)

    def application(self) -> web.Application:
        """Return the pages behind the door."""
        room = self._door.room
        application = web.Application(middlewares=[self._guard])
        application.on_response_prepare.append(_add_headers)
        application.on_shutdown.append(self._shut_down)
        application.add_routes(
            [
                web.get(ENTRANCE, self._enter),
                web.get(ONCE, self._code),
                web.get(room, self._page),
                web.get(room + SOCKET, self._socket),
                web.get(f"{room}download/{{key}}", self._download),
                web.get(f"{room}own/{{name}}", self._own),
                web.static(f"{room}static", _STATIC),
            ]
        )
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        values = {name: request.headers.getall(name, []) for name in ("Host", "Origin")}
        token, cookie = request.query.get("token", ""), request.cookies.get(COOKIE, "")
        if refusal := self._door.refusal(request.path, values, token, cookie):
            return web.Response(status=403, text=tr(refusal) + "\n")
        return await handler(request)

    async def _enter(self, _: web.Request) -> web.Response:
        response = web.Response(status=303, headers={"Location": self._door.room})
        response.set_cookie(COOKIE, self._door.token, path=self._door.room, httponly=True, samesite="Lax")
        return response

    async def _code(self, _: web.Request) -> web.Response:
        return web.Response(text=self._door.code())

    async def _page(self, request: web.Request) -> web.Response:
        socket = f"ws://{request.headers['Host']}{self._door.room}{SOCKET}"
        values = {"socket": socket, "opening": tr(OPENING), "again": tr(AGAIN), "broken": tr(BROKEN)}
        values["language"] = language().replace("_", "-")
        page = string.Template(_file("page.html").decode())
        text = page.substitute({name: html.escape(value) for name, value in values.items()})
        return web.Response(text=text, content_type="text/html")

    async def _own(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in _OWN:
            raise web.HTTPNotFound
        return web.Response(body=_file(name), content_type=_OWN[name], charset="utf-8")

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(heartbeat=HEARTBEAT_S, max_msg_size=MAX_MESSAGE_BYTES, timeout=CLOSE_S)
        await socket.prepare(request)
        self._n_waiting += 1
        try:
            has_seat = await self._take_seat()
        finally:
            self._n_waiting -= 1
        if not has_seat:
            await _say(socket, tr(BUSY))
            return socket
        try:
            self._is_leaving = False
            if self._timer:
                self._timer.cancel()
            await self._chat(socket, _cells(request, "width", 80), _cells(request, "height", 24))
        finally:
            self._seat.release()
            if not self._n_waiting:
                self._linger(self._waits.linger_s)
        return socket

    async def _take_seat(self) -> bool:
        """Wait for the window of before as long as it takes to end, but not for one that stays."""
        try:
            async with asyncio.timeout(self._waits.reload_s):
                await self._seat.acquire()
        except TimeoutError:
            if not self._is_leaving:
                return False
            await self._seat.acquire()
        return True

    async def _chat(self, socket: web.WebSocketResponse, width: int, height: int) -> None:
        if self.over.is_set():
            await _say(socket, tr(STOPPED))
            return
        child = Child(
            self._arguments,
            write_bytes=socket.send_bytes,
            write_str=socket.send_str,
            downloads=self._downloads,
            download_path=f"{self._door.room}download/",
            leave_s=self._waits.leave_s,
        )
        await child.start(width, height)
        reading = asyncio.create_task(_pass_on(socket, child))
        ending = asyncio.create_task(child.ended())
        stopping = asyncio.create_task(self.over.wait())
        try:
            await asyncio.wait({reading, ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
            self._is_leaving = True
            if ending.done():
                await _say(socket, _why(ending.result(), child.words))
            elif stopping.done():
                await _say(socket, tr(STOPPED))
        finally:
            for task in (reading, stopping):
                task.cancel()
            await child.stop()
            await asyncio.wait({reading, ending, stopping})
            # The window has no terminal of its own to say it in.
            print(child.words, end="", file=sys.stderr, flush=True)
        if not reading.cancelled():
            reading.result()

    async def _download(self, request: web.Request) -> web.StreamResponse:
        key = request.match_info["key"]
        try:
            download = await self._downloads.get_download_metadata(key)
        except KeyError:
            raise web.HTTPNotFound(text=tr("This file is not there any more: export it again.") + "\n") from None
        response = web.StreamResponse()
        # Never shown in place: what is in it would be a page of ours.
        response.headers["Content-Type"] = "application/octet-stream"
        response.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(download.file_name, safe='')}"
        await response.prepare(request)
        async for chunk in self._downloads.download(key):
            await response.write(chunk)
        await response.write_eof()
        return response

    async def _shut_down(self, _: web.Application) -> None:
        self.over.set()
        if self._timer:
            self._timer.cancel()

    def _linger(self, wait_s: float) -> None:
        """End after a while without a window, where that is wanted."""
        if self._ends_with_window:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.over.set)


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


async def _say(socket: web.WebSocketResponse, sentence: str) -> None:
    """Let the page say a sentence in place of the window."""
    try:
        await socket.send_str(json.dumps(["said", sentence]))
    except ConnectionError:
        pass  # the page is gone already
    await socket.close()


def _why(code: int, words: str) -> str:
    """Return what the page says of a window that ended by itself."""
    if code == 0:
        return tr(CLOSED)
    errors = [line for line in words.splitlines() if line.startswith(ERROR)]
    return errors[-1].removeprefix(ERROR) if errors else tr(FAILED)


async def _pass_on(socket: web.WebSocketResponse, child: Child) -> None:
    """Hand what the page sends to the window until the page is gone; what is not understood is left out."""
    async for message in socket:
        if message.type is not WSMsgType.TEXT:
            continue
        try:
            envelope = json.loads(message.data)
        except (ValueError, RecursionError):
            continue
        match envelope:
            case ["stdin", str(text)]:
                await child.send_bytes(text.encode(errors="replace"))
            case ["resize", {"width": int(width), "height": int(height)}]:
                await child.set_terminal_size(_clamped(width), _clamped(height))
            case ["ping", str(sent)]:
                await socket.send_json(["pong", sent])
            case ["blur"]:
                await child.blur()
            case ["focus"]:
                await child.focus()


def _cells(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, "")
    return _clamped(int(text)) if text.isascii() and text.isdecimal() and len(text) < 10 else default


def _clamped(n: int) -> int:
    return max(1, min(n, MAX_CELLS))


def _file(name: str) -> bytes:
    return files("chatapp.web").joinpath(name).read_bytes()
