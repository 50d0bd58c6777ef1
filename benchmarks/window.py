"""How soon the window paints over a large library: `python -m benchmarks.window [--sessions 10000] [--messages 30]`.

Prints one JSON object, seconds and MiB. `open_500_s` is the time from choosing a conversation of 500 turns until its
end is painted (median of several, another one in between); `open_2_s` the same for one of 2 turns, as the reference;
`open_500_stall_s` the longest that the event loop stood still meanwhile and in the second after;
`rss_mib` is what the front end holds then (the engine is the scripted one, in the same process).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks.conversations import build
from chatapp.benches.screen import Stalls, WatchedApp, talk_of
from chatapp.tui.app import ChatApp
from chatapp.tui.markdown_text import MarkdownText
from models.engine import Sampling
from models.fake import FakeEngine
from sessions.manager import SessionManager
from sessions.store import Store


def main() -> None:
    """Build, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder), asked.sessions, asked.messages)
        with closing(Store(Path(folder))) as store:
            long, short = talk_of(store, 500), talk_of(store, 2)
            print(json.dumps(asyncio.run(_measure(store, long, short, asked.repeats))))


async def _measure(store: Store, long: str, short: str, repeats: int) -> dict[str, float]:
    app = WatchedApp(SessionManager(store, FakeEngine(n_ctx=1 << 22)), sampling=Sampling())
    app.drawn = asyncio.Event()
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause(1)
        times: dict[str, list[float]] = {long: [], short: []}
        stalls: list[float] = []
        for _ in range(repeats):
            for key, marker in ((long, "Answer 499"), (short, "Answer 1")):
                async with Stalls() as loop:
                    begun = time.perf_counter()
                    await app.stage.show(key)
                    while not _is_drawn(app, marker):
                        await app.next_frame()
                    times[key].append(time.perf_counter() - begun)
                    assert marker in _screen(app)
                    await asyncio.sleep(1)  # the older messages follow
                if key == long:
                    stalls.append(loop.worst_s)
        return {
            "open_500_s": statistics.median(times[long]),
            "open_2_s": statistics.median(times[short]),
            "open_500_stall_s": statistics.median(stalls),
            "rss_mib": _rss_mib(),
        }


def _is_drawn(app: WatchedApp, marker: str) -> bool:
    """The last answer was in the frame."""
    texts = list(app.screen.query(MarkdownText))
    return bool(texts) and marker in texts[-1].source and texts[-1].region.height > 0


def _screen(app: ChatApp) -> str:
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


def _rss_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    main()
