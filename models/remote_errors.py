"""What goes wrong between us and a server, each in one sentence; the only place that reads a server's errors.

EngineError
└── RemoteError               a server could not be asked, or did not answer; `kind` says which:
    "unreachable"             no connection: refused, no such host, TLS not trusted, no answer in time
    "insecure"                the profile would send text or key where others can read them
    "key"                     401 or 403, or the key could not be had
    "no_model"                404: no such model, or no such address
    "busy"                    429 or 503: to be asked again, after `retry_after_s`
    "too_long"                the prompt does not fit the server's context
    "refused"                 400 and its like; `field` is the field that the server will not take, if it names one
    "cut"                     the stream ended before the answer did
    "server"                  everything else that is the server's fault
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from models.errors import EngineError

_OVERFLOW = re.compile(
    r"context (?:length|size|window)|exceed_context_size|context_length_exceeded|prompt is too long|too many tokens",
    re.IGNORECASE,
)
_SHOWN_CHARS = 200
MAX_WAIT_S = 30.0
"""Longest wait that a server can ask for before it is asked again without the user."""


class RemoteError(EngineError):
    """A server could not be asked, or did not answer.

    `retry_after_s` is when it can be asked again without the user; None: it did not say, or it would not help.
    """

    def __init__(
        self, kind: str, message: str, *, retry_after_s: float | None = None, field: str | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after_s = retry_after_s
        self.field = field


def quoted(text: str, secrets: Iterable[str]) -> str:
    """Return a server's words as one short line in which no secret stands."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "[key]")
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _SHOWN_CHARS else line[: _SHOWN_CHARS - 1] + "…"


def message_in(body: Any) -> tuple[str, dict[str, Any]]:
    """Return what a server says went wrong, and the object that says it; servers have three forms for it."""
    if not isinstance(body, dict):
        return (body if isinstance(body, str) else ""), {}
    for key in ("error", "detail", "message"):
        value = body.get(key)
        if isinstance(value, str):
            return value, body
        if isinstance(value, dict):
            return str(value.get("message") or value.get("code") or ""), value
        if isinstance(value, list) and value and isinstance(value[0], dict):
            first = value[0]
            where = ".".join(str(part) for part in first.get("loc", ()) if part != "body")
            return f"{where}: {first.get('msg', '')}", {"param": where}
    return "", body


def read_body(raw: bytes) -> Any:
    """Return a body as JSON, or as text if it is none."""
    text = raw.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text if "<html" not in text.lower() else ""


def from_status(
    name: str,
    status: int,
    headers: Mapping[str, str],
    body: Any,
    *,
    sent: Iterable[str] = (),
    secrets: Iterable[str] = (),
) -> RemoteError:
    """Return the error that a status other than 200 stands for. `sent` are fields that can be left out."""
    text, facts = message_in(body)
    said = quoted(text, secrets)
    saying = f' ("{said}")' if said else ""
    if 300 <= status < 400:
        target = urlsplit(headers.get("location", "")).netloc.rpartition("@")[2] or "another address"
        return RemoteError(
            "server",
            f"{name} sends on to {quoted(target, secrets)}, which is not followed so that the key goes nowhere else: "
            "if that is right, make it the base_url.",
        )
    if status in (401, 403):
        return RemoteError(
            "key", f"{name} does not take the key{saying}: set another with key_env or key_command in its profile."
        )
    if status in (429, 503):
        wait_s = retry_after(headers)
        when = f"in {wait_s:.0f} s" if wait_s else "later"
        why = "has too many requests" if status == 429 else "is not ready"
        return RemoteError("busy", f"{name} {why}{saying}: try again {when}.", retry_after_s=wait_s)
    if status in (400, 413, 422):
        return _refused(name, status, text, said, facts, sent)
    if status == 404:
        return RemoteError(
            "no_model",
            f"{name} knows no such model or address{saying}: check base_url and model of its profile.",
        )
    return RemoteError("server", f"{name} failed with status {status}{saying}: try again, or look at its log.")


def _refused(
    name: str, status: int, text: str, said: str, facts: Mapping[str, Any], sent: Iterable[str]
) -> RemoteError:
    field = _field(text, facts, sent)
    if field is None or (field == "stream_options" and _OVERFLOW.search(text)):
        kinds = f"{text} {facts.get('type', '')} {facts.get('code', '')}"
        if status == 413 or _OVERFLOW.search(kinds):
            return too_long(name, _number(facts.get("n_prompt_tokens")), _number(facts.get("n_ctx")), said)
    saying = f' ("{said}")' if said else ""
    return RemoteError("refused", f"{name} refuses the request{saying}: change the settings it names.", field=field)


def too_long(name: str, n_prompt: int | None, n_ctx: int | None, said: str = "") -> RemoteError:
    """The prompt does not fit."""
    if n_prompt and n_ctx:
        sizes = f"The prompt has {n_prompt:,} tokens, and the context at {name} holds {n_ctx:,}"
    else:
        sizes = f"The prompt is longer than the context at {name}" + (f' ("{said}")' if said else "")
    return RemoteError("too_long", f"{sizes}: leave out turns, or start a new conversation.")


def in_stream(name: str, event: Mapping[str, Any], secrets: Iterable[str]) -> RemoteError:
    """An error that came inside of an answer."""
    text, facts = message_in(event)
    said = quoted(text, secrets)
    if _OVERFLOW.search(f"{text} {facts.get('type', '')}"):
        return too_long(name, _number(facts.get("n_prompt_tokens")), _number(facts.get("n_ctx")), said)
    saying = f' ("{said}")' if said else ""
    return RemoteError("server", f"{name} broke the answer off{saying}: what was said is kept; try again.")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds a server asks to wait; None where it does not say, or gives a date."""
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < 86_400 else None


def _field(text: str, facts: Mapping[str, Any], sent: Iterable[str]) -> str | None:
    """Which of the fields sent an error is about: the one it names as such, else one whose name stands in the text."""
    param = str(facts.get("param") or "").removeprefix("body.").partition(".")[0]
    fields = list(sent)
    if param in fields:
        return param
    return next((field for field in fields if re.search(rf"\b{re.escape(field)}\b", text)), None)


def _number(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 53 else None
