"""A chat request as OpenAI's API has it: its messages, how it is sampled, and what of it cannot be done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.engine import Entry, Role
from models.errors import GrammarError
from models.schema import grammar_of
from sessions.errors import BadField, BadRequest
from sessions.hygiene import tidy
from sessions.turn import checked

MOST_MESSAGES = 10_000
MOST_STOPS = 16
LONGEST_STOP = 1000
_LARGEST_SEED = (1 << 32) - 1
_ROLES: Mapping[object, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_BETWEEN = "\n\n"
"""Stands between texts of the same role that follow one another: templates want the roles to take turns."""


@dataclass(frozen=True, slots=True)
class _Number:
    """A number in a request: the field of `Sampling` it is, and what it may be; `unset` means as if it were absent."""

    target: str
    least: float
    most: float
    is_whole: bool = False
    unset: int | None = None


_NUMBERS: Mapping[str, _Number] = {
    "temperature": _Number("temperature", 0, 100),
    "top_p": _Number("top_p", 0, 1),
    "min_p": _Number("min_p", 0, 1),
    "top_k": _Number("top_k", -1, 1 << 31, is_whole=True),
    "repeat_penalty": _Number("repeat_penalty", 0.01, 100),
    "repetition_penalty": _Number("repeat_penalty", 0.01, 100),
    "seed": _Number("seed", -(1 << 63), (1 << 63) - 1, is_whole=True, unset=-1),
    "max_tokens": _Number("max_tokens", 1, 1 << 31, is_whole=True, unset=-1),
    "max_completion_tokens": _Number("max_tokens", 1, 1 << 31, is_whole=True, unset=-1),
}
"""By name in a request; of two for the same thing the later one here counts."""

_REFUSED: Mapping[str, Callable[[Any], bool]] = {
    "audio": bool,
    "echo": bool,
    "frequency_penalty": bool,
    "function_call": lambda value: value not in (None, "none", "auto"),
    "functions": bool,
    "guided_choice": bool,
    "guided_grammar": bool,
    "guided_json": bool,
    "guided_regex": bool,
    "logit_bias": bool,
    "logprobs": bool,
    "modalities": lambda value: value not in (None, [], ["text"]),
    "n": lambda value: value not in (None, 1),
    "presence_penalty": bool,
    "structured_outputs": bool,
    "tool_choice": lambda value: value not in (None, "none", "auto"),
    "tools": bool,
    "top_logprobs": bool,
    "web_search_options": lambda value: value is not None,
}
"""What would make another answer and cannot be done, by what asks for it. All else that is not known is ignored."""


def entries_of(messages: object) -> tuple[tuple[Entry, ...], int]:
    """Return messages that end in a question, and how many characters of them were replaced.

    System text comes first, then user and assistant take turns; neighbours of the same role become one message. Raises
    `BadField`.
    """
    if not isinstance(messages, list) or not messages:
        raise BadField("messages", "There are no messages, or they are not a list.")
    if len(messages) > MOST_MESSAGES:
        raise BadField("messages", f"There are {len(messages):,} messages, and at most {MOST_MESSAGES:,} are taken.")
    said: list[tuple[Role, list[str]]] = []
    n_replaced = 0
    for n, message in enumerate(messages):
        role, text, n_bad = _read(f"messages[{n}]", message)
        n_replaced += n_bad
        if role == "system" and not text.strip():
            continue
        if said and said[-1][0] == role:
            said[-1][1].append(text)
            continue
        if role == "system" and said:
            raise BadField(
                f"messages[{n}].role", f"messages[{n}] is a system message, which can only stand before all others."
            )
        if role == "assistant" and not (said and said[-1][0] == "user"):
            raise BadField(
                f"messages[{n}].role", f"messages[{n}] answers nothing: a conversation begins with the user's message."
            )
        said.append((role, [text]))
    if not said or said[-1][0] != "user":
        raise BadField("messages", "The last message has to be the user's: there is nothing to answer.")
    return tuple(Entry(role, _BETWEEN.join(texts)) for role, texts in said), n_replaced


def sampling_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Sampling` that a request gives. Raises `BadField`, for what cannot be done too."""
    for name, asks in _REFUSED.items():
        if name in body and asks(body[name]) and not (name == "tools" and body.get("tool_choice") == "none"):
            raise BadField(name, f"{name} is not supported here: leave it out.", code="unsupported_parameter")
    given = _numbers(body)
    if stops := _stops(body.get("stop")):
        given["stop"] = stops
    if grammar := _grammar(body):
        given["grammar"] = grammar
    return given


