"""Files that a command is to attach to a question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chatapp.console import Narrator, replaced_notice
from sessions.attachments import Part, block, joined, name_of
from sessions.conversation import Draft
from sessions.textfiles import read_text


def with_files(paths: Sequence[Path], text: str, *, max_tokens: int | None) -> Draft:
    """Return a question behind the texts of files; says on stderr what could not be read as it is.

    Raises `BadRequest` for a file that cannot be attached.
    """
    parts: list[str | Part] = []
    for path in paths:
        found = read_text(path, max_tokens=max_tokens)
        name = name_of(str(path))
        if found.n_replaced:
            Narrator().notice(f"{name}, read as {found.encoding}: {replaced_notice(found.n_replaced)}")
        parts.append(Part(name, block(name, found.text)))
    return joined([*parts, text])
