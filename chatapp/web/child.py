"""The chat window's process behind one browser window."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Sequence

from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

from chatapp.config import BROWSER_DRIVER
from chatapp.safe import clean
from chatapp.texts import tr, tr_later

LEAVE_S = 10.0
"""How long the window may take to store a running answer and end its engine."""
KILL_S = 3.0
"""How long it may take to end when it is told by a signal."""
NOT_OPENED = tr_later("Only addresses of web pages are opened from here.")
_MAX_WORDS = 65_536
_LAST_S = 0.5
_POLL_S = 0.02
_OTHER_TERMINAL = {"TMUX", "STY", "COLORFGBG", "LINES"}


class Child(AppService):
    """One process; `run` of textual-serve carries its packets.

    Differs from textual-serve's own: no shell, a session of its own (Ctrl+C is for the server, which then tells the
    window to leave), an end with a deadline, only web addresses are opened, and what it says on stderr is kept for
    the page instead of being written to the terminal as it is.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        write_bytes: Callable[[bytes], Awaitable[None]],
        write_str: Callable[[str], Awaitable[None]],
        downloads: DownloadManager,
        download_path: str,
        leave_s: float = LEAVE_S,
    ) -> None:
        super().__init__(
            "", write_bytes=write_bytes, write_str=self._to_page, close=_nothing, download_manager=downloads
        )
        self._write_str = write_str
        self._arguments = arguments
        self._download_path = download_path
        self._leave_s = leave_s
        self._stderr = bytearray()
        self._listening: asyncio.Task[None] | None = None
        self._is_leaving = False

    def _build_environment(self, width: int = 80, height: int = 24) -> dict[str, str]:
        environment = super()._build_environment(width, height)
        # What is told of the terminal the server runs in does not hold for the one in the page.
        kept = {name: value for name, value in environment.items() if name not in _OTHER_TERMINAL}
        return kept | {"TEXTUAL_DRIVER": BROWSER_DRIVER, "TERM": "xterm-256color", "COLORTERM": "truecolor"}

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        environment = self._build_environment(width, height)
        self._process = process = await asyncio.create_subprocess_exec(
            *self._arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, start_new_session=True
        )
        assert process.stdin
        assert process.stderr
        self._stdin = process.stdin
        self._listening = asyncio.create_task(self._listen(process.stderr))
        process.stderr = asyncio.StreamReader()
        process.stderr.feed_eof()
        return process

    async def _listen(self, stderr: asyncio.StreamReader) -> None:
        while data := await stderr.read(_MAX_WORDS):
            self._stderr += data
            del self._stderr[:-_MAX_WORDS]

    async def ended(self) -> int:
        """Wait until the process is gone; return its exit code."""
        assert self._process
        assert self._listening
        code = await _exit_code(self._process)
        await _finish(self._listening)
        return code

    @property
    def words(self) -> str:
        """What it wrote on stderr, the end of it if that is long; harmless to a terminal."""
        return clean(self._stderr.decode(errors="replace"))

    async def stop(self) -> None:
        """Tell the window to leave, and wait until its process is gone; it ends within `leave_s` and `KILL_S`."""
        process = self._process
        if process is None:
            return
        self._is_leaving = True
        await self._download_manager.cancel_app_downloads(app_service_id=self.app_service_id)
        await self.send_meta({"type": "quit"})
        for end, patience_s in ((process.terminate, self._leave_s), (process.kill, KILL_S)):
            if await _is_over(process, patience_s):
                break
            end()
        await self.ended()
        if self._task:
            await _finish(self._task)

    async def on_data(self, payload: bytes) -> None:
        """Pass on what the window paints; while it leaves, it must not wait for a browser that is gone."""
        if not self._is_leaving:
            try:
                await super().on_data(payload)
            except ConnectionError:
                self._is_leaving = True

    async def _to_page(self, text: str) -> None:
        """Pass on what the window asks of the browser: to take a file, or to open the address of a web page."""
        verb, value = json.loads(text)
        if verb == "deliver_file_start":
            verb, value = "open_url", {"url": self._download_path + value, "new_tab": True}
        elif verb == "open_url" and not str(value["url"]).lower().startswith(("http://", "https://")):
            verb, value = "told", tr(NOT_OPENED)
        try:
            await self._write_str(json.dumps([verb, value]))
        except ConnectionError:
            self._is_leaving = True


async def _is_over(process: Process, patience_s: float) -> bool:
    try:
        async with asyncio.timeout(patience_s):
            await _exit_code(process)
    except TimeoutError:
        return False
    return True


async def _exit_code(process: Process) -> int:
    # `Process.wait` may wait for its pipes too, and a program that the window started may hold them for hours.
    while process.returncode is None:  # noqa: ASYNC110 - it has no event of its own
        await asyncio.sleep(_POLL_S)
    return process.returncode


async def _finish(reading: asyncio.Task[None]) -> None:
    """Let a reader take what is in its pipe, but not wait for others who hold that."""
    await asyncio.wait({reading}, timeout=_LAST_S)
    reading.cancel()


async def _nothing() -> None:
    """The page is told of the end by whoever waits for it, with a sentence."""