def _read(place: str, message: object) -> tuple[Role, str, int]:
    if not isinstance(message, dict):
        raise BadField(place, f"{place} is not an object with a role and a content.")
    name = message.get("role")
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise BadField(
            f"{place}.role", f"The role of {place} is not system, developer, user or assistant: there are no tools."
        )
    if message.get("tool_calls") or message.get("function_call"):
        raise BadField(f"{place}.tool_calls", f"{place} calls tools, which are not supported: send text only.")
    text, n_replaced = tidy(_text(f"{place}.content", message))
    try:
        # An answer may have been nothing but reasoning, and many clients send a system prompt in any case.
        return role, checked(text, f"content of {place}") if role == "user" or text.strip() else text, n_replaced
    except BadRequest as error:
        raise BadField(f"{place}.content", str(error)) from error


def _text(place: str, message: Mapping[str, Any]) -> str:
    """The content as text; an answer that was empty comes back as null."""
    content = message.get("content")
    if content is None and message["role"] == "assistant":
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadField(place, f"{place} is neither a text nor a list of parts.")
    texts = []
    for n, part in enumerate(content):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise BadField(
                f"{place}[{n}]", f"{place}[{n}] is no part of type text: no images, sound or files are read."
            )
        texts.append(text)
    return "".join(texts)


def _numbers(body: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, wanted in _NUMBERS.items():
        number = body.get(name)
        if number is None or (wanted.unset is not None and number == wanted.unset):
            continue
        is_one = isinstance(number, int if wanted.is_whole else int | float) and not isinstance(number, bool)
        if not is_one or not wanted.least <= number <= wanted.most:
            kind = "whole number" if wanted.is_whole else "number"
            raise BadField(name, f"{name} is not a {kind} from {wanted.least:g} to {wanted.most:g}.")
        given[wanted.target] = int(number) if wanted.is_whole else float(number)
    if "top_k" in given:
        given["top_k"] = max(0, given["top_k"])
    if "seed" in given:
        given["seed"] &= _LARGEST_SEED
    return given


def _stops(stop: object) -> tuple[str, ...]:
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise BadField("stop", "stop is neither a text nor a list of texts.")
    if len(stops) > MOST_STOPS or any(len(one) > LONGEST_STOP for one in stops):
        raise BadField("stop", f"stop is at most {MOST_STOPS} texts of {LONGEST_STOP:,} characters each.")
    return tuple(one for one in stops if one)


def _grammar(body: Mapping[str, Any]) -> str | None:
    """Return the grammar an answer is to follow, however that is said; None for free text."""
    ways = [name for name in ("response_format", "json_schema", "grammar") if body.get(name) is not None]
    if body.get("response_format") == {"type": "text"}:
        ways.remove("response_format")
    if len(ways) > 1:
        raise BadField(ways[1], f"{ways[0]} and {ways[1]} do not go together: leave one out.")
    if not ways:
        return None
    (way,) = ways
    if way == "grammar":
        if not isinstance(body[way], str):
            raise BadField(way, "grammar is not a text in GBNF.")
        return body[way] or None
    try:
        return grammar_of(body[way] if way == "json_schema" else _schema(body[way]))
    except GrammarError as error:
        raise BadField(way, str(error), code="invalid_schema") from error


def _schema(response_format: object) -> object:
    match response_format:
        case {"type": "json_object", "schema": schema}:
            return schema
        case {"type": "json_object"}:
            return {"type": "object"}
        case {"type": "json_schema", "json_schema": dict(wanted)}:
            return wanted.get("schema", {"type": "object"})
    raise BadField("response_format", "The type of response_format is text, json_object or json_schema.")
