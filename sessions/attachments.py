"""What is attached to a message: parts of its text, each with a name.

The text holds the whole of it, because the text is what is tokenized; a span only says which part came from where, so
that a window can fold it. Nothing lies beside the database.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sessions.conversation import Attachment, Draft

MAX_NAME_CHARS = 80
_TICKS = re.compile("`{3,}")


@dataclass(frozen=True, slots=True)
class Part:
    """Something to be attached: its name and the text that will stand in the message."""

    name: str
    text: str


def name_of(text: str) -> str:
    """Return a name as it is kept: one line of printable characters, the end of one that is too long."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= MAX_NAME_CHARS else "…" + line[-(MAX_NAME_CHARS - 1) :]


def block(name: str, text: str) -> str:
    """Return a file's text as it stands in a message: its name, and a fence that nothing in it can close."""
    longest = max((len(ticks) for ticks in _TICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    end = "" if text.endswith("\n") or not text else "\n"
    return f"{name_of(name)}:\n{fence}\n{text}{end}{fence}"


def joined(pieces: Sequence[str | Part]) -> Draft:
    """Return text and parts in their order as one draft. A block of several lines stands apart from what is around it.

    A part of one line, such as a long one that was pasted, stays inside its line.
    """
    text = ""
    spans: list[tuple[str, int, int]] = []
    is_behind_block = False
    kept = [piece for piece in pieces if _text(piece)]
    for at, piece in enumerate(kept):
        is_block = isinstance(piece, Part) and _is_block(piece)
        if text and (is_block or is_behind_block):
            text += "\n" * (2 - _n_line_ends(text, kept[at:]))
        if isinstance(piece, Part):
            spans.append((piece.name, len(text), len(text) + len(piece.text)))
        text += _text(piece)
        is_behind_block = is_block
    return Draft(text, spans_in(text, spans))


def _text(piece: str | Part) -> str:
    return piece if isinstance(piece, str) else piece.text


def _is_block(part: Part) -> bool:
    return part.text.startswith(f"{part.name}:\n```")


def _n_line_ends(before: str, behind: Sequence[str | Part]) -> int:
    """Return how many line ends meet where a text ends and others begin, two at most."""
    n = len(before) - len(before.rstrip("\n"))
    for piece in behind:
        rest = _text(piece).lstrip("\n")
        n += len(_text(piece)) - len(rest)
        if rest:
            break
    return min(n, 2)


def spans_in(text: str, spans: Iterable[tuple[str, int, int]]) -> tuple[Attachment, ...]:
    """Return spans of a text by name, start and end; those that overlap an earlier one are left out."""
    found: list[Attachment] = []
    for name, start, end in sorted(spans, key=lambda span: span[1]):
        if 0 <= start < end <= len(text) and start >= (found[-1].end if found else 0):
            found.append(Attachment(name, start, end, text_hash(text[start:end])))
    return tuple(found)


def pieces_of(draft: Draft) -> list[str | Part]:
    """Return a draft as text and parts in their order; joined again, they are the draft."""
    pieces: list[str | Part] = []
    at = 0
    for one in draft.attachments:
        pieces += [draft.text[at : one.start], Part(one.name, draft.text[one.start : one.end])]
        at = one.end
    pieces.append(draft.text[at:])
    return [piece for piece in pieces if not isinstance(piece, str) or piece]


def typed(draft: Draft) -> str:
    """Return what of a draft is not attached: titles are made of it, and the task is judged by it."""
    return "".join(piece for piece in pieces_of(draft) if isinstance(piece, str))


def moved(attachments: Iterable[Attachment], by: int) -> tuple[Attachment, ...]:
    """Return spans as they are behind so many more characters."""
    return tuple(Attachment(one.name, one.start + by, one.end + by, one.sha256) for one in attachments)


def text_hash(text: str) -> str:
    """Return the SHA-256 of a text's UTF-8, hex."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def n_lines(part: Part) -> int:
    """Return how many lines a part has, a file's without its name and fence; one that no line end closes counts."""
    if _is_block(part):
        return part.text.count("\n") - 2
    return part.text.count("\n") + (not part.text.endswith("\n") and bool(part.text))
