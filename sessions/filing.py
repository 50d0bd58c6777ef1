"""One conversation to a file, and the conversations of a file, as a window wants it: in one step, told in one value."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sessions import exporting, portable
from sessions.exportfiles import make_folder, write_file, write_into
from sessions.importing import Status, import_file
from sessions.transcript import Transcript, load

if TYPE_CHECKING:
    from sessions.store import Store  # at run time it would load the database library for everybody

FORMATS = {".json": "json", ".txt": "txt"}
"""By the ending of the file; everything else is Markdown."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of the conversations of a file; `reason` is that of the first which failed."""

    counts: Counter[Status]
    reason: str | None = None
    last_id: str | None = None


def export(store: Store, session_id: str, target: Path, *, is_folder: bool = False) -> Path:
    """Write a conversation to a new file, or below its title into a folder, and return where it is.

    Never overwrites. Raises `BadRequest`, `SessionNotFound`, `StoreError`.
    """
    transcript = load(store, session_id)
    if not (is_folder or target.is_dir()):
        return write_file(target, _rendered(transcript, FORMATS.get(target.suffix.lower(), "md")))
    make_folder(target)
    return write_into(target, transcript.session.title, ".md", _rendered(transcript, "md"))


def import_from(store: Store, path: Path) -> Imported:
    """Add the conversations of a file, each once. Raises `BadRequest` if nothing of it can be read, `StoreError`."""
    counts: Counter[Status] = Counter()
    reason = last_id = None
    for outcome in import_file(store, path):
        counts[outcome.status] += 1
        if outcome.status == "failed":
            reason = reason or outcome.reason
        elif outcome.status == "added":
            last_id = outcome.id
    return Imported(counts, reason, last_id)


def names_folder(path: str) -> bool:
    """True for a path that says by its end that it is one."""
    return path.endswith(("/", os.sep))


def _rendered(transcript: Transcript, format_: str) -> Iterator[str]:
    if format_ == "json":
        return portable.write([transcript], tokens=False)
    return exporting.markdown(transcript) if format_ == "md" else exporting.plain(transcript)
