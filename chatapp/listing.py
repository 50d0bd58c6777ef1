"""Prints conversations and figures for people, or as JSON."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from chatapp.console import Narrator, print_json, print_text
from chatapp.objects import hit_object, message_object, session_object, summary_object
from chatapp.safe import clean, clean_line
from chatapp.texts import tr, tr_later
from models.reasoning import answer_of, reasoning_of
from sessions.conversation import Message, MessageStatus, Session, SessionSummary, Version

if TYPE_CHECKING:
    from sessions.search import Hit, Page

TITLE_CELLS = 80
TREE_CELLS = 100
MAX_INDENT = 20
"""Deeper branches are set in no further."""
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
_ROLES = {"user": tr_later("user"), "assistant": tr_later("assistant"), "system": tr_later("system")}
_STATUSES = {
    "complete": "",
    "stopped": tr_later("stopped"),
    "cut": tr_later("cut"),
    "interrupted": tr_later("interrupted"),
    "failed": tr_later("failed"),
}


def print_summaries(summaries: Sequence[SessionSummary], *, as_json: bool) -> None:
    """Print a line for each conversation: id, last use, messages, state, title, and what else is written on it."""
    if as_json:
        print_json([summary_object(summary) for summary in summaries])
        return
    for summary in summaries:
        session = summary.session
        print_text(
            f"{session.id}  {when(session.updated_at)}  {summary.n_messages:>5}  {session.state:<4}  "
            f"{_title(session)}{_marks(session)}\n"
        )


def print_conversation(
    session: Session,
    messages: Sequence[Message],
    versions: Mapping[int, Version],
    *,
    with_reasoning: bool,
    as_json: bool,
) -> None:
    """Print a conversation with its messages; reasoning is one line, unless it is wanted."""
    if as_json:
        print_json({**session_object(session), "messages": [message_object(message) for message in messages]})
        return
    print_text(f"{_title(session)}\n{session.id}, {session.state}{_marks(session)}\n")
    for message in messages:
        status = "" if message.status == "complete" else f" ({message.status})"
        version = versions.get(message.id)
        number = f", version {version.number} of {len(version.ids)}" if version else ""
        head = f"{message.role} {message.id}{status}{number}, {when(message.created_at)}"
        print_text(f"\n--- {head}\n{_body(message, with_reasoning=with_reasoning).rstrip()}\n")


def print_change(session: Session, said: str, *, as_json: bool) -> None:
    """Print a changed conversation as JSON, or say to somebody who watches what happened to it."""
    if as_json:
        print_json(session_object(session))
    else:
        Narrator().hint(f"{session.id} {said}.")


def print_tags(session: Session, *, as_json: bool) -> None:
    """Print a conversation's tags, one a line."""
    if as_json:
        print_json(session_object(session))
    else:
        print_text("".join(f"{tag}\n" for tag in session.tags))


def print_fork(session: Session, *, as_json: bool) -> None:
    """Print a new conversation, or its id."""
    if as_json:
        print_json(session_object(session))
    else:
        print_text(f"{session.id}\n")


def print_undone(session: Session, question: str, *, as_json: bool) -> None:
    """Print the question that was taken back."""
    if as_json:
        print_json({"id": session.id, "text": question})
    else:
        print_text(question.rstrip("\n") + "\n")


def print_emptied(deleted: Sequence[str], *, n_left: int, as_json: bool) -> None:
    """Print which conversations are gone."""
    if as_json:
        print_json({"deleted": list(deleted), "left": n_left})
        return
    left = f" {n_left:,} are being answered and stay." if n_left else ""
    Narrator().hint(f"{len(deleted):,} conversation(s) are deleted for good.{left}")


def print_hits(page: Page, *, as_json: bool) -> None:
    """Print two lines for each match: where it is, and a piece of its text with what was looked for in bold."""
    if as_json:
        print_json({"hits": [hit_object(hit) for hit in page.hits], "has_more": page.has_more})
        return
    for hit in page.hits:
        place = "title" if hit.message_id is None else f"{hit.role} {hit.message_id}"
        print_text(f"{hit.session.id}  {when(hit.created_at)}  {place:<18}  {_title(hit.session)}\n")
        if hit.message_id is not None:
            _print_snippet(hit)
    if page.has_more:
        Narrator().hint("There is more: --limit shows more at once, --offset leaves out what you have seen.")


