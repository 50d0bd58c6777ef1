"""Links of a message: which are offered, which are opened, and how they are shown."""

from pathlib import Path

import pytest

from chatapp.clipboard import Terminal
from chatapp.tui.links import LinkScreen, has_browser, links_of, why_not
from tests.chatapp.tui_window import Window, sees, until

WIDE = (120, 36)


def test_the_links_of_a_text_in_their_order() -> None:
    """Links, bare addresses and pictures, each once; not what stands in code."""
    text = "[a](https://a.example) www.b.org `https://no.example` ![p](http://c.example/p.png) [b](https://a.example)"
    assert links_of(text) == ["https://a.example", "http://www.b.org", "http://c.example/p.png"]


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "mailto:a@b.example",
        "ssh://host/",
        "https://",
        "https://user:secret@host.example/",
        "https://bank.example@evil.example/",
        "http://[bad/",
        "https://a.example/\x1b]52;c;x\x07",
        "https://a.example/" + "x" * 4000,
        "#anchor",
    ],
)
def test_what_is_not_opened(address: str) -> None:
    """Only http and https, only a host that is what it seems to be."""
    assert why_not(address)


def test_what_is_opened() -> None:
    """Ports, paths, queries and hosts in any script."""
    for address in ("https://a.example:8080/x?q=1#y", "http://localhost", "https://예시.example/경로"):
        assert why_not(address) == ""


@pytest.mark.parametrize(
    ("terminal", "expected"),
    [
        (Terminal(has_x11=True, system="linux"), True),
        (Terminal(has_wayland=True, system="linux"), True),
        (Terminal(system="linux"), False),
        (Terminal(system="darwin"), True),
        (Terminal(system="darwin", is_remote=True), False),
        (Terminal(system="linux", is_remote=True, has_x11=True), False),
        (Terminal(system="wsl"), True),
    ],
)
def test_where_a_browser_has_a_screen(terminal: Terminal, *, expected: bool) -> None:
    """Without one of its own a browser would draw over the window: then the address is copied."""
    assert has_browser(terminal) is expected


async def test_a_link_is_shown_whole_and_copied_where_there_is_no_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O on a marked answer lists its links; Enter takes the first that may be opened; the rest cannot be chosen."""
    monkeypatch.setattr("chatapp.tui.links.has_browser", lambda _: False)
    address = "https://한국.example/" + "long/" * 10
    window = Window(tmp_path, reply=lambda _: f"[x](javascript:alert(1)) [m](mailto:a@b.example) [go]({address})")
    copied: list[str] = []
    monkeypatch.setattr(window.app, "copy_to_clipboard", copied.append)
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press(*"go", "enter")
        await until(pilot, lambda: len(window.transcript.messages) == 2, "the answer is there")
        await pilot.press("alt+up", "o")
        await until(pilot, lambda: isinstance(window.app.screen, LinkScreen), "the links are listed")
        await sees(pilot, window, "only http and https are opened")
        await sees(pilot, window, " xn--3e0b707e.example ")
        await pilot.press("enter")
        await until(pilot, lambda: copied == ["https://xn--3e0b707e.example/" + "long/" * 10], "the address is copied")
