"""One row of a batch: what a line of the input asks, or what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

from models.engine import Entry
from models.errors import GrammarError
from models.schema import grammar_of
from sessions.chat_request import entries_of, sampling_of
from sessions.errors import BadRequest
from sessions.hygiene import tidy
from sessions.turn import checked

Form = Literal["row", "openai"]
"""How a row is answered: by an object of ours, or by a line as the batch API of OpenAI writes them."""
RowId = str | int | float | bool | None
"""Whatever the row's `id` was; the answer carries it unchanged."""
MAX_LINE_BYTES = 64 << 20
"""Longer than the longest message in the longest spelling: nothing behind it is kept in memory."""
KEY_BYTES = 8
_URL = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the input: its `line` counts from 1, its `place` among the rows from 0.

    `key` (hex) stands for what is asked, so that an answer is found again; equal rows have equal keys. `entries` are
    its messages, `given` fields of `Sampling` of its own. With an `error`, one sentence, it cannot be asked.
    `n_replaced` characters of it could not be stored.
    """

    line: int
    place: int
    key: str
    id: RowId = None
    form: Form = "row"
    entries: tuple[Entry, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    n_replaced: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """How lines become rows. `salt` stands for what all rows have in common: another one makes other keys.

    With `is_text` each line is a prompt. Where rows go on with a conversation (`goes_on`), none may have a system
    prompt of its own.
    """

    salt: bytes = b""
    is_text: bool = False
    goes_on: bool = False

    def row(self, line: int, place: int, content: bytes) -> Row:
        """Return the row of a line, without what surrounds it. No line makes it fail."""
        if len(content) > MAX_LINE_BYTES:
            return self._bad(line, place, content, f"The line is longer than {MAX_LINE_BYTES >> 20} MiB.")
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            return self._bad(line, place, content, "The line is not UTF-8.")
        try:
            value = {"prompt": text} if self.is_text else json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return self._bad(line, place, content, "The line is not JSON.")
        if not isinstance(value, dict):
            return self._bad(line, place, content, 'The line is not a JSON object such as {"id": 1, "prompt": "..."}.')
        form: Form = "openai" if "custom_id" in value or "body" in value else "row"
        row_id = value.get("custom_id" if form == "openai" else "id")
        if isinstance(row_id, dict | list):
            return self._bad(line, place, content, "The id is neither text nor a number.", form=form)
        key = self._key(json.dumps(value, sort_keys=True).encode(), None if row_id is not None else place)
        try:
            entries, given, n_replaced = _asked(value, form)
            if self.goes_on and entries[0].role == "system":
                raise BadRequest("The row has a system prompt, and the conversation it goes on with has its own.")
        except (BadRequest, GrammarError) as error:
            return Row(line, place, key, row_id, form, error=str(error))
        return Row(line, place, key, row_id, form, entries, given, n_replaced=n_replaced)

    def _bad(self, line: int, place: int, content: bytes, reason: str, form: Form = "row") -> Row:
        return Row(line, place, self._key(content, place), None, form, error=reason)

    def _key(self, content: bytes, place: int | None) -> str:
        """Return the key of a row; `place` is part of it where the row has no id."""
        digest = blake2b(content, digest_size=KEY_BYTES, key=self.salt[:64])
        digest.update(b"" if place is None else b"\0%d" % place)
        return digest.hexdigest()


def _asked(value: Mapping[str, Any], form: Form) -> tuple[tuple[Entry, ...], dict[str, Any], int]:
    """Return messages, sampling of its own, and how many characters were replaced. Raises `BadRequest`."""
    if form == "openai":
        body = _body(value)
        given = sampling_of(body)
        entries, n_replaced = entries_of(body.get("messages"))
        return entries, given, n_replaced
    given = {} if value.get("json_schema") is None else {"grammar": grammar_of(value["json_schema"])}
    if "messages" in value:
        if "prompt" in value:
            raise BadRequest("The row has both a prompt and messages: one of them says what is asked.")
        entries, n_replaced = entries_of(value["messages"])
        return entries, given, n_replaced
    prompt = value.get("prompt")
    if not isinstance(prompt, str):
        raise BadRequest("The row has no prompt, or one that is not text.")
    return (Entry("user", checked(prompt, "prompt")),), given, tidy(prompt)[1]


def _body(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the chat request in a line of OpenAI's batch API: the model it names is not looked at."""
    if value.get("method", "POST") != "POST" or value.get("url", _URL) != _URL:
        raise BadRequest(f"The row is not a POST to {_URL}: nothing else is answered.")
    body = value.get("body")
    if not isinstance(body, dict):
        raise BadRequest("The row has no body, or one that is not a JSON object.")
    if body.get("stream"):
        raise BadRequest("The row asks for a stream: leave it out.")
    return body


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
