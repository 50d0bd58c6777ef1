"""The body of a chat request: what is asked, and what of it cannot be done."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from chatapp.serve.errors import BadField
from chatapp.serve.messages import entries_of
from models.engine import Entry
from models.errors import GrammarError
from models.schema import grammar_of

MOST_STOPS = 16
LONGEST_STOP = 1000
_LARGEST_SEED = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Asked:
    """One chat request. `given` are fields of `Sampling`; `model` is None where none is named."""

    entries: tuple[Entry, ...]
    model: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    may_reason: bool = True
    streams: bool = False
    wants_usage: bool = False


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


def read_request(body: bytes) -> Asked:
    """Read the body of a chat request. Raises `BadField`, which names what is wrong."""
    value = _parse(body)
    for name, asks in _REFUSED.items():
        if name in value and asks(value[name]) and not (name == "tools" and value.get("tool_choice") == "none"):
            raise BadField(name, f"{name} is not supported here: leave it out.", code="unsupported_parameter")
    given = _numbers(value)
    if stops := _stops(value.get("stop")):
        given["stop"] = stops
    if grammar := _grammar(value):
        given["grammar"] = grammar
    model = value.get("model")
    if model is not None and not isinstance(model, str):
        raise BadField("model", "The model is not a text.")
    options = value.get("stream_options")
    return Asked(
        entries_of(value.get("messages")),
        model or None,
        given,
        may_reason=_may_reason(value),
        streams=_switch(value, "stream"),
        wants_usage=_switch(options, "include_usage") if isinstance(options, dict) else False,
    )


def _parse(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise BadField(None, f"The body is not UTF-8 text: byte {error.start} is none.") from error
    except RecursionError as error:
        raise BadField(None, "The body nests too deep.") from error
    except ValueError as error:
        # What json says of a text names places in it, never the text.
        raise BadField(None, f"The body is not JSON ({error}).") from error
    if not isinstance(value, dict):
        raise BadField(None, "The body is not a JSON object.")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON's")


def _numbers(value: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, wanted in _NUMBERS.items():
        number = value.get(name)
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


def _grammar(value: Mapping[str, Any]) -> str | None:
    """Return the grammar an answer is to follow, however that is said; None for free text."""
    ways = [name for name in ("response_format", "json_schema", "grammar") if value.get(name) is not None]
    if value.get("response_format") == {"type": "text"}:
        ways.remove("response_format")
    if len(ways) > 1:
        raise BadField(ways[1], f"{ways[0]} and {ways[1]} do not go together: leave one out.")
    if not ways:
        return None
    (way,) = ways
    if way == "grammar":
        if not isinstance(value[way], str):
            raise BadField(way, "grammar is not a text in GBNF.")
        return value[way] or None
    try:
        return grammar_of(value[way] if way == "json_schema" else _schema(value[way]))
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


def _may_reason(value: Mapping[str, Any]) -> bool:
    """False where a request asks for an answer without reasoning, in one of the two usual ways."""
    template = value.get("chat_template_kwargs")
    is_off = isinstance(template, dict) and template.get("enable_thinking") is False
    return not is_off and value.get("reasoning_effort") != "none"


def _switch(value: Mapping[str, Any], name: str) -> bool:
    switch = value.get(name)
    if switch is not None and not isinstance(switch, bool):
        raise BadField(name, f"{name} is neither true nor false.")
    return bool(switch)
