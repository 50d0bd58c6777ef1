"""Which stored messages later prompts are made of; pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from models.engine import Entry
from sessions.conversation import Message


def prompt_messages(messages: Sequence[Message]) -> list[Message]:
    """Return the system prompt and every turn that counts, oldest first.

    A turn is a question and the answer right after it. It counts when both are there and neither is `failed`;
    so the roles always alternate, and a question the engine could not take never comes back in a later
    prompt.
    """
    chosen = [message for message in messages if message.role == "system"]
    for question, answer in pairwise(messages):
        if (question.role, answer.role) == ("user", "assistant") and "failed" not in (
            question.status,
            answer.status,
        ):
            chosen += [question, answer]
    return chosen


def open_question(messages: Sequence[Message]) -> Message | None:
    """Return the last message if it is a question that still waits for its answer."""
    last = messages[-1] if messages else None
    return last if last and last.role == "user" and last.status != "failed" else None


def entries(messages: Sequence[Message]) -> tuple[Entry, ...]:
    """Return messages as prompt entries, with the token runs they have."""
    return tuple(Entry(message.role, message.text, message.run) for message in messages)


def title_of(text: str, limit: int = 80) -> str:
    """Return the first line that says something, with single spaces, cut to `limit` characters."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    return " ".join(line.split())[:limit].rstrip()
