"""Whether the next message and its answer fit into the context, and what a larger one would cost; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.engine import ModelInfo
from sessions.conversation import Message

GLUE_TOKENS = 32
"""What the template may add around a message and its answer."""
ANSWER_TOKENS = 512
"""Room that an answer should have; an eighth of smaller contexts."""
COMFORT = 0.8
"""Share of the available memory that a larger context may take."""
BYTES_PER_TOKEN = 3
"""For text that this model has not tokenized yet: rather too many tokens than too few."""


@dataclass(frozen=True, slots=True)
class Room:
    """Tokens that the next turn needs, of which `n_kept` are those of the conversation so far; tokens of the context.

    `n_ctx_max` is the context that would hold it, where the model and the memory allow one (else `n_ctx`), and
    `more_bytes` the memory it takes beyond today's.
    """

    n_needed: int
    n_ctx: int
    n_ctx_max: int
    n_kept: int
    more_bytes: int

    @property
    def is_short(self) -> bool:
        """True when the message does not fit, or leaves no room for an answer worth the name."""
        return self.n_needed > self.n_ctx


def tokens_of(message: Message) -> int:
    """Tokens of a message with its glue; an estimate where this model has not tokenized it yet."""
    return len(message.run.ids) if message.run else len(message.text.encode("utf-8", "replace")) // BYTES_PER_TOKEN + 8


def whole_turns(history: Sequence[Message], n_tokens: int) -> tuple[list[Message], list[Message]]:
    """Split a history behind the last answer up to which it takes at most so many tokens."""
    end, used = 0, 0
    for position, message in enumerate(history, 1):
        used += tokens_of(message)
        if used > n_tokens:
            break
        if message.role == "assistant":
            end = position
    return list(history[:end]), list(history[end:])


def room(info: ModelInfo, history: Sequence[Message], n_draft: int, available_bytes: int) -> Room:
    """Count what a draft of `n_draft` tokens needs behind a history."""
    n_kept = sum(map(tokens_of, history))
    n_needed = n_kept + n_draft + GLUE_TOKENS + min(ANSWER_TOKENS, info.n_ctx // 8)
    larger = info.n_ctx
    while larger < n_needed and larger < info.n_ctx_train:
        larger = min(2 * larger, info.n_ctx_train)
    more_bytes = (larger - info.n_ctx) * info.kv_bytes_per_token
    if larger < n_needed or more_bytes > available_bytes * COMFORT:
        larger, more_bytes = info.n_ctx, 0
    return Room(n_needed, info.n_ctx, larger, n_kept, more_bytes)
