"""Conversations as Markdown and plain text, for people to read: the branch that is shown.

Text of messages is never changed; what a format adds stands around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from models.reasoning import Part, parts
from sessions.transcript import Line, Transcript

ROLE_NAMES = {"system": "System", "user": "User", "assistant": "Assistant"}
MARK = "<!-- chatapp {role} {time} -->"
"""Stands above each message in Markdown, so that headings inside a message are not taken for the next one."""
REASONING = "> **Reasoning**"

_SYNTAX = re.compile(r"([\\`*_\[\]<>#|])")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


def markdown(transcript: Transcript) -> Iterator[str]:
    """Yield a conversation as Markdown. Reasoning is quoted."""
    session = transcript.session
    yield f"# {_escaped(session.title) or '(empty)'}\n\n"
    for name, value in _facts(transcript):
        yield f"- {name}: {_escaped(value)}\n"
    for line in transcript.shown():
        mark = MARK.format(role=line.role, time=_moment(line.created_at))
        yield f"\n{mark}\n## {_speaker(line)}\n\n"
        for part in _parts(line):
            if part.kind == "reasoning":
                state = " (not finished)" if part.is_open else ""
                quoted = "\n".join(f"> {row}".rstrip() for row in part.text.rstrip("\n").split("\n"))
                yield f"{REASONING}{state}\n>\n{quoted}\n\n"
            else:
                yield part.text + ("" if part.text.endswith("\n") else "\n")
                if fence := open_fence(part.text):
                    yield f"{fence}\n"


def plain(transcript: Transcript) -> Iterator[str]:
    """Yield a conversation as text."""
    yield f"{transcript.session.title or '(empty)'}\n\n"
    for name, value in _facts(transcript):
        yield f"{name}: {value}\n"
    for line in transcript.shown():
        yield f"\n--- {_speaker(line)}, {_moment(line.created_at)}\n\n"
        for part in _parts(line):
            if part.kind == "reasoning":
                state = ", not finished" if part.is_open else ""
                yield f"[Reasoning{state}]\n{part.text.rstrip()}\n[End of reasoning]\n\n"
            else:
                yield part.text + ("" if part.text.endswith("\n") else "\n")


def open_fence(text: str) -> str:
    """Return what closes the code block that a text leaves open, or nothing."""
    fence = ""
    for row in text.split("\n"):
        found = _FENCE.match(row)
        if not found:
            continue
        marks, behind = found.groups()
        if not fence:
            fence = marks if marks[0] == "~" or "`" not in behind else ""
        elif marks[0] == fence[0] and len(marks) >= len(fence) and not behind.strip():
            fence = ""
    return fence


def _facts(transcript: Transcript) -> Iterator[tuple[str, str]]:
    session = transcript.session
    yield "id", session.id
    yield "created", _moment(session.created_at)
    yield "last used", _moment(session.updated_at)
    yield "state", session.state
    if session.task and session.task != session.title:
        yield "task", session.task
    if session.model:
        yield "model", session.model.name
    if session.tags:
        yield "tags", ", ".join(session.tags)
    if session.forked_from:
        yield "forked from", session.forked_from
    n_hidden = len(transcript.lines) - len(transcript.shown())
    if n_hidden:
        yield "messages of other branches, not shown", str(n_hidden)


def _parts(line: Line) -> tuple[Part, ...]:
    return parts(line.text) if line.role == "assistant" else (Part("answer", line.text, is_open=False),)


def _speaker(line: Line) -> str:
    status = "" if line.status == "complete" else f" ({line.status})"
    return f"{ROLE_NAMES[line.role]}{status}"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _escaped(text: str) -> str:
    return _SYNTAX.sub(r"\\\1", text)
