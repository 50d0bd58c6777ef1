"""Going on in a new conversation with a summary of a long one; pure."""

from __future__ import annotations

from collections.abc import Sequence

from models.reasoning import answer_of
from sessions.conversation import Message
from sessions.room import whole_turns

QUESTION = (
    "Summarize our conversation so far for somebody who goes on with it and has not read it: what I want, what was "
    "decided or found out, names, numbers and code that matter, what is still open. Write in the language of our "
    "conversation. Write the summary only."
)
SUMMARY_TOKENS = 512
"""Longest summary; an eighth of smaller contexts."""
_QUESTION_TOKENS = 128
"""More than the question and its glue take."""


def summary_tokens(n_ctx: int) -> int:
    """How long a summary may become in a context of `n_ctx` tokens."""
    return min(SUMMARY_TOKENS, n_ctx // 8)


def split(history: Sequence[Message], n_ctx: int) -> tuple[list[Message], list[Message]]:
    """Return what is summarized and what is quoted: the last turns, as far as the context has no room for them.

    The first part ends behind an answer, so that it is a prefix of what is resident.
    """
    return whole_turns(history, n_ctx - _QUESTION_TOKENS - summary_tokens(n_ctx))


def continuation(summary: str, quoted: Sequence[Message]) -> str:
    """Return what the first message of the new conversation begins with, for the user to read and change."""
    parts = ["This goes on from an earlier conversation. A summary of it:", answer_of(summary).strip()]
    if quoted:
        parts.append("Its last messages, word for word:")
        parts += [
            f"{'I' if m.role == 'user' else 'You'}: {answer_of(m.text).strip()}" for m in quoted if m.text.strip()
        ]
    return "\n\n".join(parts) + "\n\n"
