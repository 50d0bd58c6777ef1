"""Claude's export: `conversations.json`, a list of conversations with `chat_messages`.

The format is not documented by its maker; this reads what its exports are known to hold. See `docs/import-export.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sessions.errors import BadRequest
from sessions.fieldvalues import mapping, seconds, sequence, text
from sessions.planting import Foreign, Turn


def is_conversation(value: Any) -> bool:
    """True for an object of this format."""
    return isinstance(value, dict) and isinstance(value.get("chat_messages"), list)


def read(value: Any) -> Foreign:
    """Return the conversation of an object. Raises `BadRequest` if it is none."""
    if not is_conversation(value):
        raise BadRequest("It has no chat_messages.")
    return Foreign(
        key=text(value.get("uuid")),
        title=text(value.get("name")),
        turns=list(_turns(value["chat_messages"])),
        head=text(value.get("current_leaf_message_uuid")) or None,
        created_at=seconds(value.get("created_at")),
        updated_at=seconds(value.get("updated_at")),
        is_pinned=value.get("is_starred") is True,
    )


def _turns(messages: list[Any]) -> Iterator[Turn]:
    """Yield the messages. Older exports do not say which one a message follows: there each follows the last."""
    is_tree = any(text(mapping(message).get("parent_message_uuid")) for message in messages)
    last: str | None = None
    for number, value in enumerate(messages):
        message = mapping(value)
        key = text(message.get("uuid")) or f"message {number}"
        said, reasoning = _said(message)
        sender = text(message.get("sender"))
        parent = (text(message.get("parent_message_uuid")) or None) if is_tree else last
        at = seconds(message.get("created_at"))
        if sender in ("human", "user"):
            yield Turn(key, parent, "user", said, at)
        else:
            yield Turn(key, parent, "assistant" if sender == "assistant" else "hidden", said, at, reasoning)
        last = key


def _said(message: Mapping[str, Any]) -> tuple[str, str]:
    """Return text, with the text of attachments in front, and reasoning; calls of tools and their results stay out."""
    blocks = [mapping(block) for block in sequence(message.get("content"))]
    said = [text(block.get("text")) for block in blocks if block.get("type") == "text"]
    thoughts = [text(block.get("thinking")) for block in blocks if block.get("type") == "thinking"]
    body = "\n\n".join(part for part in said if part.strip()) or ("" if blocks else text(message.get("text")))
    return "\n\n".join(part for part in (*_attached(message), body) if part.strip()), "\n\n".join(
        filter(None, thoughts)
    )


def _attached(message: Mapping[str, Any]) -> Iterator[str]:
    for value in sequence(message.get("attachments")):
        attachment = mapping(value)
        name = text(attachment.get("file_name")) or "unnamed"
        content = text(attachment.get("extracted_content"))
        yield f"[Attachment: {name}]\n{content}\n[End of attachment]" if content.strip() else f"[Attachment: {name}]"
    for value in sequence(message.get("files")):
        yield f"[File: {text(mapping(value).get('file_name')) or 'unnamed'}]"
