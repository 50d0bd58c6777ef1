"""Messages as chat APIs have them, and the request around them, read for a row of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.engine import Entry, Role
from models.schema import grammar_of
from sessions.errors import BadRequest
from sessions.hygiene import tidy
from sessions.turn import checked

URL = "/v1/chat/completions"
_ROLES: Mapping[object, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_NUMBERS: Mapping[str, tuple[str, type, float, float]] = {
    "temperature": ("temperature", float, 0, 1e6),
    "top_p": ("top_p", float, 0, 1),
    "min_p": ("min_p", float, 0, 1),
    "top_k": ("top_k", int, 0, 1 << 31),
    "repeat_penalty": ("repeat_penalty", float, 1e-6, 1e6),
    "seed": ("seed", int, 0, (1 << 32) - 1),
    "max_tokens": ("max_tokens", int, 1, 1 << 31),
    "max_completion_tokens": ("max_tokens", int, 1, 1 << 31),
}
"""Field of `Sampling`, type, least and largest value, by the name in a request."""
_REFUSED = (
    "audio",
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "logprobs",
    "presence_penalty",
    "stream",
    "tool_choice",
    "tools",
    "top_logprobs",
    "web_search_options",
)
"""What would make another answer and cannot be done; what says that it is off is fine."""


def entries_of(messages: object) -> tuple[tuple[Entry, ...], int]:
    """Return messages that end in a question, and how many characters of them were replaced.

    System text comes first, then user and assistant take turns. Raises `BadRequest`.
    """
    if not isinstance(messages, list) or not messages:
        raise BadRequest("The row has no messages, or they are not a list.")
    entries: list[Entry] = []
    n_replaced = 0
    for number, message in enumerate(messages, start=1):
        role, text = _message(number, message)
        if role == "system" and entries:
            raise BadRequest(f"Message {number} is a system prompt, which can only be the first message.")
        is_out_of_turn = entries[-1].role == role if entries else role == "assistant"
        if is_out_of_turn or (role == "assistant" and not _is_question(entries)):
            raise BadRequest(f"Message {number} is out of turn: after a system prompt, user and assistant alternate.")
        entries.append(Entry(role, checked(text, f"text of message {number}")))
        n_replaced += tidy(text)[1]
    if not _is_question(entries):
        raise BadRequest("The last message is not the user's, so that there is nothing to answer.")
    return tuple(entries), n_replaced


def _is_question(entries: Sequence[Entry]) -> bool:
    return bool(entries) and entries[-1].role == "user"


def _message(number: int, message: object) -> tuple[Role, str]:
    if not isinstance(message, dict):
        raise BadRequest(f"Message {number} is not a JSON object with a role and a content.")
    role = message.get("role")
    known = _ROLES.get(role) if isinstance(role, str) else None
    if known is None or message.get("tool_calls"):
        raise BadRequest(f"Message {number} is neither system's, user's nor assistant's text: tools are not there.")
    content = message.get("content")
    if isinstance(content, str):
        return known, content
    if not isinstance(content, list) or not all(_is_text(part) for part in content):
        raise BadRequest(f"The content of message {number} is not text: images and sound cannot be read.")
    return known, "".join(part["text"] for part in content)


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def request_of(value: Mapping[str, Any]) -> tuple[object, dict[str, Any]]:
    """Return the messages of a line of OpenAI's batch API, and fields of `Sampling`. Raises `BadRequest`.

    The model it names is not looked at: the loaded one answers. Raises `GrammarError` for a schema that cannot be kept.
    """
    if value.get("method", "POST") != "POST" or value.get("url", URL) != URL:
        raise BadRequest(f"The row is not a POST to {URL}: nothing else is answered.")
    body = value.get("body")
    if not isinstance(body, dict):
        raise BadRequest("The row has no body, or one that is not a JSON object.")
    if body.get("n") not in (None, 1):
        raise BadRequest("The row asks for several answers (n): one is what there is.")
    for name in _REFUSED:
        if body.get(name) and not (name == "tool_choice" and body[name] == "none"):
            raise BadRequest(f"The row asks for {name}, which is not there: leave it out.")
    given: dict[str, Any] = {
        field: _number(body, name) for name, (field, *_) in _NUMBERS.items() if body.get(name) is not None
    }
    if (stop := body.get("stop")) is not None:
        stops = [stop] if isinstance(stop, str) else stop
        if not isinstance(stops, list) or not all(isinstance(one, str) and one for one in stops):
            raise BadRequest("The row's stop is neither a text nor a list of texts.")
        given["stop"] = tuple(stops)
    grammar = _grammar(body.get("response_format"))
    return body.get("messages"), given if grammar is None else {**given, "grammar": grammar}


def _number(body: Mapping[str, Any], name: str) -> float:
    _field, kind, least, most = _NUMBERS[name]
    value = body[name]
    is_one = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if not is_one or not least <= value <= most:
        raise BadRequest(f"The row's {name} is not a number from {least:g} to {most:g}.")
    return int(value) if kind is int else float(value)


def _grammar(response_format: object) -> str | None:
    """Return the grammar of what an answer has to look like; None for free text."""
    if response_format is None:
        return None
    wanted = response_format if isinstance(response_format, dict) else {}
    match wanted.get("type"):
        case "text":
            return None
        case "json_object":
            return grammar_of({"type": "object"})
        case "json_schema" if isinstance(wanted.get("json_schema"), dict):
            return grammar_of(wanted["json_schema"].get("schema", {"type": "object"}))
    raise BadRequest("The row's response_format is neither text, json_object nor json_schema.")
