"""A conversation in Markdown: chatapp's own export, or a text whose headings name the speakers. Pure.

Markdown says less than a conversation is made of: what comes back is one branch of texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, TypeAlias

from sessions.errors import BadRequest
from sessions.exporting import REASONING
from sessions.fieldvalues import seconds
from sessions.planting import Foreign, Turn

Speaker: TypeAlias = Literal["system", "user", "assistant"]
_NAMES: dict[str, Speaker] = {
    **dict.fromkeys(("system", "system prompt"), "system"),
    **dict.fromkeys(("user", "you", "human", "me", "question", "prompt"), "user"),
    **dict.fromkeys(("assistant", "ai", "chatgpt", "claude", "model", "bot", "answer", "response"), "assistant"),
}
_MARK = re.compile(r"<!-- chatapp (system|user|assistant) (\S+) -->")
_TITLE = re.compile(r"# +(.+)")
_SPEAKER = re.compile(r"(?:#{1,6} +\W*|\*\*)([A-Za-z ]{2,20}?)(?: \([^)]*\))?:?(?:\*\*:?)? *")
_INLINE = re.compile(r"\*\*([A-Za-z ]{2,20}?):\*\* +(\S.*)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_ESCAPED = re.compile(r"\\([\\`*_\[\]<>#|])")


def read(text: str, name: str) -> Foreign:
    """Return the conversation of a text; `name` is what its file is called. Raises `BadRequest` if nobody speaks."""
    rows = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    title = next((found[1] for row in rows[:20] if (found := _TITLE.fullmatch(row)) and not _speaker(row)), "")
    is_own = any(_MARK.fullmatch(row) for row in rows)
    turns = list(_turns(_own(rows) if is_own else _headed(rows)))
    if not turns:
        raise BadRequest("Nobody speaks in it: a heading such as `## User` or `## Assistant` begins each message.")
    return Foreign(key=f"{name}\n{text}", title=_ESCAPED.sub(r"\1", title), turns=turns)


def _turns(parts: Iterator[tuple[Speaker, float | None, list[str]]]) -> Iterator[Turn]:
    last: str | None = None
    for number, (role, at, rows) in enumerate(parts):
        reasoning = _take_reasoning(rows) if role == "assistant" else ""
        yield Turn(str(number), last, role, "\n".join(rows).strip("\n"), at, reasoning)
        last = str(number)


def _own(rows: list[str]) -> Iterator[tuple[Speaker, float | None, list[str]]]:
    """Yield speaker, time and text of each message of an own export: marks stand above them."""
    starts = [n for n, row in enumerate(rows) if _MARK.fullmatch(row)]
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        found = _MARK.fullmatch(rows[start])
        assert found, "it begins with a mark"
        body = rows[start + 1 : end]
        if body and body[0].startswith("## "):
            body = body[1:]
        yield _NAMES[found[1]], seconds(found[2].removesuffix("Z")), _bare(body)


def _headed(rows: list[str]) -> Iterator[tuple[Speaker, float | None, list[str]]]:
    """Yield speaker and text of each message: headings outside of code name who speaks."""
    role: Speaker | None = None
    body: list[str] = []
    fence = ""
    for row in rows:
        speaker = None if fence else _speaker(row)
        if speaker:
            if role:
                yield role, None, _bare(body)
            spoken = _INLINE.fullmatch(row)
            role, body = speaker, [spoken[2]] if spoken else []
            continue
        if found := _FENCE.match(row):
            marks, behind = found.groups()
            if not fence:
                fence = marks
            elif marks[0] == fence[0] and len(marks) >= len(fence) and not behind.strip():
                fence = ""
        body.append(row)
    if role:
        yield role, None, _bare(body)


def _speaker(row: str) -> Speaker | None:
    found = _INLINE.fullmatch(row) or (_SPEAKER.fullmatch(row) if len(row) < 80 else None)
    return _NAMES.get(found[1].strip().lower()) if found else None


def _bare(rows: list[str]) -> list[str]:
    first = next((n for n, row in enumerate(rows) if row.strip()), len(rows))
    return rows[first:]


def _take_reasoning(rows: list[str]) -> str:
    """Take the quoted reasoning from the front of an answer."""
    if not rows or not rows[0].startswith(REASONING):
        return ""
    end = next((n for n, row in enumerate(rows) if not row.startswith(">")), len(rows))
    quoted = [row.removeprefix(">").removeprefix(" ") for row in rows[1:end]]
    del rows[:end]
    return "\n".join(quoted).strip("\n")
