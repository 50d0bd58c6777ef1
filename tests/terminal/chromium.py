"""A headless browser for tests: Chromium over its own debugging protocol, without a driver in between."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pyte

PATIENCE_S = 60.0
_POLL_S = 0.05


class Page:
    """One tab; everything it is sent by a websocket is read along as the screen of a terminal."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, width: int = 400, height: int = 200) -> None:
        self.requested: list[str] = []
        """Addresses of everything the page asked for, websockets included."""
        self.told: list[str] = []
        """What it wrote to its console as warnings or errors, policy violations included."""
        self._socket = socket
        self._n_sent = 0
        self._n_terminals = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self._screen)
        self._listening = asyncio.create_task(self._listen())

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Do one thing by its name in the protocol; return the answer."""
        self._n_sent += 1
        answer = self._answers[self._n_sent] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._n_sent, "method": method, "params": parameters})
        async with asyncio.timeout(PATIENCE_S):
            result: dict[str, Any] = await answer
        return result

    async def value(self, script: str) -> Any:
        """Return what a script evaluates to in the page."""
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"].get("value")

    async def open(self, url: str) -> None:
        """Go to an address."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)

    async def type(self, text: str) -> None:
        """Type characters as they are."""
        for character in text:
            await self.call("Input.dispatchKeyEvent", type="keyDown", text=character, key=character)
            await self.call("Input.dispatchKeyEvent", type="keyUp", key=character)

    async def press_enter(self) -> None:
        """Press the enter key."""
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    async def picture(self) -> bytes:
        """Return what the tab shows, as PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot"))["data"])

    async def close(self) -> None:
        """Close the tab."""
        await self.call("Page.close")

    def screen(self) -> str:
        """What the terminal in the page was sent to show."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    async def wait_for(self, text: str) -> None:
        """Wait until the terminal in the page shows a text."""
        await self._wait(lambda: text in self.screen(), text)

    async def reload(self) -> None:
        """Bring the tab to the front and open its page anew; what the terminal showed counts no more."""
        n_before = self._n_terminals
        await self.call("Page.bringToFront")
        await self.call("Page.reload")
        await self._wait(lambda: self._n_terminals > n_before, "a new terminal")

    async def wait_until(self, script: str) -> None:
        """Wait until a script evaluates to something true in the page."""
        async with asyncio.timeout(PATIENCE_S):
            while not await self.value(script):  # noqa: ASYNC110 - another program's state has no event
                await asyncio.sleep(_POLL_S)

    async def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not is_so():  # noqa: ASYNC110 - another program's state has no event
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise AssertionError(f"never saw {what!r}; the screen is\n{self.screen()}\n{self.told}") from None

    async def _listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if answer := self._answers.pop(told.get("id"), None):
                if not answer.done():
                    answer.set_result(told.get("result", {}))
                continue
            self._take(told.get("method", ""), told.get("params", {}))

    def _take(self, event: str, told: dict[str, Any]) -> None:
        match event:
            case "Network.requestWillBeSent":
                self.requested.append(told["request"]["url"])
            case "Network.webSocketCreated":
                self.requested.append(told["url"])
                self._screen.reset()
                self._n_terminals += 1
            case "Network.webSocketFrameReceived" if told["response"]["opcode"] == 2:
                self._stream.feed(base64.b64decode(told["response"]["payloadData"]))
            case "Log.entryAdded" if told["entry"]["level"] in ("warning", "error"):
                self.told.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
            case "Runtime.exceptionThrown":
                self.told.append(str(told["exceptionDetails"]))


class Browser:
    """A running browser."""

    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self._session = session
        self._address = address

    async def page(self) -> Page:
        """Return a new, empty tab."""
        async with self._session.put(f"{self._address}/json/new?about:blank") as response:
            told = await response.json()
        return Page(await self._session.ws_connect(told["webSocketDebuggerUrl"], max_msg_size=0))


@asynccontextmanager
async def browser(program: str, profile: Path) -> AsyncIterator[Browser]:
    """Run a browser with an empty profile for the block."""
    process = await asyncio.create_subprocess_exec(
        program,
        "--headless=new",
        "--no-sandbox",  # the tests may run as root, and the page is our own
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--no-first-run",
        "--window-size=1200,800",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port = await _port(process, profile / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session:
            yield Browser(session, f"http://127.0.0.1:{port}")
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _port(process: asyncio.subprocess.Process, path: Path) -> int:
    async with asyncio.timeout(PATIENCE_S):
        while not (path.exists() and path.read_text().count("\n")):  # noqa: ASYNC240 - a small local file
            assert process.returncode is None, f"the browser ended with code {process.returncode}"
            await asyncio.sleep(_POLL_S)
    return int(path.read_text().splitlines()[0])  # noqa: ASYNC240 - the same
