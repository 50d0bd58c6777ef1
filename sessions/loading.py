"""Sees to it that the engine has the model that a conversation names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from models.engine import Engine, Failed, ModelInfo
from models.errors import ModelError
from models.switch import Choice, EngineSwitch
from sessions.conversation import ModelRef, Session

MODEL_GONE = "model_gone"
"""The kind of a failure: the conversation's model is not on this machine any more."""
SERVER_GONE = ("unreachable", "insecure", "key", "no_model", "busy")
"""The kinds of failures that another model could help with when a conversation's own runs at a server."""
NO_MEMORY = "no_memory"
"""The kind of a failure: the conversation's model is expected not to fit into memory."""


def _by_path(model: ModelRef) -> Path | None:
    path = Path(model.path)
    return path if path.is_file() else None


def _enough(_path: Path | None, _n_ctx: int | None, _loaded: ModelInfo | None) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where models are found, and whether they fit. Both may take seconds and are called outside the event loop.

    `find` returns the file of a model, wherever it lies now. `lack` returns one sentence if a model (None: the usual
    one) with this context would not fit into memory once the loaded one is gone.
    """

    find: Callable[[ModelRef], Path | None] = _by_path
    lack: Callable[[Path | None, int | None, ModelInfo | None], str | None] = _enough


class Loading:
    """Exchanges the engine's model when a conversation needs another one; an engine that cannot do that stays."""

    def __init__(self, engine: Engine, shelf: Shelf) -> None:
        self._engine = engine
        self._shelf = shelf

    async def choose(self, session: Session, *, force: bool = False) -> Failed | None:
        """Let the next request load the model that a conversation names; `Failed` if there can be none.

        A conversation without a model takes what is there. `force` skips the look at the memory.
        """
        model, info = session.model, self._engine.info
        n_ctx = session.n_ctx
        if info and (model is None or info.weights == model.weights) and (n_ctx is None or info.n_ctx >= n_ctx):
            return None
        if not isinstance(self._engine, EngineSwitch):
            return _other(model, info) if model and info and info.weights != model.weights else None
        path = self._engine.choice.path
        if model and not (info and info.weights == model.weights):
            path = await asyncio.to_thread(self._shelf.find, model)
            if path is None:
                return _gone(model)
        return await self.use(Choice(path, n_ctx), force=force)

    async def use(self, choice: Choice, *, force: bool = False) -> Failed | None:
        """Let the next request load this choice; `Failed` if it is expected not to fit, or cannot be made."""
        if not isinstance(self._engine, EngineSwitch):
            return Failed("model", "This engine has one model only.")
        if choice == self._engine.choice:
            return None
        lack = (
            None if force else await asyncio.to_thread(self._shelf.lack, choice.path, choice.n_ctx, self._engine.info)
        )
        if lack:
            return Failed(NO_MEMORY, lack)
        try:
            await self._engine.use(choice)
        except ModelError as error:
            return Failed(error.kind, str(error))
        return None

    @property
    def choice(self) -> Choice:
        """What is loaded, or will be by the next request."""
        return self._engine.choice if isinstance(self._engine, EngineSwitch) else Choice()


def _gone(model: ModelRef) -> Failed:
    return Failed(
        MODEL_GONE,
        f"This conversation belongs to the model {model.name}, which is not on this machine any more: "
        "read it, or let another model go on with it.",
    )


def _other(model: ModelRef, info: ModelInfo) -> Failed:
    return Failed(
        MODEL_GONE,
        f"This conversation belongs to the model {model.name}, and {info.name} is running: "
        "read it, or let another model go on with it.",
    )
