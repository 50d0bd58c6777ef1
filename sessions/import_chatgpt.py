"""ChatGPT's export: `conversations.json`, a list of conversations that each are a tree under `mapping`.

The format is not documented by its maker; this reads what its exports are known to hold. See `docs/import-export.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sessions.errors import BadRequest
from sessions.fieldvalues import mapping, seconds, sequence, text
from sessions.planting import Foreign, Turn

_PLACEHOLDERS = {
    "image_asset_pointer": "[Image]",
    "audio_asset_pointer": "[Audio]",
    "video_container_asset_pointer": "[Video]",
    "real_time_user_audio_video_asset_pointer": "[Audio]",
}
_CONTEXT = ("user_editable_context", "model_editable_context", "reasoning_recap", "system_error")
"""Said by the program, not in the conversation."""
_FROM_TOOLS = ("execution_output", "tether_quote", "tether_browsing_display", "sonic_webpage", "computer_output")


def is_conversation(value: Any) -> bool:
    """True for an object of this format."""
    return isinstance(value, dict) and isinstance(value.get("mapping"), dict)


def read(value: Any) -> Foreign:
    """Return the conversation of an object. Raises `BadRequest` if it is none."""
    if not is_conversation(value):
        raise BadRequest("It has no mapping of messages.")
    return Foreign(
        key=text(value.get("conversation_id")) or text(value.get("id")),
        title=text(value.get("title")),
        turns=[_turn(key, mapping(node)) for key, node in value["mapping"].items()],
        head=text(value.get("current_node")) or None,
        created_at=seconds(value.get("create_time")),
        updated_at=seconds(value.get("update_time")),
        is_pinned=value.get("is_starred") is True,
        is_archived=value.get("is_archived") is True,
    )


def _turn(key: str, node: Mapping[str, Any]) -> Turn:
    message = mapping(node.get("message"))
    content = mapping(message.get("content"))
    said, reasoning = _said(content)
    return Turn(
        key=key,
        parent=text(node.get("parent")) or None,
        role=_role(message, text(content.get("content_type"))),
        text=said,
        at=seconds(message.get("create_time")),
        reasoning=reasoning,
    )


def _role(message: Mapping[str, Any], kind: str) -> Literal["system", "user", "assistant", "tool", "hidden"]:
    role = text(mapping(message.get("author")).get("role"))
    is_hidden = mapping(message.get("metadata")).get("is_visually_hidden_from_conversation") is True
    if is_hidden or kind in _CONTEXT or message.get("weight") == 0:
        return "hidden"
    if role == "tool" or kind in _FROM_TOOLS or text(message.get("recipient")) not in ("", "all"):
        return "tool"
    return (
        "user" if role == "user" else "assistant" if role == "assistant" else "system" if role == "system" else "hidden"
    )


def _said(content: Mapping[str, Any]) -> tuple[str, str]:
    """Return text and reasoning of a message's content."""
    kind = text(content.get("content_type"))
    if kind == "thoughts":
        thoughts = [mapping(thought) for thought in sequence(content.get("thoughts"))]
        found = [text(thought.get("content")) or text(thought.get("summary")) for thought in thoughts]
        return "", "\n\n".join(thought for thought in found if thought.strip())
    if kind == "code":
        code = text(content.get("text")) or _joined(content.get("parts"))
        language = text(content.get("language"))
        return (
            f"{_fence(code)}{language if language.isalnum() and language != 'unknown' else ''}\n{code}\n{_fence(code)}",
            "",
        )
    return _joined(content.get("parts")) or text(content.get("text")), ""


def _fence(code: str) -> str:
    """Return a fence that the code does not hold."""
    fence = "```"
    while fence in code:
        fence += "`"
    return fence


def _joined(parts: Any) -> str:
    return "\n\n".join(part for part in map(_part, sequence(parts)) if part.strip())


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = text(mapping(part).get("content_type"))
    if kind == "audio_transcription" or (not kind and text(mapping(part).get("text"))):
        return text(mapping(part).get("text"))
    return _PLACEHOLDERS.get(kind, "[Attachment]" if part else "")
