"""Titles that a model makes, behind a conversation that is resident; pure."""

from __future__ import annotations

from collections.abc import Sequence

from models.reasoning import answer_of
from sessions.conversation import Message
from sessions.history import title_of
from sessions.room import whole_turns

QUESTION = "Give our conversation a title of at most six words, in its own language. Answer with the title only."
TITLE_TOKENS = 32
_QUESTION_TOKENS = 64
"""More than the question and its glue take."""
_QUOTES = "\"'“”„«»‘’「」『』*_#` "


def split(history: Sequence[Message], n_ctx: int) -> tuple[list[Message], list[Message]]:
    """Return what the title is asked behind, the first turns as far as there is room for it, and the rest."""
    return whole_turns(history, n_ctx - _QUESTION_TOKENS - TITLE_TOKENS)


def read_title(answer: str) -> str:
    """Return the title that a model's answer is, without quotes and a full stop around it; it may be empty."""
    line = title_of(answer_of(answer)).strip(_QUOTES)
    for word in ("Title:", "제목:", "标题：", "タイトル："):
        line = line.removeprefix(word)
    return line.strip(_QUOTES).removesuffix(".").strip(_QUOTES)
