"""The messages of a chat request, read into a prompt's entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chatapp.serve.errors import BadField
from models.engine import Entry, Role
from sessions.errors import BadRequest
from sessions.hygiene import tidy
from sessions.turn import checked

MOST_MESSAGES = 10_000
_ROLES: Mapping[object, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_BETWEEN = "\n\n"
"""Stands between texts of the same role that follow one another: templates want the roles to take turns."""


def entries_of(messages: object) -> tuple[Entry, ...]:
    """Return messages that end in a question: system text first, then user and assistant in turns.

    Neighbours of the same role become one message. Raises `BadField`.
    """
    if not isinstance(messages, list) or not messages:
        raise BadField("messages", "There are no messages, or they are not a list.")
    if len(messages) > MOST_MESSAGES:
        raise BadField("messages", f"There are {len(messages):,} messages, and at most {MOST_MESSAGES:,} are taken.")
    said: list[tuple[Role, list[str]]] = []
    for n, message in enumerate(messages):
        role, text = _read(f"messages[{n}]", message)
        if role == "system" and not text.strip():
            continue
        if said and said[-1][0] == role:
            said[-1][1].append(text)
            continue
        if role == "system" and said:
            raise BadField(f"messages[{n}].role", "A system message can only stand before all others.")
        if role == "assistant" and not (said and said[-1][0] == "user"):
            raise BadField(f"messages[{n}].role", "The conversation has to begin with a message of the user's.")
        said.append((role, [text]))
    if not said or said[-1][0] != "user":
        raise BadField("messages", "The last message has to be the user's: there is nothing to answer.")
    return tuple(Entry(role, _BETWEEN.join(texts)) for role, texts in said)


def _read(place: str, message: object) -> tuple[Role, str]:
    if not isinstance(message, dict):
        raise BadField(place, "A message is an object with a role and a content.")
    name = message.get("role")
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise BadField(f"{place}.role", "The role is system, developer, user or assistant; tools are not supported.")
    if message.get("tool_calls") or message.get("function_call"):
        raise BadField(f"{place}.tool_calls", "Tools are not supported: send text only.")
    text = _text(f"{place}.content", message)
    if role != "user":
        return role, text
    try:
        return role, checked(text)
    except BadRequest as error:
        raise BadField(f"{place}.content", str(error)) from error


def _text(place: str, message: Mapping[str, Any]) -> str:
    """The content as text; an answer that was empty comes back as null."""
    content = message.get("content")
    if content is None and message["role"] == "assistant":
        return ""
    if isinstance(content, str):
        return tidy(content)[0]
    if not isinstance(content, list):
        raise BadField(place, "The content is neither a text nor a list of parts.")
    texts = []
    for n, part in enumerate(content):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise BadField(f"{place}[{n}]", "Only parts of type text can be read: no images, sound or files.")
        texts.append(text)
    return tidy("".join(texts))[0]
