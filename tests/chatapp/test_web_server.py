import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from chatapp.texts import use
from chatapp.web.child import NOT_OPENED
from chatapp.web.door import NOT_LET_IN, OTHER_HOST, OTHER_ORIGIN
from chatapp.web.server import BUSY, CLOSED, FAILED, STOPPED, Waits
from sessions.store import Store
from tests.chatapp.web_client import Served, chat, is_alive, served

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tests start the window through a shell")

STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdout.buffer.write(b"__GANGLION__\\n" + b"D" + (20).to_bytes(4, "big") + b"I never leave.      ")
sys.stdout.flush()
while True: time.sleep(1)
"""
GIVING = """
import io
from textual.app import App
class Giving(App):
    def on_mount(self):
        self.deliver_text(io.StringIO("한 줄"), save_filename="a b.html", mime_type="text/html")
        self.open_url("https://example.org/")
        self.open_url("javascript:alert(1)")
    def action_leave(self):
        self.exit()
Giving().run()
"""
SPAWNING = """
import os, subprocess, sys
from textual.app import App
from textual.widgets import Label
class Spawning(App):
    def compose(self):
        yield Label("It stands.")
    def on_mount(self):
        other = subprocess.Popen(["sh", "-c", "echo noise; echo noise >&2; exec sleep 600"])
        with open(sys.argv[1], "w") as file:
            file.write(str(other.pid))
    def action_leave(self):
        self.exit()
