"""The body of a chat request: what is asked, and what of it cannot be done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from models.engine import Entry
from sessions.chat_request import entries_of, sampling_of
from sessions.errors import BadField


@dataclass(frozen=True, slots=True)
class Asked:
    """One chat request. `given` are fields of `Sampling`; `model` is None where none is named."""

    entries: tuple[Entry, ...]
    model: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    may_reason: bool = True
    streams: bool = False
    wants_usage: bool = False


def read_request(body: bytes) -> Asked:
    """Read the body of a chat request. Raises `BadField`, which names what is wrong."""
    value = _parse(body)
    given = sampling_of(value)
    model = value.get("model")
    if model is not None and not isinstance(model, str):
        raise BadField("model", "The model is not a text.")
    options = value.get("stream_options")
    entries, _ = entries_of(value.get("messages"))
    return Asked(
        entries,
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
