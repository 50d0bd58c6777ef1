"""Prints conversations and figures for people, or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from chatapp.console import Narrator, print_json, print_text
from chatapp.objects import message_object, session_object, summary_object
from chatapp.safe import clean_line
from sessions.conversation import Message, Session, SessionSummary


def print_summaries(summaries: Sequence[SessionSummary], *, as_json: bool) -> None:
    """Print a line for each conversation: id, last use, messages, state, title."""
    if as_json:
        print_json([summary_object(summary) for summary in summaries])
        return
    for summary in summaries:
        session = summary.session
        print_text(
            f"{session.id}  {when(session.updated_at)}  {summary.n_messages:>5}  {session.state:<4}  "
            f"{clean_line(session.title, 80) or '(empty)'}\n"
        )


def print_conversation(session: Session, messages: Sequence[Message], *, as_json: bool) -> None:
    """Print a conversation with all its messages."""
    if as_json:
        print_json({**session_object(session), "messages": [message_object(message) for message in messages]})
        return
    print_text(f"{clean_line(session.title, 80) or '(empty)'}\n{session.id}, {session.state}\n")
    for message in messages:
        status = "" if message.status == "complete" else f" ({message.status})"
        print_text(f"\n--- {message.role}{status}, {when(message.created_at)}\n{message.text.rstrip()}\n")


def print_change(session: Session, said: str, *, as_json: bool) -> None:
    """Print a changed conversation as JSON, or say to somebody who watches what happened to it."""
    if as_json:
        print_json(session_object(session))
    else:
        Narrator().hint(f"{session.id} {said}.")


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
