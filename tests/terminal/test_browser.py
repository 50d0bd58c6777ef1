"""The chat window in a real browser: opened, typed into, reloaded, and one at a time."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("textual_serve", reason="`chatapp web` needs the extra `web`")
from chatapp.web.server import BUSY, STOPPED
from tests.terminal.chromium import browser

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
CLOSED = "document.body.classList.contains('-closed') && document.querySelector('#sentence').textContent"

pytestmark = pytest.mark.skipif(not PROGRAM, reason="this test drives Chromium, which is missing")


@asynccontextmanager
async def web(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run `chatapp web` for the block; yields it with the address that it printed."""
    arguments = ["web", "--no-open", "--engine", "fake:200"]
    arguments += ["--data-dir", str(folder / "data"), "--cache-dir", str(folder / "cache")]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "chatapp",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_one_chats_in_a_browser(tmp_path: Path) -> None:
    """Keys reach the window and its answer the page; a second page is told; a reload goes on; the end is told."""
    async with web(tmp_path) as (server, url), browser(PROGRAM, tmp_path / "profile") as chromium:
        page = await chromium.page()
        await page.open(url)
        await page.wait_for("Message")
        empty = await page.picture()
        await page.type("hello from a browser")
        await page.wait_for("hello from a browser")
        await page.press_enter()
        await page.wait_for("You said")
        await page.wait_for("ready")  # with the answer, not in the middle of it
        picture = await page.picture()
        (tmp_path / "page.png").write_bytes(picture)
        assert picture != empty
        address = urlsplit(url)
        assert {urlsplit(requested).netloc for requested in page.requested} == {address.netloc}
        assert "token" not in str(await page.value("location.href + document.documentElement.outerHTML"))
        assert not await page.value("document.cookie")
        assert [text for text in page.told if "policy" in text.lower() or "refused" in text.lower()] == []

        second = await chromium.page()
        await second.open(url)
        await second.wait_until(CLOSED)
        assert await second.value(CLOSED) == BUSY

        await page.reload()
        await page.wait_for("hello from a browser")
        await page.type("typed without a click")
        await page.wait_for("typed without a click")
        await page.close()
        await second.value("document.querySelector('#again').click()")
        await second.wait_for("hello from a browser")

        server.terminate()
        await second.wait_until(CLOSED)
        assert await second.value(CLOSED) == STOPPED
        assert await server.wait() == 0
