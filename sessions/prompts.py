"""The library of system prompts: texts under names, for conversations to begin with.

A conversation has a copy of the text it began with: what becomes of the name later never changes it. Raises
`BadRequest` for what cannot be done as asked, `StoreError`.
"""

from __future__ import annotations

import hashlib
import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessions.errors import BadRequest
from sessions.hygiene import tidy
from sessions.turn import LONGEST_CHARS

if TYPE_CHECKING:
    from sessions.database import ChatDatabase  # at run time it would load the database library for everybody

MAX_NAME_CHARS = 40
MARK = "@"
"""What a name begins with where a text could stand as well."""


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """A text and its name, when it last changed (epoch s), and how many conversations have this very text."""

    name: str
    text: str
    updated_at: float
    n_sessions: int = 0

    @property
    def hash(self) -> str:
        """Eight characters that tell texts apart."""
        return text_hash(self.text)


class PromptLibrary:
    """System prompts by name. Names are one word, and letter case counts."""

    def __init__(self, db: ChatDatabase, *, clock: Callable[[], float] = time.time) -> None:
        self._db = db
        self._clock = clock

    def all(self) -> list[SystemPrompt]:
        """Return all prompts by name, with how many conversations use each; those in the trash do not count."""
        rows = self._db.rows(
            """SELECT p.name, p.text, p.updated_at, coalesce(u.n, 0) AS n FROM system_prompts p LEFT JOIN (
                    SELECT m.text, count(*) AS n FROM sessions s
                        JOIN messages m ON m.session_id = s.id AND m.role = 'system'
                        WHERE s.trashed_at IS NULL GROUP BY m.text
                ) u ON u.text = p.text ORDER BY p.name"""
        )
        return [SystemPrompt(row["name"], row["text"], row["updated_at"], row["n"]) for row in rows]

    def get(self, name: str) -> SystemPrompt:
        """Return one prompt, without counting who uses it."""
        rows = self._db.rows("SELECT name, text, updated_at FROM system_prompts WHERE name = ?", _normal(name))
        if not rows:
            raise BadRequest(f"There is no prompt {name.strip()!r}: `chatapp prompts list` shows all.")
        return SystemPrompt(rows[0]["name"], rows[0]["text"], rows[0]["updated_at"])

    def add(self, name: str, text: str) -> SystemPrompt:
        """Add a prompt under a name that is free."""
        name, text = _checked_name(name), checked_prompt(text)
        with self._db.transaction() as db:
            values = [name, text, self._clock()]
            if not db.execute("INSERT OR IGNORE INTO system_prompts VALUES (?, ?, ?)", values).rowcount:
                raise BadRequest(f"There is a prompt {name!r} already: change it with `chatapp prompts edit`.")
        return self.get(name)

    def edit(self, name: str, text: str) -> SystemPrompt:
        """Give a prompt another text; conversations keep the one they have."""
        prompt, text = self.get(name), checked_prompt(text)
        with self._db.transaction() as db:
            values = [text, self._clock(), prompt.name]
            db.execute("UPDATE system_prompts SET text = ?, updated_at = ? WHERE name = ?", values)
        self._db.fold_log()
        return self.get(name)

    def rename(self, name: str, new_name: str) -> SystemPrompt:
        """Give a prompt another name, which must be free."""
        prompt, new_name = self.get(name), _checked_name(new_name)
        with self._db.transaction() as db:
            values = [new_name, prompt.name]
            if not db.execute("UPDATE OR IGNORE system_prompts SET name = ? WHERE name = ?", values).rowcount:
                raise BadRequest(f"There is a prompt {new_name!r} already: choose another name.")
        return self.get(new_name)

    def remove(self, name: str) -> SystemPrompt:
        """Delete a prompt and return it; nothing of its text stays in the database but what conversations have."""
        prompt = self.get(name)
        with self._db.transaction() as db:
            db.execute("DELETE FROM system_prompts WHERE name = ?", [prompt.name])
        self._db.fold_log()
        return prompt

    def resolve(self, given: str) -> str:
        """Return the text that is meant: `@NAME` is that prompt's, `@@...` begins with one @, all else is a text."""
        if not given.startswith(MARK):
            return given
        if given.startswith(MARK * 2):
            return given[1:]
        try:
            return self.get(given[1:]).text
        except BadRequest as error:
            raise BadRequest(f"{error} A text that begins with @ is written with @@.") from error


def text_hash(text: str) -> str:
    """Return eight characters that equal texts have in common: the first of the SHA-256 of the UTF-8, hex."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:8]


def checked_prompt(text: str) -> str:
    """Return a prompt as it is stored: by the rule of `hygiene`, without line ends behind it. Raises `BadRequest`."""
    if len(text) > LONGEST_CHARS:
        raise BadRequest(f"The prompt has {len(text):,} characters: {LONGEST_CHARS:,} is the most.")
    text = tidy(text)[0].rstrip("\n")
    if not text.strip():
        raise BadRequest("The prompt is empty: give its text, a file, or - for stdin.")
    return text


def _normal(name: str) -> str:
    """A name in one spelling: keyboards and file systems compose letters differently."""
    return unicodedata.normalize("NFC", name.strip().removeprefix(MARK))


def _checked_name(name: str) -> str:
    name = _normal(name)
    is_word = not any(char.isspace() or not char.isprintable() for char in name)
    if not name or len(name) > MAX_NAME_CHARS or not is_word or name[0] in "@-":
        raise BadRequest(
            f"A prompt's name is one word of at most {MAX_NAME_CHARS} characters, without @ or - before it."
        )
    return name
