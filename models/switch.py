"""One engine at a time, of whichever model is wanted: the others are unloaded before it is loaded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from models.engine import Ahead, Engine, Event, ModelInfo, Prompt, Sampling


@dataclass(frozen=True, slots=True)
class Choice:
    """What to load: a model file (None: the usual model), with how large a context in tokens (None: the usual one)."""

    path: Path | None = None
    n_ctx: int | None = None


class EngineSwitch:
    """An `Engine` whose model can be exchanged between two requests.

    What it is asked while a model is loading belongs to that model; `use` must not be called in between.
    """

    def __init__(self, make: Callable[[Choice], Engine], choice: Choice | None = None) -> None:
        """`make` returns an engine that is not loaded yet; it may raise `ModelError`."""
        self._make = make
        self._choice = choice or Choice()
        self._engine = make(self._choice)

    @property
    def choice(self) -> Choice:
        """What is loaded, or will be by the next request."""
        return self._choice

    @property
    def info(self) -> ModelInfo | None:
        """The loaded model, None before `Loaded`."""
        return self._engine.info

    async def use(self, choice: Choice) -> None:
        """Unload what is loaded, its KV written, so that the next request loads `choice`. Raises `ModelError`."""
        if choice == self._choice:
            return
        before, self._engine = self._engine, self._make(choice)
        # At once: a load that is overtaken by this is to see it when it fails.
        self._choice = choice
        await before.close()

    def load(self) -> AsyncIterator[Event]:
        """Load the chosen model."""
        return self._engine.load()

    def prepare(self, prompt: Prompt) -> AsyncIterator[Event]:
        """Make a history resident."""
        return self._engine.prepare(prompt)

    def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Event]:
        """Answer a prompt."""
        return self._engine.generate(prompt, sampling)

    def anticipate(self, prompt: Prompt) -> AsyncIterator[Ahead]:
        """Read a draft ahead."""
        return self._engine.anticipate(prompt)

    async def cancel(self) -> None:
        """Stop the running request."""
        await self._engine.cancel()

    async def count(self, text: str) -> int:
        """Tokens of a message body."""
        return await self._engine.count(text)

    async def close(self) -> None:
        """Finish pending KV writes and end."""
        await self._engine.close()
