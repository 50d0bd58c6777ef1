"""The own export format: conversations as JSON, whole, and the way back. See `docs/import-export.md`.

Written again after reading, a file is the same, byte by byte. What comes in is checked field by field: a field that is
unknown is dropped, one that is missing has its usual value, one that cannot be is an error of its conversation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar, get_args

from models.engine import Role, Sampling, TokenRun, TurnStats
from models.presets import PRESETS, SamplingChoice
from sessions.attachments import name_of, spans_in
from sessions.conversation import Attachment, MessageStatus, ModelRef, ReasoningPolicy, Session, SessionState
from sessions.conversations import MAX_TAG_CHARS
from sessions.errors import BadRequest
from sessions.history import title_of
from sessions.hygiene import tidy
from sessions.planting import LATEST, MAX_CHARS, MAX_MESSAGES, Tally
from sessions.transcript import Line, Transcript
from sessions.turn import LONGEST_CHARS

FORMAT = "chatapp-conversations"
VERSION = 1

_ID = re.compile("[0-9a-hjkmnp-tv-z]{16}")
_HEX = re.compile("[0-9a-f]{16,128}")
_SURROGATE = re.compile("[\\ud800-\\udfff]")
_TOKENS = 1 << 32
_DECISIONS = ("restore", "prefill")
_BOUNDS: Mapping[str, tuple[float, float, tuple[type, ...]]] = {
    "temperature": (0, 1000, (int, float)),
    "top_k": (0, _TOKENS, (int,)),
    "top_p": (0, 1, (int, float)),
    "min_p": (0, 1, (int, float)),
    "repeat_penalty": (1e-6, 1000, (int, float)),
    "seed": (0, _TOKENS - 1, (int,)),
    "max_tokens": (1, _TOKENS, (int,)),
}
T = TypeVar("T")


def write(transcripts: Iterable[Transcript], *, tokens: bool, ascii_only: bool = False) -> Iterator[str]:
    """Yield the text of a file, a line a conversation. `tokens` adds token ids."""
    yield f'{{"format": "{FORMAT}", "version": {VERSION}, "conversations": ['
    separator = "\n"
    for transcript in transcripts:
        yield separator + json.dumps(
            to_object(transcript, tokens=tokens), ensure_ascii=ascii_only, separators=(",", ":"), allow_nan=False
        )
        separator = ",\n"
    yield "\n]}\n"


def check_envelope(envelope: Any) -> None:
    """Raise `BadRequest` unless a file is of this format, and of a version that can be read."""
    if not isinstance(envelope, dict) or envelope.get("format") != FORMAT:
        raise BadRequest("It is no export of chatapp.")
    version = envelope.get("version")
    if not isinstance(version, int) or version < 1:
        raise BadRequest("It does not say which version of the format it has.")
    if version > VERSION:
        raise BadRequest(f"It was written by a newer chatapp (format {version}, this one knows {VERSION}): upgrade.")


def to_object(transcript: Transcript, *, tokens: bool) -> dict[str, Any]:
    """Return a conversation as JSON has it; what is usual is left out."""
    session = transcript.session
    model = session.model
    return _known(
        {
            "id": session.id,
            "title": session.title,
            "task": session.task,
            "state": session.state,
            # Not where its file lies: that says something about this machine, and nothing to another one.
            "model": model and {"weights": model.weights, "name": model.name, "n_bytes": model.n_bytes},
            "created_at": session.created_at,
            "updated_at": session.updated_at,
            "trashed_at": session.trashed_at,
            "pinned_at": session.pinned_at,
            "archived_at": session.archived_at,
            "n_ctx": session.n_ctx,
            "reasoning": session.reasoning,
            "sampling": session.sampling and _sampling_object(session.sampling),
            "forked_from": session.forked_from,
            "tags": list(session.tags),
            "head": transcript.head,
            "messages": [_line_object(line, tokens=tokens and model is not None) for line in transcript.lines],
        }
    )


def _line_object(line: Line, *, tokens: bool) -> dict[str, Any]:
    run = line.run if tokens else None
    return _known(
        {
            "parent": line.parent,
            "role": line.role,
            "text": line.text,
            "status": line.status,
            "created_at": line.created_at,
            "stats": line.stats and _known(asdict(line.stats)),
            "run": run and {"ids": list(run.ids), "body": [run.body_start, run.body_end]},
            "attachments": [[one.name, one.start, one.end] for one in line.attachments] or None,
        }
    )


def _sampling_object(choice: SamplingChoice) -> dict[str, Any]:
    given = {field.name: choice.given[field.name] for field in fields(Sampling) if field.name in choice.given}
    return {"preset": choice.preset, "given": given}


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def from_object(value: Any, *, tokens: bool, now: float) -> tuple[Transcript, Tally]:
    """Return the conversation of an object, and what was changed. Raises `BadRequest`.

    An id that is none becomes empty. Token ids are taken with `tokens` only: they say what a model reads, which may be
    something else than the text that is shown. `now` stands in for times that are missing.
    """
    tally: Tally = Tally()
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        raise BadRequest("It has no messages.")
    if len(value["messages"]) > MAX_MESSAGES:
        raise BadRequest(f"It has {len(value['messages']):,} messages: {MAX_MESSAGES:,} is the most.")
    created_at = _time(value, "created_at", now)
    lines = [_line(item, n, created_at, tally, tokens=tokens) for n, item in enumerate(value["messages"])]
    if any(line.role == "system" and (n or line.parent is not None) for n, line in enumerate(lines)):
        raise BadRequest("Its system prompt is not its first message.")
    if sum(len(line.text) for line in lines) > MAX_CHARS:
        raise BadRequest(f"It has more than {MAX_CHARS:,} characters.")
    session = Session(
        id=_id(value, "id") or "",
        title=_title(value, "title", 80, tally),
        task=_title(value, "task", 300, tally),
        state=_choice(value, "state", get_args(SessionState), "open"),
        system=lines[0].text if lines and lines[0].role == "system" else None,
        model=_model(value.get("model")),
        created_at=created_at,
        updated_at=_time(value, "updated_at", max([created_at, *(line.created_at for line in lines)])),
        trashed_at=_maybe_time(value, "trashed_at"),
        n_ctx=_whole(value, "n_ctx", 1, 1 << 31),
        reasoning=_choice(value, "reasoning", get_args(ReasoningPolicy), "keep"),
        sampling=_sampling(value.get("sampling")),
        forked_from=_id(value, "forked_from"),
        pinned_at=_maybe_time(value, "pinned_at"),
        archived_at=_maybe_time(value, "archived_at"),
        tags=_tags(value.get("tags"), tally),
    )
    if session.model is None:  # of no model, they would be taken for those of the next one
        lines = [replace(line, run=None) for line in lines]
    head = _whole(value, "head", 0, len(lines) - 1)
    return Transcript(session, tuple(lines), head), tally


def _line(value: Any, position: int, created_at: float, tally: Tally, *, tokens: bool) -> Line:
    if not isinstance(value, dict):
        raise BadRequest(f"Its message {position + 1} is no object.")
    text = value.get("text")
    if not isinstance(text, str):
        raise BadRequest(f"Its message {position + 1} has no text.")
    if len(text) > LONGEST_CHARS:
        raise BadRequest(f"A message in it has {len(text):,} characters: {LONGEST_CHARS:,} is the most.")
    role: Role = _choice(value, "role", get_args(Role), None)
    # What a model said stays as it was said: it belongs to its token ids.
    text, n_replaced = _SURROGATE.subn("\ufffd", text) if role == "assistant" else tidy(text)
    tally["replaced"] += n_replaced
    return Line(
        parent=_whole(value, "parent", 0, position - 1),
        role=role,
        text=text,
        status=_choice(value, "status", get_args(MessageStatus), "complete"),
        created_at=_time(value, "created_at", created_at),
        run=_run(value.get("run")) if tokens else None,
        stats=_stats(value.get("stats")),
        attachments=_attachments(value.get("attachments"), text),
    )


def _attachments(value: Any, text: str) -> tuple[Attachment, ...]:
    """Return the spans of a text that can be; those that cannot only told how it is shown."""
    spans: list[tuple[str, int, int]] = []
    for item in value if isinstance(value, list) else []:
        match item:
            case [str(name), int(start), int(end)] if not {type(start), type(end)} - {int}:  # no truth values
                spans.append((name_of(tidy(name[:1000])[0]), start, end))
            case _:
                continue
    return spans_in(text, spans)


def _choice(value: Mapping[str, Any], key: str, choices: tuple[T, ...], usual: T | None) -> T:
    found = value.get(key, usual)
    if found not in choices:
        raise BadRequest(f"Its {key} is none of {', '.join(map(str, choices))}.")
    return choices[choices.index(found)]


def _whole(value: Mapping[str, Any], key: str, least: int, most: int) -> int | None:
    found = value.get(key)
    if found is None:
        return None
    if type(found) is not int or not least <= found <= most:
        raise BadRequest(f"Its {key} is no number from {least} to {most}.")
    return found


def _time(value: Mapping[str, Any], key: str, otherwise: float) -> float:
    found = _maybe_time(value, key)
    return otherwise if found is None else found


def _maybe_time(value: Mapping[str, Any], key: str) -> float | None:
    found = value.get(key)
    if found is None:
        return None
    if type(found) not in (int, float) or not 0 <= found <= LATEST:
        raise BadRequest(f"Its {key} is no time.")
    return float(found)


def _id(value: Mapping[str, Any], key: str) -> str | None:
    found = value.get(key)
    return found if isinstance(found, str) and _ID.fullmatch(found) else None


def _title(value: Mapping[str, Any], key: str, limit: int, tally: Tally) -> str:
    found = value.get(key)
    text, n_replaced = tidy(found[:LONGEST_CHARS]) if isinstance(found, str) else ("", 0)
    tally["replaced"] += n_replaced
    return title_of(text, limit=limit)


def _tags(value: Any, tally: Tally) -> tuple[str, ...]:
    found = {tag for tag in value if _is_tag(tag)} if isinstance(value, list) else set()
    tally["tags"] += len(value) - len(found) if isinstance(value, list) else 0
    return tuple(sorted(found))


def _is_tag(tag: Any) -> bool:
    return (
        isinstance(tag, str)
        and 0 < len(tag) <= MAX_TAG_CHARS
        and not any(char.isspace() or not char.isprintable() for char in tag)
    )


def _model(value: Any) -> ModelRef | None:
    if not isinstance(value, dict):
        return None
    weights, name, n_bytes = value.get("weights"), value.get("name"), _whole(value, "n_bytes", 0, 1 << 60)
    if not isinstance(weights, str) or not _HEX.fullmatch(weights):
        raise BadRequest("Its model is not named by its weights.")
    return ModelRef(weights, title_of(tidy(name)[0], limit=200) if isinstance(name, str) else "", "", n_bytes or 0)


def _sampling(value: Any) -> SamplingChoice | None:
    if not isinstance(value, dict):
        return None
    preset, given = value.get("preset"), value.get("given")
    kept = {}
    for field in fields(Sampling):
        if isinstance(given, dict) and (found := _setting(field.name, given.get(field.name))) is not None:
            kept[field.name] = found
    return SamplingChoice(preset if isinstance(preset, str) and preset in PRESETS else None, kept)


def _setting(name: str, value: Any) -> Any:
    """Return a value of a field of `Sampling` as the command line would take it, None for what it would not."""
    if name == "stop":
        is_list = isinstance(value, list) and 0 < len(value) <= 100
        return tuple(value) if is_list and all(isinstance(text, str) and text for text in value) else None
    if name == "grammar":
        return value if isinstance(value, str) and len(value) < 1 << 20 else None
    least, most, kinds = _BOUNDS[name]
    return value if type(value) in kinds and least <= value <= most else None


def _run(value: Any) -> TokenRun | None:
    if value is None:
        return None
    ids, body = (value.get("ids"), value.get("body")) if isinstance(value, dict) else (None, None)
    if not isinstance(ids, list) or any(type(token) is not int or not 0 <= token < _TOKENS for token in ids):
        raise BadRequest("Its token ids are no list of numbers.")
    match body:
        case [int(start), int(end)] if 0 <= start <= end <= len(ids):
            return TokenRun(tuple(ids), start, end)
        case _:
            raise BadRequest("Its token ids do not say where the text of the message begins and ends.")


def _stats(value: Any) -> TurnStats | None:
    if not isinstance(value, dict):
        return None
    kept: dict[str, Any] = {}
    for field in fields(TurnStats):
        found = value.get(field.name)
        if field.name == "miss_reason":
            kept[field.name] = tidy(found[:1000])[0] if isinstance(found, str) else None
        elif field.name == "restore_decision":
            kept[field.name] = found if found in _DECISIONS else None
        elif isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 1 << 62:
            kept[field.name] = found
    return TurnStats(**kept)
