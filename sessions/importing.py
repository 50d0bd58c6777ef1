"""Importing conversations: what a file holds, and that each conversation is added once, whole, and under a free id.

A conversation that cannot be taken is reported and does not stop the others. Stopped in the middle, whole
conversations are there; done again, what is there is left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from sessions import import_chatgpt, import_claude, import_markdown, import_openwebui, jsonstream, portable
from sessions.errors import BadRequest
from sessions.history import title_of
from sessions.importfile import ImportFile
from sessions.planting import Foreign, Tally, id_for, plant
from sessions.transcript import Transcript, begins_with, insert, under

if TYPE_CHECKING:
    from sessions.foreignsqlite import ForeignDatabase
    from sessions.store import Store  # at run time it would load the database library for everybody

Format: TypeAlias = Literal["chatapp", "chatgpt", "claude", "openwebui", "ollama", "llm", "markdown"]
Status: TypeAlias = Literal["added", "there", "empty", "failed"]

BATCH = 100
"""Conversations in one transaction: each costs a wait for the disk."""
BATCH_CHARS = 4_000_000
"""Other windows cannot save while a transaction is written."""
MAX_CONVERSATIONS = 100_000
"""Of one file."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the conversation at position `index` (from 1) of a file, and what was changed in it.

    `id` is where it is now, None if nowhere; `reason` is a sentence when it failed. Index 0 is the file itself.
    """

    index: int
    title: str
    status: Status
    id: str | None
    changes: Tally
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class _Read:
    """A conversation as it was found in a file; `transcript` is None if nothing is left of it, or with a reason."""

    index: int
    title: str
    transcript: Transcript | None
    changes: Tally
    reason: str | None = None


def import_file(
    store: Store,
    path: Path,
    *,
    format: Format | None = None,  # noqa: A002 - what the option is called
    tokens: bool = False,
    dry_run: bool = False,
    clock: Callable[[], float] = time.time,
) -> Iterator[Outcome]:
    """Add the conversations of a file and yield what became of each; None finds the format.

    With `dry_run` nothing is written. Raises `BadRequest` when nothing of the file can be read, `StoreError`.
    """
    batch: list[tuple[_Read, Transcript]] = []
    taken: set[str] = set()
    n_chars = 0
    for found in _read(ImportFile(path), format, tokens=tokens, now=clock()):
        if found.transcript is None:
            status: Status = "failed" if found.reason else "empty"
            yield Outcome(found.index, found.title, status, None, found.changes, found.reason)
            continue
        if found.transcript.session.id in taken:  # the same id twice in one file: look at it with the first one stored
            yield from _flush(store, batch, dry_run=dry_run)
            n_chars = 0
            batch.clear()
        placed = _placed(store, found.transcript)
        if placed is None:
            yield Outcome(found.index, found.title, "there", found.transcript.session.id, found.changes)
            continue
        taken |= {found.transcript.session.id, placed.session.id}
        batch.append((found, placed))
        n_chars += sum(len(line.text) for line in placed.lines)
        if len(batch) >= BATCH or n_chars >= BATCH_CHARS:
            yield from _flush(store, batch, dry_run=dry_run)
            n_chars = 0
            batch.clear()
    yield from _flush(store, batch, dry_run=dry_run)


def _flush(store: Store, batch: Iterable[tuple[_Read, Transcript]], *, dry_run: bool) -> list[Outcome]:
    batch = list(batch)
    if batch and not dry_run:
        with store.db.transaction() as db:
            for _, transcript in batch:
                insert(db, transcript)
    return [Outcome(found.index, found.title, "added", placed.session.id, found.changes) for found, placed in batch]


def _placed(store: Store, transcript: Transcript) -> Transcript | None:
    """Return a conversation under an id that is free: its own, or one made of its content; None if it is there."""
    session_id = transcript.session.id
    for attempt in range(100):
        if not session_id or attempt:
            content = repr([(line.parent, line.role, line.text) for line in transcript.lines])
            session_id = id_for(transcript.session.created_at, transcript.session.id, content, str(attempt))
        is_there = begins_with(store, session_id, transcript.lines)
        if is_there is None:
            return under(transcript, session_id)
        if is_there:
            return None
    raise BadRequest(f"There is no free id for {transcript.session.title!r}.")


def _read(file: ImportFile, format: Format | None, *, tokens: bool, now: float) -> Iterator[_Read]:  # noqa: A002
    if file.kind == "sqlite":
        yield from _from_database(file, format, now)
    elif file.kind == "json" and format != "markdown":
        yield from _from_json(file, format, tokens=tokens, now=now)
    elif format in (None, "markdown"):
        try:
            foreign = import_markdown.read(file.text(), file.path.name)
        except BadRequest as error:
            raise BadRequest(f"{file.path}: {error}") from error
        yield _planted(1, foreign, "markdown", now)
    else:
        raise BadRequest(f"{file.path} is no {format} export: leave --format out, and it is found.")


def _from_database(file: ImportFile, format: Format | None, now: float) -> Iterator[_Read]:  # noqa: A002
    # Here, so that the command line starts without the database library.
    from sessions import import_llm, import_ollama
    from sessions.foreignsqlite import opened

    readers: tuple[
        tuple[Format, Callable[[ForeignDatabase], bool], Callable[[ForeignDatabase], Iterator[Foreign]]], ...
    ] = (("llm", import_llm.is_log, import_llm.read), ("ollama", import_ollama.is_app, import_ollama.read))
    with opened(file.path) as database:
        for source, is_it, read in readers:
            if format in (None, source) and is_it(database):
                for index, foreign in enumerate(read(database), 1):
                    yield _planted(index, foreign, source, now)
                return
    raise BadRequest(f"{file.path} is a database of neither llm nor Ollama's app: these two are read.")


def _from_json(file: ImportFile, format: Format | None, *, tokens: bool, now: float) -> Iterator[_Read]:  # noqa: A002
    index = 0
    for member in file.members():
        try:
            is_own = format in (None, "chatapp") and _check_own(file, member, is_asked=format is not None)
            with file.open(member) as stream:
                for item in jsonstream.Items(stream):
                    index += 1
                    if index > MAX_CONVERSATIONS:
                        raise BadRequest(f"It has more than {MAX_CONVERSATIONS:,} conversations: the rest is left out.")
                    yield _own(index, item, tokens, now) if is_own else _foreign(index, item, format, now)
        except BadRequest as error:
            if not index:
                raise BadRequest(f"{file.path}: {error}") from error
            yield _Read(0, "", None, Tally(), f"Behind conversation {index}: {error}")
            return


def _check_own(file: ImportFile, member: str, *, is_asked: bool) -> bool:
    """True for chatapp's own format. Raises `BadRequest` for a version of it that cannot be read."""
    with file.open(member) as stream:
        items = jsonstream.Items(stream)
        ends = [b""]
        try:
            for _ in items:
                if items.is_array and not is_asked:
                    return False
        except BadRequest:
            ends = [b"[]}", b"}"]  # torn: what is whole of it is read all the same
    for end in ends:
        try:
            envelope = jsonstream.parse(items.envelope + end) if items.has_list else None
        except BadRequest:
            continue
        if is_asked or (isinstance(envelope, dict) and "format" in envelope):
            portable.check_envelope(envelope)
            return True
    if is_asked:
        portable.check_envelope(None)
    return False