def print_tree(messages: Sequence[Message], shown: Collection[int], *, as_json: bool) -> None:
    """Print a line for each message of all branches; where a branch leaves another one, it is set in."""
    if as_json:
        print_json([{**message_object(message), "shown": message.id in shown} for message in messages])
        return
    children: dict[int | None, list[Message]] = {}
    for message in messages:
        children.setdefault(message.parent_id, []).append(message)
    waiting = [(message, 0) for message in reversed(children.get(None, ()))]
    while waiting:
        message, depth = waiting.pop()
        mark = "*" if message.id in shown else " "
        status = f" ({name})" if (name := status_name(message.status)) else ""
        text = clean_line(answer_of(message.text) if message.role == "assistant" else message.text, TREE_CELLS)
        print_text(f"{mark} {'  ' * min(depth, MAX_INDENT)}{message.id} {role_name(message.role)}{status}  {text}\n")
        behind = children.get(message.id, [])
        waiting += [(child, depth + (len(behind) > 1)) for child in reversed(behind)]


def print_model(session: Session, *, as_json: bool) -> None:
    """Print which model a conversation belongs to."""
    if as_json:
        print_json(session_object(session)["model"])
    else:
        print_text(f"{clean_line(session.model.name, 200) if session.model else '(none yet)'}\n")


def print_deleted(session: Session, *, as_json: bool) -> None:
    """Print that a conversation is gone."""
    if as_json:
        print_json({"id": session.id, "deleted": True})
    else:
        Narrator().hint(f"{session.id} is deleted for good.")


def print_figures(figures: Mapping[str, object], *, as_json: bool) -> None:
    """Print the figures of a benchmark."""
    if as_json:
        print_json(dict(figures))
        return
    width = max(map(len, figures), default=0)
    for name, value in figures.items():
        print_text(f"{name:<{width}}  {value}\n")


def _title(session: Session) -> str:
    return clean_line(session.title, TITLE_CELLS) or "(empty)"


def _marks(session: Session) -> str:
    """What is written on a conversation, behind its title."""
    places = (("pinned", session.pinned_at), ("archived", session.archived_at), ("in the trash", session.trashed_at))
    marks = [mark for mark, at in places if at is not None]
    if session.forked_from is not None:
        marks.insert(0, f"fork of {session.forked_from}")
    return "".join(f"  {mark}" for mark in [*marks, *(f"#{tag}" for tag in session.tags)])


def _body(message: Message, *, with_reasoning: bool) -> str:
    """The text of a message; of reasoning, its size, or the whole of it, set in."""
    if message.role != "assistant" or not (reasoning := reasoning_of(message.text)):
        return answer_of(message.text) if message.role == "assistant" else message.text
    if with_reasoning:
        folded = "".join(f"  | {line}\n" for line in reasoning.splitlines())
    else:
        folded = f"[reasoning: {len(reasoning):,} characters; --reasoning shows them]\n"
    return f"{folded}\n{answer_of(message.text)}"


def _one_line(text: str) -> str:
    """Clean text on one line that may be put together with others: white space at its ends counts."""
    return re.sub(r"\s+", " ", clean(text))


def _print_snippet(hit: Hit) -> None:
    is_terminal = sys.stdout.isatty()
    pieces, at = [], 0
    for start, end in hit.spans:
        found = _one_line(hit.snippet[start:end])
        pieces += [_one_line(hit.snippet[at:start]), f"{BOLD}{found}{PLAIN}" if is_terminal else found]
        at = end
    pieces.append(_one_line(hit.snippet[at:]))
    sys.stdout.write(f"    {''.join(pieces).strip()}\n")


def role_name(role: str) -> str:
    """What a role is called."""
    return tr(_ROLES[role])


def status_name(status: MessageStatus) -> str:
    """What a message is called that is not complete; empty if it is."""
    return tr(_STATUSES[status])


def when(seconds: float) -> str:
    """Local date and time of a moment (epoch s)."""
    return datetime.fromtimestamp(seconds, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, two spaces between them; cells that begin with > stand on the right."""
    from rich.cells import cell_len

    widths = [max(cell_len(cell.removeprefix(">")) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for cell, width in zip(row, widths, strict=True):
            text = cell.removeprefix(">")
            pad = " " * (width - cell_len(text))
            cells.append(pad + text if cell.startswith(">") else text + pad)
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)
