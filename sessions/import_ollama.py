"""The database of Ollama's desktop app: `db.sqlite`, with the tables `chats` and `messages`.

Its schema is public, in `app/store/database.go` of https://github.com/ollama/ollama (versions 1 to 18 of it).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from sessions.fieldvalues import seconds, text
from sessions.foreignsqlite import ForeignDatabase, has
from sessions.planting import Foreign, Turn


def is_app(database: ForeignDatabase) -> bool:
    """True for a database with this program's tables."""
    return has(database, "chats", ("id", "title", "created_at")) and has(
        database, "messages", ("id", "chat_id", "role", "content", "created_at")
    )


def read(database: ForeignDatabase) -> Iterator[Foreign]:
    """Yield the chats of the app, in its order."""
    thinking = "thinking" if "thinking" in database.columns("messages") else "''"
    has_files = has(database, "attachments", ("id", "message_id", "filename"))
    for key, title, created in database.rows("SELECT id, title, created_at FROM [chats] ORDER BY created_at, id"):
        turns = list(_turns(database, key, thinking, has_files=has_files))
        times = [turn.at for turn in turns if turn.at is not None]
        yield Foreign(
            key=str(key),
            title=text(title),
            turns=turns,
            created_at=seconds(created),
            updated_at=max(times, default=None),
        )


def _turns(database: ForeignDatabase, chat: object, thinking: str, *, has_files: bool) -> Iterator[Turn]:
    rows = database.rows(
        f"SELECT id, role, content, {thinking}, created_at FROM [messages] WHERE chat_id = ? ORDER BY id",  # noqa: S608 - constants
        [chat],
    )
    last: str | None = None
    for key, role, content, thoughts, created in rows:
        said = text(content)
        if has_files and role == "user":
            names = database.rows("SELECT filename FROM [attachments] WHERE message_id = ? ORDER BY id", [key])
            said = "\n\n".join(part for part in (*(f"[File: {text(name)}]" for (name,) in names), said) if part.strip())
        yield Turn(str(key), last, _role(role), said, seconds(created), text(thoughts) if role == "assistant" else "")
        last = str(key)


def _role(role: object) -> Literal["system", "user", "assistant", "tool"]:
    match role:
        case "user":
            return "user"
        case "assistant":
            return "assistant"
        case "system":
            return "system"
        case _:
            return "tool"