def _own(index: int, item: bytes | None, tokens: bool, now: float) -> _Read:
    title = ""
    try:
        value = _parsed(item)
        title = _title(value)
        transcript, changes = portable.from_object(value, tokens=tokens, now=now)
    except BadRequest as error:
        return _Read(index, title, None, Tally(), str(error))
    return _Read(index, title, transcript, changes)


def _foreign(index: int, item: bytes | None, format: Format | None, now: float) -> _Read:  # noqa: A002
    readers: dict[Format, tuple[Callable[[Any], bool], Callable[[Any], Foreign]]] = {
        "chatgpt": (import_chatgpt.is_conversation, import_chatgpt.read),
        "claude": (import_claude.is_conversation, import_claude.read),
        "openwebui": (import_openwebui.is_conversation, import_openwebui.read),
    }
    title = ""
    try:
        value = _parsed(item)
        title = _title(value)
        source = format or next((name for name, (is_it, _) in readers.items() if is_it(value)), None)
        if source not in readers:
            raise BadRequest("It is no conversation of a format that is known: docs/import-export.md lists them.")
        return _planted(index, readers[source][1](value), source, now)
    except BadRequest as error:
        return _Read(index, title, None, Tally(), str(error))


def _parsed(item: bytes | None) -> Any:
    if item is None:
        raise BadRequest(
            f"It has more than {jsonstream.ITEM_BYTES >> 20} MiB, or is nested more than {jsonstream.MAX_DEPTH} deep."
        )
    return jsonstream.parse(item)


def _title(value: Any) -> str:
    found = value.get("title") or value.get("name") if isinstance(value, dict) else ""
    return title_of(found) if isinstance(found, str) else ""


def _planted(index: int, foreign: Foreign, source: Format, now: float) -> _Read:
    try:
        transcript, changes = plant(foreign, source, now=now)
    except BadRequest as error:
        return _Read(index, title_of(foreign.title), None, Tally(), str(error))
    title = transcript.session.title if transcript else title_of(foreign.title)
    return _Read(index, title, transcript, changes)
