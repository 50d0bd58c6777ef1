"""What goes over the pipe to an engine process: one JSON object a line, requests one way, events the other."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from models.engine import (
    Entry,
    Event,
    Failed,
    Finished,
    Loaded,
    ModelInfo,
    Piece,
    Prepared,
    Prices,
    Progress,
    Prompt,
    Sampling,
    Server,
    Stored,
    TokenRun,
    TurnStats,
)
from models.errors import ProtocolError

# A conversation of a million tokens is about 7 MB of JSON; more than this is not a message of ours.
LINE_LIMIT = 64 << 20

_EVENTS: dict[str, type] = {
    kind.__name__.lower(): kind for kind in (Loaded, Progress, Prepared, Piece, Finished, Stored, Failed)
}


def encode(message: dict[str, Any]) -> bytes:
    """One line, ASCII, newline included."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The inverse of `encode`; raises `ProtocolError`."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise ProtocolError("The engine process sent a line that is not JSON.") from exc
    if not isinstance(message, dict):
        raise ProtocolError("The engine process sent a line that is not an object.")
    return message


def event_to_json(event: Event) -> dict[str, Any]:
    """An event as a JSON object, its kind under 'event'."""
    body: dict[str, Any]
    if isinstance(event, Prepared):
        body = {f.name: getattr(event, f.name) for f in fields(event)}
        body["runs"] = [_run_to_json(run) for run in event.runs]
    elif isinstance(event, Finished):
        body = {
            "reason": event.reason,
            "text": event.text,
            "run": _run_to_json(event.run),
            "stats": asdict(event.stats),
        }
    elif isinstance(event, Loaded):
        body = {"info": asdict(event.info)}
    else:
        body = {f.name: getattr(event, f.name) for f in fields(event)}
    return {"event": type(event).__name__.lower(), **body}


def event_from_json(message: dict[str, Any]) -> Event:
    """The inverse of `event_to_json`; raises `ProtocolError`."""
    try:
        body = {key: value for key, value in message.items() if key not in ("event", "id")}
        kind = _EVENTS[message["event"]]
        if kind is Loaded:
            info = body["info"]
            sampling = sampling_from_json(info["sampling"])
            server = _server_from_json(info["server"])
            body["info"] = ModelInfo(**{**info, "sampling": sampling, "notes": tuple(info["notes"]), "server": server})
        elif kind is Prepared:
            body["runs"] = tuple(_run_from_json(run) for run in body["runs"])
            body["opening"], body["closing"] = tuple(body["opening"]), tuple(body["closing"])
        elif kind is Piece:
            body["token_ids"] = tuple(body["token_ids"])
        elif kind is Finished:
            body["run"] = _run_from_json(body["run"])
            body["stats"] = TurnStats(**body["stats"])
        event: Event = kind(**body)
        return event
    except (KeyError, TypeError, ValueError) as exc:
        raise ProtocolError("The engine process sent an event that is not understood.") from exc


def prompt_to_json(prompt: Prompt) -> dict[str, Any]:
    """A prompt; the text of messages that have a token run stays here, the engine does not need it."""
    return {
        "store_kv": prompt.store_kv,
        "reasoning": prompt.reasoning,
        "may_reason": prompt.may_reason,
        "entries": [
            {"role": e.role, "text": e.text} if e.run is None else {"role": e.role, "run": _run_to_json(e.run)}
            for e in prompt.entries
        ],
    }


def prompt_from_json(message: dict[str, Any]) -> Prompt:
    """The inverse of `prompt_to_json`."""
    return Prompt(
        tuple(
            Entry(e["role"], e.get("text", ""), _run_from_json(e["run"]) if "run" in e else None)
            for e in message["entries"]
        ),
        store_kv=message["store_kv"],
        reasoning=message["reasoning"],
        may_reason=message["may_reason"],
    )


def sampling_to_json(sampling: Sampling) -> dict[str, Any]:
    """Sampling settings."""
    return asdict(sampling)


def sampling_from_json(message: dict[str, Any]) -> Sampling:
    """The inverse of `sampling_to_json`."""
    return Sampling(**{**message, "stop": tuple(message["stop"])})


def _server_from_json(value: dict[str, Any] | None) -> Server | None:
    if value is None:
        return None
    prices = value["prices"]
    return Server(**{**value, "prices": None if prices is None else Prices(**prices)})


def _run_to_json(run: TokenRun) -> list[Any]:
    return [run.ids, run.body_start, run.body_end]


def _run_from_json(value: list[Any]) -> TokenRun:
    ids, body_start, body_end = value
    return TokenRun(tuple(ids), body_start, body_end)
