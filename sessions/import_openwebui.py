"""Open WebUI's export: a list of chats, each a tree under `chat.history.messages`. See `docs/import-export.md`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sessions.errors import BadRequest
from sessions.fieldvalues import mapping, seconds, sequence, text
from sessions.planting import Foreign, Turn


def is_conversation(value: Any) -> bool:
    """True for an object of this format."""
    chat = mapping(value).get("chat")
    return isinstance(mapping(mapping(chat).get("history")).get("messages"), dict)


def read(value: Any) -> Foreign:
    """Return the conversation of an object. Raises `BadRequest` if it is none."""
    if not is_conversation(value):
        raise BadRequest("It has no chat history.")
    chat = mapping(value["chat"])
    history = mapping(chat["history"])
    return Foreign(
        key=text(value.get("id")),
        title=text(value.get("title")) or text(chat.get("title")),
        turns=list(_turns(mapping(history["messages"]), text(chat.get("system")))),
        head=text(history.get("currentId")) or None,
        created_at=seconds(value.get("created_at")),
        updated_at=seconds(value.get("updated_at")),
        is_pinned=value.get("pinned") is True,
        is_archived=value.get("archived") is True,
    )


def _turns(messages: Mapping[str, Any], system: str) -> Iterator[Turn]:
    yield Turn("system prompt", None, "system", system)
    for key, value in messages.items():
        message = mapping(value)
        role = text(message.get("role"))
        parent = text(message.get("parentId")) or None
        at = seconds(message.get("timestamp"))
        files = [_file(mapping(file)) for file in sequence(message.get("files"))]
        said = "\n\n".join(part for part in (*files, text(message.get("content"))) if part.strip())
        if role == "user":
            yield Turn(key, parent, "user", said, at)
        elif role == "assistant":
            yield Turn(key, parent, "assistant", said, at)
        else:
            yield Turn(key, parent, "system" if role == "system" else "tool", said, at)


def _file(file: Mapping[str, Any]) -> str:
    return "[Image]" if file.get("type") == "image" else f"[File: {text(file.get('name')) or 'unnamed'}]"
