"""What the window costs while an answer comes: `python -m benchmarks.streaming [--tokens 5000] [--turns 200]`.

Prints one JSON object. For an answer of prose, one code block, one list and one table, streamed into a conversation of
200 turns at `--rate` tokens a second by the scripted engine in the same process:

- `key_p50_ms`, `key_p99_ms`: from a key press to the frame that shows its letter, a key every 0.1 s;
- `stall_ms`: the longest time the event loop did not turn;
- `cpu_share`: CPU seconds a second at 60 tokens a second, of which `idle_cpu_share` is there without any answer;
- `slowdown_ratio`: seconds the answer took, over tokens by rate: how much the window held the engine up.

`resize_stall_ms` is the longest stall while the window changes its size five times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from textual import events

from benchmarks.screen import Stalls, WatchedApp
from benchmarks.window import talk_of
from models.engine import Event, Piece, Prompt, Sampling
from models.fake import FakeEngine
from sessions.manager import SessionManager
from sessions.store import Store

TOKEN = 4
"""Characters of a token, about, in English text: the fake's own tokens are bytes."""

KINDS = {
    "prose": "Some words of **prose** with `code`, as answers have them, one sentence after the other.\n\n",
    "fence": "    total = sum(row.value for row in rows if row.is_wanted)  # a line of code\n",
    "list": "- an item of a list with some words in it\n",
    "table": "| a name | 12345 | some words of a cell | yes |\n",
}
HEADS = {"prose": "", "fence": "```python\n", "list": "", "table": "| a | b | c | d |\n|---|---|---|---|\n"}


def main() -> None:
    """Measure each kind of answer and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=5000)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--rate", type=float, default=100.0, help="tokens a second")
    asked = parser.parse_args()
    figures: dict[str, object] = {}
    for kind in KINDS:
        figures[kind] = asyncio.run(_streamed(kind, asked.tokens, asked.turns, asked.rate))
    figures |= asyncio.run(_at_60(asked.turns))
    print(json.dumps(figures, indent=1))


def _answer(kind: str, n_tokens: int) -> str:
    return HEADS[kind] + KINDS[kind] * (n_tokens * TOKEN // len(KINDS[kind]))


class _Words(FakeEngine):
    """The scripted engine with pieces of four bytes, as tokens have them; it makes up for time it was held up."""

    def __init__(self, reply: Callable[[str], str], rate: float) -> None:
        super().__init__(reply, tokens_per_s=rate * TOKEN, n_ctx=1 << 22, sleep=self._wait)
        self._due = 0.0

    async def _wait(self, seconds: float) -> None:
        now = time.perf_counter()
        if now - self._due > 1:  # a new answer
            self._due = now
        self._due += seconds
        await asyncio.sleep(max(0.0, self._due - now) if self._due - now > 0.004 else 0)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Event]:
        """Yield the events, four pieces as one."""
        held: list[Piece] = []
        async for event in super().generate(prompt, sampling):
            if isinstance(event, Piece):
                held.append(event)
                if len(held) < TOKEN:
                    continue
            if held:
                yield Piece("".join(p.text for p in held), tuple(i for p in held for i in p.token_ids))
                held = []
            if not isinstance(event, Piece):
                yield event


@contextmanager
def _window(kind: str, n_tokens: int, turns: int, rate: float) -> Iterator[WatchedApp]:
    with tempfile.TemporaryDirectory() as folder, closing(Store(Path(folder))) as store:
        session_id = talk_of(store, turns)
        engine = _Words(lambda _: _answer(kind, n_tokens), rate)
        app = WatchedApp(SessionManager(store, engine), sampling=Sampling(), session_id=session_id)
        app.drawn = asyncio.Event()
        yield app


async def _streamed(kind: str, n_tokens: int, turns: int, rate: float) -> dict[str, float]:
    with _window(kind, n_tokens, turns, rate) as app:
        async with app.run_test(size=(120, 36)) as pilot:
            await pilot.pause(1)
            await pilot.press("g", "o", "enter")
            begun = time.perf_counter()
            keys: list[float] = []
            async with Stalls() as loop:
                while app.stage.talk.live:
                    keys.append(await _key(app))
                    await asyncio.sleep(0.1)
            took = time.perf_counter() - begun
            n_bytes = len(_answer(kind, n_tokens).encode())
            return {
                "key_p50_ms": statistics.median(keys) * 1000,
                "key_p99_ms": statistics.quantiles(keys, n=100)[-1] * 1000,
                "stall_ms": loop.worst_s * 1000,
                "slowdown_ratio": took / (n_bytes / TOKEN / rate),
            }


async def _key(app: WatchedApp) -> float:
    begun = time.perf_counter()
    n = len(app.stage.composer.text)
    app.post_message(events.Key("x", "x"))
    while len(app.stage.composer.text) == n:  # noqa: ASYNC110 - the change itself tells nobody
        await asyncio.sleep(0)
    await app.next_frame()
    return time.perf_counter() - begun


async def _at_60(turns: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for kind in KINDS:
        with _window(kind, 1200, turns, 60) as app:
            async with app.run_test(size=(120, 36)) as pilot:
                await pilot.pause(1)
                figures["idle_cpu_share"] = await _cpu_share(3)
                await pilot.press("g", "o", "enter")
                await asyncio.sleep(5)
                figures[f"{kind}_cpu_share"] = await _cpu_share(8)
                if kind == "prose":
                    async with Stalls() as loop:
                        for size in ((80, 24), (200, 50), (60, 16), (130, 40), (120, 36)):
                            await pilot.resize_terminal(*size)
                    figures["resize_stall_ms"] = loop.worst_s * 1000
                await pilot.press("escape")
                await pilot.pause(0.5)
    return figures


async def _cpu_share(seconds: float) -> float:
    begun, cpu = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - cpu) / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
