"""Takes the pictures of the window for the documentation: `python -m tools.pictures [FOLDER]`.

The window is the real one; the engine is the scripted one that ships, on a clock that only it moves, so the
pictures are the same on every machine. Their numbers illustrate and are no measurement.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

from textual.pilot import Pilot

from chatapp.tui.app import ChatApp
from chatapp.tui.composer import Composer
from models.engine import Event, Loaded, Prepared, Prompt, Sampling
from models.fake import FakeDisk, FakeEngine
from sessions.manager import SessionManager
from sessions.store import Store

SIZE = (120, 36)
TODAY = 1_780_000_000.0
HOUR, DAY = 3600.0, 86400.0
RESTORED_PER_S = 60_000.0

OLDER = (
    (9.2 * DAY, "Recipe for kimchi without fish sauce"),
    (6.1 * DAY, "Explain the borrow checker with a library"),
    (4.4 * DAY, "여권 재발급 서류 정리"),
    (2.3 * DAY, "SQL: last row of each group"),
    (1.4 * DAY, "Cover letter, second draft"),
    (7.5 * HOUR, "Why is the sky dark at night?"),
)
QUESTIONS = (
    "What is kept of a conversation when I quit, and why is coming back so fast?",
    "And if the file on disk is damaged?",
    "회의 전에 두 문장으로 요약해 줘.",
)
ANSWERS = (
    """\
Two things are kept, and they are not equal:

1. **The text and its token ids**, in a database. They are the truth.
2. **The KV cache**, in files. It is a copy of work already done.

Coming back means reading the second instead of computing it again:

| way back | evaluated | wait |
|:---------|----------:|-----:|
| computed again | every token | seconds |
| from disk | only the new message | a moment |
""",
    """\
Then it is *not used*. Each file carries a checksum that is compared before native code sees a byte:

```python
if checksum(header, payload) != stored:
    return Miss("damaged")   # the prompt is computed instead
```

You lose a moment, never a word.
""",
    """\
대화의 본문과 토큰은 데이터베이스에 남고, 계산 결과인 KV 캐시는 디스크에 따로 보관됩니다. \
그래서 다시 열면 **새 메시지만** 계산하면 됩니다.
""",
)
BALLAST = "The rest of this conversation is longer than the picture. " * 55


class Clock:
    """Time that passes only while the engine works."""

    def __init__(self) -> None:
        self.now = 100.0
        self.app: ChatApp | None = None

    def __call__(self) -> float:
        """The time, in seconds."""
        return self.now

    async def sleep(self, length_s: float) -> None:
        """Let time pass, and the window take in what happened before."""
        self.now += length_s
        await asyncio.sleep(0)
        while self.app is not None and self.app.message_queue_size:  # noqa: ASYNC110 - a queue has no event
            await asyncio.sleep(0)


class PicturedEngine(FakeEngine):
    """The scripted engine with a name, threads and a speed of the disk."""

    async def load(self) -> AsyncIterator[Event]:
        """Load nothing."""
        async for event in super().load():
            if isinstance(event, Loaded):
                info = replace(event.info, name="scripted engine", threads=2, flash_attention=True, n_ctx=8192)
                yield Loaded(info)
            else:
                yield event

    async def prepare(self, prompt: Prompt) -> AsyncIterator[Event]:
        """Make a history resident at the speed of the disk."""
        async for event in super().prepare(prompt):
            yield _restored(event)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Event]:
        """Answer as scripted."""
        async for event in super().generate(prompt, sampling):
            yield _restored(event)


def _restored(event: Event) -> Event:
    if isinstance(event, Prepared) and event.restored:
        return replace(event, restore_s=event.restored / RESTORED_PER_S)
    return event


def _reply(question: str) -> str:
    return ANSWERS[QUESTIONS.index(question)] if question in QUESTIONS else BALLAST


def _engine(disk: FakeDisk, clock: Clock) -> PicturedEngine:
    return PicturedEngine(_reply, tokens_per_s=87, prefill_tokens_per_s=650, disk=disk, sleep=clock.sleep, clock=clock)


async def _fill(folder: Path, disk: FakeDisk) -> str:
    """Store older conversations and the one that is resumed; return its id."""
    wall = TODAY
    store = Store(folder, clock=lambda: wall)
    clock = Clock()
    manager = SessionManager(store, _engine(disk, clock), monotonic=clock)

    async def ask(session_id: str, text: str) -> None:
        async for _ in manager.send(session_id, text, Sampling()):
            pass

    for ago, title in OLDER:
        wall = TODAY - ago
        session = manager.new()
        await ask(session.id, title)
        if ago > 4 * DAY:
            manager.mark_done(session.id)
    wall = TODAY - 2.2 * HOUR
    session = manager.new()
    await ask(session.id, "Tell me how conversations come back")
    manager.rename(session.id, "How conversations come back")
    for question in QUESTIONS[:2]:
        await ask(session.id, question)
    store.close()
    return session.id


async def _until(pilot: Pilot[None], is_so: Callable[[], bool]) -> None:
    for _ in range(2000):
        if is_so():
            return
        await pilot.pause(0.01)
    raise RuntimeError("the window did not come to the state of the picture")


async def _take(folder: Path, data: Path, disk: FakeDisk, session_id: str) -> None:
    clock = Clock()
    store = Store(data, clock=lambda: TODAY)
    engine = _engine(disk, clock)
    app = ChatApp(
        SessionManager(store, engine, monotonic=clock),
        sampling=Sampling(),
        session_id=session_id,
        clock=lambda: TODAY,
        monotonic=clock,
    )
    async with app.run_test(size=SIZE) as pilot:
        clock.app = app
        app.query_one(Composer).cursor_blink = False
        await _until(pilot, lambda: app.readings.came_back is not None)
        await pilot.pause(0.6)
        app.save_screenshot("resume.svg", str(folder))
        engine.hang_at = 150
        await pilot.press(*QUESTIONS[2], "enter")
        await _until(pilot, lambda: app.readings.n_output == 150)
        await pilot.pause(0.6)
        app.save_screenshot("chat.svg", str(folder))
        await pilot.press("escape")
        await pilot.pause(0.2)
    store.close()


async def main(folder: Path) -> None:
    """Take all pictures."""
    with tempfile.TemporaryDirectory() as data:
        disk = FakeDisk()
        session_id = await _fill(Path(data), disk)
        await _take(folder, Path(data), disk, session_id)


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(target))
