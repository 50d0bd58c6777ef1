"""An engine that serves several requests at once, made of fake ones."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from models.engine import Ahead, Event, Loaded, ModelInfo, Prompt, Sampling
from models.fake import FakeDisk, FakeEngine


class SeveralAtOnce:
    """`n` fake engines behind one face; `cancel` must not be called where it could end the wrong request."""

    def __init__(self, n: int, reply: Callable[[str], str] | None = None, *, sleep: float = 0.0) -> None:
        disk = FakeDisk()

        async def pause(_seconds: float) -> None:
            await asyncio.sleep(sleep)

        self.engines = [FakeEngine(reply, disk=disk, tokens_per_s=1, sleep=pause) for _ in range(n)]
        self._free = list(self.engines)
        self.most_at_once = 0
        self.n_running = 0

    @property
    def info(self) -> ModelInfo | None:
        """That of the first, but for how many requests are served."""
        info = self.engines[0].info
        return replace(info, n_parallel=len(self.engines)) if info else None

    async def load(self) -> AsyncIterator[Event]:
        """Load them all."""
        for engine in self.engines:
            async for _ in engine.load():
                pass
        assert self.info
        yield Loaded(self.info)

    async def prepare(self, prompt: Prompt) -> AsyncIterator[Event]:
        """By one of them; the others find it on disk."""
        async for event in self.engines[0].prepare(prompt):
            yield event

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Event]:
        """By one that is free."""
        engine = self._free.pop()
        self.n_running += 1
        self.most_at_once = max(self.most_at_once, self.n_running)
        try:
            async for event in engine.generate(prompt, sampling):
                yield event
        finally:
            self.n_running -= 1
            self._free.append(engine)

    async def cancel(self) -> None:
        """Never asked for."""
        raise AssertionError("it would end another request")

    def anticipate(self, prompt: Prompt) -> AsyncIterator[Ahead]:
        """By the first."""
        return self.engines[0].anticipate(prompt)

    async def count(self, text: str) -> int:
        """Tokens of a text."""
        return await self.engines[0].count(text)

    async def close(self) -> None:
        """End them all."""
        for engine in self.engines:
            await engine.close()
