"""Snippets: texts under names with `{{variables}}`, a Markdown file each in a folder of the user's.

Files, because they are written with an editor, kept with other settings and shared; nothing is stored of their use.
Raises `BadRequest`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sessions.errors import BadRequest
from sessions.textfiles import read_text

ENDING = ".md"
MAX_SNIPPETS = 1000
_VARIABLE = re.compile(r"\{\{\s*([^\W\d][\w -]{0,39}?)\s*\}\}")


class Snippets:
    """The snippets of a folder, which need not be there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """Return all names in their order."""
        try:
            found = sorted(path.stem for path in self.folder.glob(f"*{ENDING}") if path.is_file())
        except OSError as error:
            raise BadRequest(f"{self.folder} cannot be read ({(error.strerror or str(error)).lower()}).") from error
        return [name for name in found if name.isprintable()][:MAX_SNIPPETS]

    def text(self, name: str) -> str:
        """Return a snippet's text."""
        if name not in self.names():  # so that no name leads out of the folder
            raise BadRequest(f"There is no snippet {name!r}: write it to {self.folder / 'NAME.md'}.")
        return read_text(self.folder / f"{name}{ENDING}").text.strip("\n")


def variables(text: str) -> list[str]:
    """Return the variables of a text, each once, in their order."""
    return list(dict.fromkeys(_VARIABLE.findall(text)))


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a text with values in the places of its variables; a variable without a value stays."""
    return _VARIABLE.sub(lambda found: values.get(found[1], found[0]), text)
