"""A conversation of another program becomes a tree as chatapp has them: question, answer, question, ...

The rules: system text comes first and once; messages of one role in a row are one, with a blank line between; messages
of tools and messages without text are left out; reasoning stands in front of its answer; other branches are kept.
What a rule did is counted.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from models.engine import Role
from sessions.conversation import Session
from sessions.errors import BadRequest
from sessions.history import title_of
from sessions.hygiene import tidy
from sessions.rows import CROCKFORD
from sessions.transcript import Line, Transcript
from sessions.turn import LONGEST_CHARS

MAX_MESSAGES = 100_000
"""Of one conversation."""
MAX_CHARS = 64_000_000
"""Of one conversation, with what branches have twice."""
LATEST = 253_402_300_799.0
"""The last second of the year 9999: calendars end there."""

Tally: TypeAlias = Counter[str]
"""What was changed on the way, by a word for it; see `docs/import-export.md`."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message as another program has it. `parent` is the key of the one before it, `at` seconds since the epoch.

    A `hidden` one was never shown to anybody; `tool` stands for all that tools were asked and said.
    """

    key: str
    parent: str | None
    role: Literal["system", "user", "assistant", "tool", "hidden"]
    text: str
    at: float | None = None
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A conversation of another program; `key` is what that one calls it, `head` the key of the last message shown."""

    key: str
    title: str
    turns: Sequence[Turn]
    head: str | None = None
    created_at: float | None = None
    updated_at: float | None = None
    is_pinned: bool = False
    is_archived: bool = False


@dataclass(slots=True)
class _Node:
    """A message that is kept. `before` is the one of the same role that it goes on with, `above` the one of the other.

    It becomes a line if somebody answers it, or if nothing of its own role goes on with it.
    """

    turn: Turn
    above: _Node | None
    before: _Node | None
    at: float
    n_chars: int
    is_answered: bool = False
    goes_on: bool = False
    line: int | None = None


def plant(foreign: Foreign, source: str, *, now: float) -> tuple[Transcript | None, Tally]:
    """Return the conversation, None if nothing is left of it, and what was changed.

    `source` names the program: with the conversation's own key it makes the id, the same each time. `now` stands
    in for times that are missing. Raises `BadRequest` for one that is too large.
    """
    tally: Tally = Counter()
    if len(foreign.turns) > MAX_MESSAGES:
        raise BadRequest(f"It has {len(foreign.turns):,} messages: {MAX_MESSAGES:,} is the most.")
    turns = [_tidied(turn, tally) for turn in foreign.turns]
    created_at = next((at for at in (foreign.created_at, *(t.at for t in turns)) if _is_time(at)), None) or now
    ordered = _in_order(turns, tally)
    system = next((t for t in ordered if t.role == "system" and t.text.strip()), None)
    nodes, by_key = _nodes(ordered, system, created_at, tally)
    if not nodes:
        return None, tally
    head = by_key.get(foreign.head or "", nodes[-1])
    head.is_answered = True  # it is shown, even where it goes on in ways that are not
    first = [] if system is None else [Line(None, "system", system.text, "complete", _time(system.at, created_at))]
    lines = _lines(nodes, first)
    updated_at = _time(foreign.updated_at, max(line.created_at for line in lines))
    title = title_of(tidy(foreign.title[:10_000])[0])
    task = title_of(next((line.text for line in lines if line.role == "user"), ""))
    session = Session(
        id=id_for(created_at, source, foreign.key),
        title=title or task or "Imported",
        task=task or title,
        state="open",
        system=system.text if system else None,
        model=None,
        created_at=created_at,
        updated_at=updated_at,
        trashed_at=None,
        pinned_at=updated_at if foreign.is_pinned else None,
        archived_at=updated_at if foreign.is_archived else None,
    )
    return Transcript(session, tuple(lines), head.line), tally


def id_for(created_at: float, *parts: str) -> str:
    """Return an id like those of `new_session_id`, but the same each time: `parts` stand in for chance."""
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
    number = (max(0, int(created_at * 1000)) << 30) | int.from_bytes(digest[:4], "big") >> 2
    return "".join(CROCKFORD[number >> shift & 31] for shift in range(75, -1, -5))


