"""Where pictures of the window are taken: the real window over made-up conversations and the scripted engine.

Only the studio's own clock moves, and time zone, ids and sizes are fixed, so a picture is the same on every machine.
Its numbers illustrate and are no measurement.
"""

from __future__ import annotations

import asyncio
import copy
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from textual.pilot import Pilot

from chatapp.modellist import ModelChoice
from chatapp.tui.app import ChatApp
from chatapp.tui.composer import Composer
from chatapp.tui.surroundings import Surroundings
from models.engine import Event, Loaded, Prepared, Prompt, Sampling
from models.fake import FakeDisk, FakeEngine
from models.similarity import Scores
from sessions.manager import SessionManager
from sessions.store import Store

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
MODELS = (
    ModelChoice("scripted engine", Path("scripted.gguf"), "llama · Q4_K_M · 94 MiB · starter", True, is_usual=True),
    ModelChoice("llama3.2:3b", Path("llama.gguf"), "llama · Q4_K_M · 1.9 GiB · Ollama", True),
    ModelChoice("Qwen3-4B-Instruct-Q4_K_M", Path("qwen.gguf"), "qwen3 · Q4_K_M · 2.3 GiB · LM Studio", True),
    ModelChoice("gemma-3-27b-it-Q4_K_M", Path("gemma.gguf"), "gemma3 · Q4_K_M · 15.4 GiB · Hugging Face", False),
)
OTHER_TASK = "Write a haiku about the sea for my grandmother's birthday card."
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
                info = replace(event.info, name="scripted engine", threads=2, flash_attention=True)
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
    return PicturedEngine(
        _reply, n_ctx=8192, tokens_per_s=87, prefill_tokens_per_s=650, disk=disk, sleep=clock.sleep, clock=clock
    )


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


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture: its name, what it shows (for those who cannot see it), what is done before it is taken."""

    name: str
    shows: str
    act: Callable[[Studio], Awaitable[None]]
    size: tuple[int, int] = (120, 36)
    theme: str = "dark"
    is_colourless: bool = False


class Studio:
    """One window in front of the camera, the conversation about coming back just resumed in it."""

    def __init__(self, app: ChatApp, pilot: Pilot[None], engine: PicturedEngine) -> None:
        self.app = app
        self.pilot = pilot
        self.engine = engine

    @property
    def composer(self) -> Composer:
        """The box."""
        return self.app.stage.composer

    async def press(self, *keys: str) -> None:
        """Press keys one after another."""
        await self.pilot.press(*keys)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Let the window work until something is so."""
        for _ in range(2000):
            if is_so():
                return
            await self.pilot.pause(0.01)
        raise RuntimeError(f"the window did not come to the state of the picture:\n{self.text()}")

    async def sees(self, text: str) -> None:
        """Let the window work until a text is on the screen."""
        await self.until(lambda: text in self.text())

    def text(self) -> str:
        """What is on the screen."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip) for strip in strips)

    async def picture(self) -> str:
        """The screen as SVG, as soon as it stands still."""
        seen: list[str] = []
        while len(seen) < 200:
            self.app.stage.needs_paint = True
            self.app.stage.tick()
            await self.pilot.pause(0.05)
            seen.append(self.app.export_screenshot(title="chatapp"))
            if len(seen) > 3 and len(set(seen[-4:])) == 1:
                return seen[-1]
        raise RuntimeError("the window does not come to rest")


async def _another_task(draft: str, _task: str, _question: str, _answer: str) -> Scores:
    """Judge one draft to be of another task."""
    return Scores(3.0, 0.1, 0.1, 0.1) if draft == OTHER_TASK else Scores(-4.0, 0.5, 0.5, 0.5)


async def take(scene: Scene) -> str:
    """Return the picture of a scene, as SVG."""
    with tempfile.TemporaryDirectory() as data, _no_colour(scene.is_colourless), _utc():
        disk = FakeDisk()
        session_id = await _fill(Path(data), disk)
        clock = Clock()
        store = Store(Path(data), clock=lambda: TODAY)
        engine = _engine(copy.deepcopy(disk), clock)
        app = ChatApp(
            SessionManager(store, engine, monotonic=clock, policy="ask", score=_another_task),
            sampling=Sampling(),
            session_id=session_id,
            models=lambda: list(MODELS),
            clock=lambda: TODAY,
            monotonic=clock,
            surroundings=Surroundings(theme=scene.theme),
        )
        async with app.run_test(size=scene.size) as pilot:
            clock.app = app
            studio = Studio(app, pilot, engine)
            studio.composer.cursor_blink = False
            await studio.until(lambda: app.readings.came_back is not None)
            await scene.act(studio)
            picture = await studio.picture()
            engine.hang_at = None
            app.exit()
        store.close()
    return picture


@contextmanager
def _no_colour(is_wanted: bool) -> Iterator[None]:
    """The environment of somebody who wants no colours; the window reads it when it is made."""
    before = os.environ.pop("NO_COLOR", None)
    if is_wanted:
        os.environ["NO_COLOR"] = "1"
    try:
        yield
    finally:
        os.environ.pop("NO_COLOR", None)
        if before is not None:
            os.environ["NO_COLOR"] = before


@contextmanager
def _utc() -> Iterator[None]:
    """Days begin everywhere at the same time."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()
