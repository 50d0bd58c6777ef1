"""Conversations as values: `Session`, `Message`, `SessionSummary`, and the model a conversation belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.engine import ModelInfo, Role, TokenRun, TurnStats
from models.presets import SamplingChoice

SessionState = Literal["open", "done"]
MessageStatus = Literal["complete", "stopped", "cut", "interrupted", "failed"]
ReasoningPolicy = Literal["keep", "strip"]
"""What later prompts contain of an answer's reasoning: all of it, or nothing."""


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model as conversations name it: by content, the hash of its weights (hex). `path` is where it last was."""

    weights: str
    name: str
    path: str
    n_bytes: int


def model_ref(info: ModelInfo) -> ModelRef:
    """Return how conversations name a loaded model."""
    return ModelRef(info.weights, info.name, info.path, info.file_bytes)


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation, one task. Times are seconds since the epoch; None means never, or not.

    `model` is None until a model has answered, or read, something of it; `n_ctx` is the context it needs, if it has
    outgrown the usual one. `sampling` is its own choice, `forked_from` the conversation it was forked from.
    """

    id: str
    title: str
    task: str
    state: SessionState
    system: str | None
    model: ModelRef | None
    created_at: float
    updated_at: float
    trashed_at: float | None
    n_ctx: int | None = None
    reasoning: ReasoningPolicy = "keep"
    sampling: SamplingChoice | None = None
    forked_from: str | None = None
    pinned_at: float | None = None
    archived_at: float | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attachment:
    """A part of a message that came from a file or a big paste: `text[start:end]`, in characters.

    `sha256` (hex) is of that part's UTF-8: equal parts of other messages have it too.
    """

    name: str
    start: int
    end: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A text that was not sent yet, and what is attached in it; the spans are ascending and do not overlap."""

    text: str
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """One stored message. `run` is None until its conversation's model tokenized it; `stats` belongs to answers.

    `parent_id` is the message before it; messages with the same parent are versions of each other.
    """

    id: int
    session_id: str
    role: Role
    text: str
    status: MessageStatus
    run: TokenRun | None
    stats: TurnStats | None
    created_at: float
    parent_id: int | None = None
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class Version:
    """Which of several versions a message is: the `number`th (from 1) of `ids`, oldest first."""

    number: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A row of the sidebar: the session, how many messages (system prompt not counted) and tokens it holds."""

    session: Session
    n_messages: int
    n_tokens: int