def _tidied(turn: Turn, tally: Tally) -> Turn:
    text, n_text = tidy(turn.text)
    reasoning, n_reasoning = tidy(turn.reasoning)
    tally["replaced"] += n_text + n_reasoning
    # The mark ends the block wherever it stands, so it must not stand inside.
    return replace(turn, text=text, reasoning=reasoning.replace("</think>", "</ think>").strip())


def _in_order(turns: Sequence[Turn], tally: Tally) -> list[Turn]:
    """Return the messages that a first one leads to, parents first, versions by time. A missing parent is none."""
    known = {turn.key for turn in turns}
    behind: dict[str | None, list[Turn]] = {}
    for turn in {turn.key: turn for turn in turns}.values():
        behind.setdefault(turn.parent if turn.parent in known else None, []).append(turn)
    for versions in behind.values():
        versions.sort(key=lambda turn: _time(turn.at, 0.0))
    ordered: list[Turn] = []
    waiting = behind.get(None, [])[::-1]
    while waiting:
        turn = waiting.pop()
        ordered.append(turn)
        waiting += behind.get(turn.key, [])[::-1]
    tally["unreachable"] += len(turns) - len(ordered)  # they lead back to themselves, or are there twice
    return ordered


def _nodes(
    ordered: Sequence[Turn], system: Turn | None, created_at: float, tally: Tally
) -> tuple[list[_Node], dict[str, _Node]]:
    """Return what is kept, in order, and by key what stands for each message: itself, or what was kept before it."""
    kept: list[_Node] = []
    by_key: dict[str, _Node] = {}
    for turn in ordered:
        above = by_key.get(turn.parent or "")
        if turn.role not in ("user", "assistant") or not (turn.text.strip() or turn.reasoning):
            if turn is not system and (why := _why_not(turn)):
                tally[why] += 1
            if above:
                by_key[turn.key] = above
            continue
        before = above if above and above.turn.role == turn.role else None
        if before:
            before.goes_on = True
            tally["merged"] += 1
        elif above:
            above.is_answered = True
        n_chars = len(turn.text) + len(turn.reasoning) + 2 + (before.n_chars if before else 0)
        at = _time(turn.at, above.at if above else created_at)
        by_key[turn.key] = _Node(turn, before.above if before else above, before, at, n_chars)
        kept.append(by_key[turn.key])
    return kept, by_key


def _why_not(turn: Turn) -> str:
    """Return the word for why a message is left out; none for what only holds the tree together."""
    if turn.role in ("user", "assistant"):
        return "empty"
    return turn.role if turn.role == "tool" or turn.text.strip() else ""


def _lines(nodes: Sequence[_Node], first: Sequence[Line]) -> list[Line]:
    lines = list(first)
    n_chars = 0
    for node in nodes:
        if node.goes_on and not node.is_answered:
            continue
        n_chars += node.n_chars
        if node.n_chars > LONGEST_CHARS:
            raise BadRequest(f"A message in it has {node.n_chars:,} characters: {LONGEST_CHARS:,} is the most.")
        if n_chars > MAX_CHARS:
            raise BadRequest(f"It has more than {MAX_CHARS:,} characters.")
        parent = node.above.line if node.above else 0 if first else None
        role: Role = "user" if node.turn.role == "user" else "assistant"
        node.line = len(lines)
        lines.append(Line(parent, role, _text(node), "complete", node.at))
    return lines


def _text(node: _Node) -> str:
    turns = []
    at: _Node | None = node
    while at:
        turns.append(at.turn)
        at = at.before
    text = "\n\n".join(turn.text for turn in reversed(turns) if turn.text.strip())
    reasoning = "\n\n".join(turn.reasoning for turn in reversed(turns) if turn.reasoning)
    return f"<think>\n{reasoning}\n</think>\n\n{text}" if reasoning and node.turn.role == "assistant" else text


def _is_time(at: float | None) -> bool:
    return at is not None and math.isfinite(at) and 0 <= at <= LATEST


def _time(at: float | None, otherwise: float) -> float:
    return at if at is not None and _is_time(at) else otherwise
