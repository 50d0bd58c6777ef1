"""Conversations as values: `Session`, `Message`, `SessionSummary`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.engine import Role, TokenRun, TurnStats

SessionState = Literal["open", "done"]
MessageStatus = Literal["complete", "stopped", "cut", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation, one task. Times are seconds since the epoch; `trashed_at` None means not in the trash."""

    id: str
    title: str
    task: str
    state: SessionState
    system: str | None
    model: str | None
    created_at: float
    updated_at: float
    trashed_at: float | None


@dataclass(frozen=True, slots=True)
class Message:
    """One stored message. `run` is None until an engine tokenized it; `stats` belongs to answers."""

    id: int
    session_id: str
    role: Role
    text: str
    status: MessageStatus
    run: TokenRun | None
    stats: TurnStats | None
    created_at: float


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A row of the sidebar: the session, how many messages (system prompt not counted) and tokens it holds."""

    session: Session
    n_messages: int
    n_tokens: int
