"""Commands on files: attaching, exporting, importing, and a message written in the user's own editor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from chatapp.config import editor_command
from chatapp.console import replaced_notice
from chatapp.editorfile import EditorError, edited
from chatapp.plain.turns import send
from chatapp.safe import clean_line
from chatapp.texts import tr, tr_later
from sessions.attachments import Part, block, name_of
from sessions.errors import BadRequest
from sessions.textfiles import TextFile, read_text

if TYPE_CHECKING:
    from chatapp.plain.repl import Repl
    from sessions.conversations import Conversations
    from sessions.importing import Status

T = TypeVar("T")
_NAME_CELLS = 80
_COUNTS: dict[Status, str] = {
    "added": tr_later("{n} added"),
    "there": tr_later("{n} already there"),
    "empty": tr_later("{n} empty"),
    "failed": tr_later("{n} failed"),
}


async def attach(repl: Repl, text: str) -> None:
    """Put a file's text before the next message."""
    info = repl.engine.info

    def read() -> TextFile:
        return read_text(_path(text), max_tokens=info.n_ctx if info else repl.settings.n_ctx)

    found = await repl.following.wait(asyncio.to_thread(read))
    if found is None:
        return
    name = name_of(text)
    if found.n_replaced:
        said = tr("{name}, read as {encoding}: {notice}")
        notice = replaced_notice(found.n_replaced)
        repl.voice.say(said.format(name=name, encoding=found.encoding, notice=notice))
    repl.parts.append(Part(name, block(name, found.text)))
    n_lines = found.text.count("\n") + (not found.text.endswith("\n"))
    said = tr("{name} goes with the next message: {n} line(s).")
    repl.voice.say(said.format(name=clean_line(name, _NAME_CELLS), n=f"{n_lines:,}"))


async def export(repl: Repl, text: str) -> None:
    """Write the conversation to a new file, or into a folder."""
    from sessions.filing import names_folder

    session_id = repl.session().id
    path = await _beside(repl, lambda them: them.export(session_id, _path(text), is_folder=names_folder(text)))
    if path is not None:
        repl.voice.say(tr("Written: {path}").format(path=clean_line(str(path), 200)))


async def import_(repl: Repl, text: str) -> None:
    """Add the conversations of a file."""
    found = await _beside(repl, lambda them: them.import_from(_path(text)))
    if found is None:
        return
    counts = found.counts
    said = [
        tr(text).format(n=f"{counts[status]:,}")
        for status, text in _COUNTS.items()
        if counts[status] or status in ("added", "there")
    ]
    sentence = f"{clean_line(text, _NAME_CELLS)}: {', '.join(said)}."
    if found.reason:
        repl.fail(f"{sentence} {found.reason}")
    else:
        repl.voice.say(sentence)


async def edit(repl: Repl, text: str) -> None:
    """Write a message in the editor, and send it."""
    if not repl.asking.can_ask:
        raise BadRequest(tr("An editor needs a terminal; here, write the message on a line."))
    try:
        written = await edited(editor_command(), text, _run)
    except EditorError as error:
        raise BadRequest(str(error)) from error
    if written.strip():
        await send(repl, written)
    else:
        repl.voice.say(tr("Nothing was written, so nothing is sent."))


async def _run(command: list[str]) -> int:
    process = await asyncio.create_subprocess_exec(*command)
    return await process.wait()


async def _beside(repl: Repl, question: Callable[[Conversations], T]) -> T | None:
    """Ask over a connection of its own, in a thread; None if Ctrl+C ended the waiting. Raises `SessionError`."""

    def ask() -> T:
        them = repl.manager.beside()
        try:
            return question(them)
        finally:
            them.close()

    try:
        return await repl.following.wait(asyncio.to_thread(ask))
    except OSError as error:
        raise BadRequest(tr("That file cannot be used ({error}): choose another place.").format(error=error)) from error


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # there is no home folder
        raise BadRequest(tr("{path} cannot be used ({error}).").format(path=text, error=error)) from error
