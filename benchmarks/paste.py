"""What big pastes and long lines cost: `python -m benchmarks.paste [--repeats 5]`.

Prints one JSON object, seconds of CPU, medians. `parse_*_s` is reading a paste off the terminal, by our parser and by
Textual's; `chip_*_s` from the paste's event to its chip on the screen. `key_*_s` is one key, typed into a box that has
a text: a short one as the reference, the longest line that a paste may put there as text, the longest that a message
may that is being edited, and a chip of a line of 400,000 characters. `viewer_*_s` is opening that line in the viewer,
and a key in it; `transcript_*_s` showing it in a conversation, and a key then. `ratio_*` are to the short text's key.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path

from textual import events
from textual._xterm_parser import XTermParser
from textual.message import Message
from textual.pilot import Pilot

from chatapp.tui.app import ChatApp
from chatapp.tui.composer import LONG_LINE, LONGEST_READ, LONGEST_READ_LINE, Composer
from chatapp.tui.pasting import PasteParser
from models.engine import Sampling
from models.fake import FakeEngine
from sessions.manager import SessionManager
from sessions.store import Store

MIB = 1_000_000
LINE = "x" * 400_000
SIZE = (120, 36)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    figures = {
        "parse_1mb_s": _parsing(PasteParser, MIB),
        "parse_10mb_s": _parsing(PasteParser, 10 * MIB),
        "parse_1mb_textual_s": _parsing(XTermParser, MIB),
    }
    with tempfile.TemporaryDirectory() as folder, closing(Store(Path(folder))) as store:
        figures |= asyncio.run(_window(store, asked.repeats))
    short = figures["key_short_s"]
    figures |= {
        f"ratio_{name.removesuffix('_s')}": round(value / short, 2)
        for name, value in figures.items()
        if "key_" in name and name != "key_short_s"
    }
    print(json.dumps(figures))


def _parsing(make: type[XTermParser], n: int) -> float:
    parser = make()
    data = "\x1b[200~" + "paste and copy\n" * (n // 15) + "\x1b[201~x"
    since = time.process_time()
    for at in range(0, len(data), 4096):
        _read(parser.feed(data[at : at + 4096]))
    return round(time.process_time() - since, 4)


def _read(messages: Iterable[Message]) -> None:
    for _ in messages:
        pass


async def _window(store: Store, repeats: int) -> dict[str, float]:
    manager = SessionManager(store, FakeEngine(reply=lambda _: LINE))
    app = ChatApp(manager, sampling=Sampling())
    figures = {}
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        composer = app.stage.composer

        async def key() -> float:
            return await _cpu(pilot, repeats, lambda: pilot.press("a"))

        composer.load_text("short")
        figures["key_short_s"] = await key()
        pastes = {"1mb": "a line of a log\n" * (MIB // 16), "line": LINE, "2mb_line": "x" * 1_999_000}
        for name, text in pastes.items():
            took = []
            for _ in range(repeats):
                composer.clear_draft()
                await pilot.pause()
                took.append(await _cpu(pilot, 1, partial(_paste, composer, text)))
                assert "[pasted" in composer.text
            figures[f"chip_{name}_s"] = round(statistics.median(took), 4)
        figures["key_chip_s"] = await key()
        for name, text in {
            "pasted_line": "x" * LONG_LINE,
            "read_line": "x" * LONGEST_READ_LINE,
            "read_lines": ("y" * 79 + "\n") * (LONGEST_READ // 80 - 1),
            "wide_line": "한" * LONG_LINE,
        }.items():
            composer.clear_draft()
            composer.insert_text(text)
            await pilot.pause()
            assert len(composer.text) >= len(text)
            figures[f"key_{name}_s"] = await key()
        composer.clear_draft()
        composer.post_message(events.Paste(LINE))
        await pilot.pause()
        (chip,) = composer._chips.shown(composer.text).values()
        since = time.process_time()
        app.desk.view(chip)
        await pilot.pause()
        await pilot.pause()
        figures["viewer_open_s"] = round(time.process_time() - since, 4)
        figures["viewer_key_s"] = await _cpu(pilot, repeats, lambda: pilot.press("down"))
        await pilot.press("escape")
        session_id = manager.new().id
        async for _ in manager.send(session_id, LINE, Sampling()):
            pass
        composer.clear_draft()
        since = time.process_time()
        await app.stage.show(session_id)
        await pilot.pause()
        figures["transcript_show_s"] = round(time.process_time() - since, 4)
        figures["transcript_key_s"] = await key()
        figures["transcript_scroll_key_s"] = await _cpu(pilot, repeats, lambda: pilot.press("pageup"))
    return figures


async def _paste(composer: Composer, text: str) -> None:
    composer.post_message(events.Paste(text))


async def _cpu(pilot: Pilot[None], repeats: int, act: Callable[[], Awaitable[object]]) -> float:
    """Median seconds of CPU from an act until all is painted."""
    took = []
    for _ in range(repeats):
        since = time.process_time()
        await act()
        await pilot.pause()
        took.append(time.process_time() - since)
    return round(statistics.median(took), 4)


if __name__ == "__main__":
    main()
