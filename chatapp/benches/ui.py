"""`chatapp bench ui`: what the window costs while an answer comes, and how soon a key is on the screen meanwhile.

Answers of prose, one code block, one list and one table are streamed by the scripted engine, in the same process, into
a conversation with many turns.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from textual import events

from chatapp.benches.foreign import foreign_load
from chatapp.benches.screen import Stalls, WatchedApp, talk_of
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
_SETTLING_S = 1.0
"""A window that has just begun is left alone for so long, or as long as it is watched where that is shorter."""
_SIZES = ((80, 24), (200, 50), (60, 16), (130, 40), (120, 36))


def ui(*, n_tokens: int, n_turns: int, rate: float, watch_s: float) -> dict[str, object]:
    """Stream `n_tokens` of each kind at `rate` a second; for what painting costs, `watch_s` seconds at 60 a second."""
    figures: dict[str, object] = {}
    loads = []
    for kind in KINDS:
        loads.append(foreign_load())
        figures |= asyncio.run(_streamed(kind, n_tokens, n_turns, rate, settling_s=min(_SETTLING_S, watch_s)))
    figures |= asyncio.run(_at_60(n_turns, watch_s))
    return figures | {"tokens": n_tokens, "turns": n_turns, "tokens_per_s": rate, "foreign_load": max(loads)}


def _answer(kind: str, n_tokens: int) -> str:
    return HEADS[kind] + KINDS[kind] * max(1, n_tokens * TOKEN // len(KINDS[kind]))


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
def _window(kind: str, n_tokens: int, n_turns: int, rate: float) -> Iterator[WatchedApp]:
    with tempfile.TemporaryDirectory() as folder, closing(Store(Path(folder))) as store:
        session_id = talk_of(store, n_turns)
        engine = _Words(lambda _: _answer(kind, n_tokens), rate)
        app = WatchedApp(SessionManager(store, engine), sampling=Sampling(), session_id=session_id)
        app.drawn = asyncio.Event()
        yield app


async def _streamed(kind: str, n_tokens: int, n_turns: int, rate: float, *, settling_s: float) -> dict[str, float]:
    with _window(kind, n_tokens, n_turns, rate) as app:
        async with app.run_test(size=(120, 36)) as pilot:
            await pilot.pause(settling_s)
            await pilot.press("g", "o", "enter")
            begun = time.perf_counter()
            keys: list[float] = []
            async with Stalls() as loop:
                while app.stage.talk.live or not keys:
                    keys.append(await _key(app))
                    await asyncio.sleep(0.1)
            took = time.perf_counter() - begun
            n_bytes = len(_answer(kind, n_tokens).encode())
            return {
                f"{kind}_key_p50_s": statistics.median(keys),
                f"{kind}_key_p99_s": statistics.quantiles(keys, n=100)[-1] if len(keys) > 1 else keys[0],
                f"{kind}_stall_s": loop.worst_s,
                f"{kind}_slowdown_ratio": took / (n_bytes / TOKEN / rate),
            }


async def _key(app: WatchedApp) -> float:
    begun = time.perf_counter()
    n = len(app.stage.composer.text)
    app.post_message(events.Key("x", "x"))
    while len(app.stage.composer.text) == n:  # noqa: ASYNC110 - the change itself tells nobody
        await asyncio.sleep(0)
    await app.next_frame()
    return time.perf_counter() - begun


async def _at_60(n_turns: int, watch_s: float) -> dict[str, float]:
    figures: dict[str, float] = {}
    for kind in KINDS:
        with _window(kind, 1200, n_turns, 60) as app:
            async with app.run_test(size=(120, 36)) as pilot:
                await pilot.pause(min(_SETTLING_S, watch_s))
                if kind == "prose":
                    figures["idle_cpu_share"] = await _cpu_share(watch_s / 2)
                await pilot.press("g", "o", "enter")
                await asyncio.sleep(watch_s / 2)
                figures[f"{kind}_cpu_share"] = await _cpu_share(watch_s)
                if kind == "prose":
                    async with Stalls() as loop:
                        for size in _SIZES:
                            await pilot.resize_terminal(*size)
                    figures["resize_stall_s"] = loop.worst_s
                await pilot.press("escape")
                await pilot.pause(min(_SETTLING_S, watch_s) / 2)
    return figures


async def _cpu_share(seconds: float) -> float:
    begun, cpu = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - cpu) / (time.perf_counter() - begun)