Spawning().run()
"""


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Served]:
    """A server over the fake engine, the cookie not fetched yet."""
    async with served(chat(tmp_path), tmp_path / "pids") as running:
        yield running


async def test_without_the_secret_nothing_is_served(page: Served) -> None:
    """Every address answers 403 with one sentence, and no process is started."""
    paths = ["", "?token=wrong", "once", "favicon.ico", *(page.door.room[1:] + end for end in ROOMS)]
    for path in paths:
        async with page.client.get(f"{page.base}/{path}") as response:
            assert (response.status, await response.text()) == (403, NOT_LET_IN + "\n")
            assert response.headers.getall("Set-Cookie", []) == []
    with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
        await page.window()
    assert page.pids() == []


ROOMS = ["", "socket", "download/x", "own/page.js", "static/js/textual.js", "nothing"]


async def test_the_secret_leaves_the_address(page: Served) -> None:
    """It becomes a cookie of the room alone, that no script reads, and the page's address holds nothing."""
    async with page.client.get(page.door.url, allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (303, page.door.room)
        attributes = set(response.headers["Set-Cookie"].split("; ")[1:])
    assert attributes == {"HttpOnly", f"Path={page.door.room}", "SameSite=Lax"}
    async with page.client.get(page.room) as response:
        assert (response.status, page.door.token in await response.text()) == (200, False)
        assert response.headers["Referrer-Policy"] == "no-referrer"
        assert response.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")


async def test_the_page_speaks_the_readers_language(page: Served) -> None:
    """The page and a refusal are in Korean, and the page says which language that is."""
    await page.enter()
    use("ko_KR")
    try:
        async with page.client.get(page.room) as response:
            text = await response.text()
        async with page.client.get(page.door.url.replace("token=", "token=x")) as response:
            refusal = await response.text()
    finally:
        use("en")
    assert '<html lang="ko-KR">' in text
    assert "다시 열기" in text
    assert "주소" in refusal
    assert NOT_LET_IN not in refusal


async def test_the_page_names_nothing_outside(page: Served) -> None:
    """Its own files refer to this server only, and all that they name is there."""
    await page.enter()
    texts = {}
    for name in ("", "own/page.css", "own/page.js", "own/chatapp.svg", "static/css/xterm.css"):
        async with page.client.get(page.room + name) as response:
            assert response.status == 200
            texts[name] = await response.text()
    own = "".join(text for name, text in texts.items() if not name.startswith("static"))
    addresses = set(re.findall(r"(?:https?|wss?)?://[^\s\"']+", own))
    assert addresses == {f"ws://127.0.0.1:{page.door.port}{page.door.room}socket", "http://www.w3.org/2000/svg"}
    named = re.findall(r'(?:href|src)="([^"]+)"', texts[""])
    named += [name.removeprefix("../") for name in re.findall(r'url\("([^"]+)"\)', texts["own/page.css"])]
    assert len(named) == 7
    for name in named:
        async with page.client.get(page.room + name) as response:
            assert response.status == 200


async def test_other_names_and_pages_are_refused(page: Served) -> None:
    """With the cookie, but under another name or from another page, nothing is served."""
    await page.enter()
    for headers, sentence in (
        ({"Host": "evil.example"}, OTHER_HOST),
        ({"Origin": "http://evil.example"}, OTHER_ORIGIN),
    ):
        async with page.client.get(page.room, headers=headers) as response:
            assert (response.status, await response.text()) == (403, sentence + "\n")
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await page.client.ws_connect(f"{page.room}socket", headers=page.origin | headers)
    with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
        await page.client.ws_connect(f"{page.room}socket")
    assert page.pids() == []


async def test_only_what_is_meant_to_be_served_is_there(page: Served) -> None:
    """No folder is listed and no way leads out of it."""
    await page.enter()
    for name in ("own/server.py", "own/..%2fserver.py", "static/", "static/../server.py", "static/%2e%2e/server.py"):
        async with page.client.get(URL(page.room + name, encoded=True)) as response:
            assert response.status in (403, 404)


async def test_one_chats_in_the_page(page: Served) -> None:
    """The window takes the page's size, its keys, and shows the answer; leaving it is told."""
    await page.enter()
    window = await page.window()
    await window.wait_for("Message")
    await window.socket.send_json(["ping", "12"])
    assert await window.told("pong") == "12"
    for nonsense in ("", "[", "{}", "[]", '["stdin", 1]', '["resize", {"width": "x"}]', "[" * 100_000):
        await window.socket.send_str(nonsense)
    await window.type("hello there")
    await window.wait_for("hello there")
    await window.type("\r")
    await window.wait_for("You said")
    await window.type("\x11")
    assert await window.told("said") == CLOSED
    assert [is_alive(pid) for pid in page.pids()] == [False]


async def test_the_window_follows_the_size_of_the_page(page: Served) -> None:
    """A page that becomes too small says so."""
    await page.enter()
    window = await page.window()
    await window.wait_for("Message")
    await window.socket.send_json(["resize", {"width": 30, "height": 8}])
    await window.wait_for("make it larger")


async def test_a_closed_page_loses_nothing(tmp_path: Path) -> None:
    """An answer that is being written when the page goes away is stopped and stored."""
    async with served(chat(tmp_path, engine="fake:20"), tmp_path / "pids", waits=Waits(reload_s=0.0)) as page:
        await page.enter()
        window = await page.window()
        await window.wait_for("Message")
        await window.type("Tell me everything about it")
        await window.type("\r")
        await window.wait_for("You said")
        await window.close()
        again = await page.window()  # waits for the process of before
        await again.wait_for("Message")
        first, second = page.pids()
        assert (is_alive(first), is_alive(second)) == (False, True)
        with closing(Store(tmp_path / "data")) as store:
            (summary,) = store.summaries()
            last = store.messages(summary.session.id)[-1]
        assert (last.role, last.status) == ("assistant", "stopped")
        assert "You said" in last.text


async def test_a_second_window_is_told_so(tmp_path: Path) -> None:
    """It starts no second process, and works once the first one is closed."""
    async with served(chat(tmp_path), tmp_path / "pids", waits=Waits(reload_s=0.05)) as page:
        await page.enter()
        first = await page.window()
        await first.wait_for("Message")
        second = await page.window()
        assert await second.told("said") == BUSY
        assert len(page.pids()) == 1
        await first.type("still here")
        await first.wait_for("still here")
        await first.close()
        third = await page.window()
        await third.wait_for("still here")  # the draft was kept
        assert [is_alive(pid) for pid in page.pids()] == [False, True]


async def test_why_the_window_cannot_open_is_told(tmp_path: Path) -> None:
    """The page shows the sentence that a terminal would show, and may try again."""
    async with served(chat(tmp_path, "--session", "nowhere"), tmp_path / "pids") as page:
        await page.enter()
        for _ in range(2):
            window = await page.window()
            said = str(await window.told("said"))
            assert ("nowhere" in said, said.startswith("Error")) == (True, False)


async def test_a_window_that_breaks_off_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page says where to look, and there stands what the window said, harmless."""
    script = "import sys; print('Odd \\x1b]0;title', file=sys.stderr); sys.exit(3)"
    async with served([sys.executable, "-c", script], tmp_path / "pids") as page:
        await page.enter()
        window = await page.window()
        assert await window.told("said") == FAILED
        while (await window.socket.receive()).type is not aiohttp.WSMsgType.CLOSED:
            pass
    err = capsys.readouterr().err
    assert ("Odd" in err, "\x1b" in err) == (True, False)


async def test_a_window_that_does_not_leave_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs holds up neither the next page nor the end of the server."""
    monkeypatch.setattr("chatapp.web.child.KILL_S", 0.05)
    arguments = [sys.executable, "-c", STUBBORN]
    async with served(arguments, tmp_path / "pids", waits=Waits(reload_s=0.0, leave_s=0.05)) as page:
        await page.enter()
        for _ in range(2):
            window = await page.window()
            await window.wait_for("I never leave")
            await window.close()
        page.server.over.set()
    assert [is_alive(pid) for pid in page.pids()] == [False, False]


async def test_the_end_of_the_server_is_told(page: Served) -> None:
    """The page says that chatapp was ended, and its process is gone."""
    await page.enter()
    window = await page.window()
    await window.wait_for("Message")
    page.server.over.set()
    assert await window.told("said") == STOPPED
    late = await page.window()
    assert await late.told("said") == STOPPED
    assert [is_alive(pid) for pid in page.pids()] == [False]


async def test_the_server_ends_with_its_window_where_that_is_wanted(tmp_path: Path) -> None:
    """A launcher's server has no terminal to be ended from."""
    waits = Waits(linger_s=0.0)
    async with served(chat(tmp_path), tmp_path / "pids", waits=waits, ends_with_window=True) as page:
        await page.enter()
        window = await page.window()
        await window.wait_for("Message")
        assert not page.server.over.is_set()
        await window.close()
        await page.server.over.wait()


async def test_the_server_ends_where_no_window_ever_opens(tmp_path: Path) -> None:
    """A browser that does not start leaves no server behind."""
    waits = Waits(first_s=0.0)
    async with served(chat(tmp_path), tmp_path / "pids", waits=waits, ends_with_window=True) as page:
        await page.server.over.wait()


async def test_files_and_addresses_reach_the_browser(tmp_path: Path) -> None:
    """A file is given as one to keep, never as a page; of addresses only those of web pages are opened."""
    async with served([sys.executable, "-c", GIVING], tmp_path / "pids") as page:
        await page.enter()
        window = await page.window()
        opened = [await window.told("open_url") for _ in range(2)]
        assert await window.told("told") == NOT_OPENED
        file, address = sorted(json.dumps(value) for value in opened)
        assert "https://example.org/" in file + address
        path = next(value["url"] for value in opened if isinstance(value, dict) and "download" in value["url"])
        async with page.client.get(page.base + path) as response:
            assert (response.status, await response.text()) == (200, "한 줄")
            assert response.headers["Content-Type"] == "application/octet-stream"
            assert response.headers["Content-Disposition"] == "attachment; filename*=UTF-8''a%20b.html"
        async with page.client.get(page.base + path) as response:
            assert response.status == 404


async def test_a_program_started_from_the_window_is_not_in_the_way(tmp_path: Path) -> None:
    """What it writes does not reach the page, and the window's end does not wait for it."""
    async with served([sys.executable, "-c", SPAWNING, str(tmp_path / "pid")], tmp_path / "pids") as page:
        await page.enter()
        window = await page.window()
        await window.wait_for("It stands.")
        pid = int((tmp_path / "pid").read_text())
        try:
            await window.close()
            again = await page.window()
            await again.wait_for("It stands.")
            assert [is_alive(one) for one in (page.pids()[0], pid)] == [False, True]
            assert "noise" not in again.screen()
        finally:
            for one in {pid, int((tmp_path / "pid").read_text())}:
                os.kill(one, signal.SIGKILL)
