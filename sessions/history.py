"""Which stored messages later prompts are made of; pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from models.engine import Entry, Prompt
from models.reasoning import answer_of
from sessions.conversation import Message, ReasoningPolicy


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


def prompt_of(messages: Sequence[Message], policy: ReasoningPolicy, *, continues: Message | None = None) -> Prompt:
    """Return messages as a prompt, with the token runs they have.

    Where the reasoning in answers is to be stripped, an answer that has no run yet is given without it. `continues` is
    an answer that is to go on behind them, with its reasoning: its tokens are those of its text if that was stripped.
    """
    entries = [
        Entry(
            message.role,
            answer_of(message.text) if (message.role, policy) == ("assistant", "strip") else message.text,
            message.run,
        )
        for message in messages
    ]
    if continues:
        is_whole = policy == "keep" or continues.text == answer_of(continues.text)
        entries.append(Entry("assistant", continues.text, continues.run if is_whole else None))
    return Prompt(tuple(entries), reasoning=policy, conversation=messages[0].session_id if messages else "")


def title_of(text: str, limit: int = 80) -> str:
    """Return the first line that says something, with single spaces, cut to `limit` characters."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    return " ".join(line.split())[:limit].rstrip()
