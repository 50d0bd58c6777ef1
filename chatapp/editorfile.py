"""A text in the user's own editor, by way of a file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from chatapp.texts import tr
from sessions.textfiles import MAX_BYTES, decode


class EditorError(Exception):
    """The editor could not do its work; the message is one sentence for the user."""


async def edited(command: Sequence[str], text: str, run: Callable[[list[str]], Awaitable[int]]) -> str:
    """Return a text as the user leaves it in an editor. Raises `EditorError`; then the text is as it was.

    `run` starts a command, waits for its end and returns its exit code. The file is readable by its owner only, and
    deleted behind the editor.
    """
    if not command:
        raise EditorError(tr("There is no editor: set VISUAL or EDITOR to the name of one."))
    try:
        # A folder that only its owner can read: so is what an editor leaves beside the file, and all of it is deleted.
        with tempfile.TemporaryDirectory(prefix="chatapp-", ignore_cleanup_errors=True) as folder:
            path = os.path.join(folder, "message.md")  # noqa: PTH118 - a path would count as blocking work here
            _write(path, text)
            code = await run([*command, path])
            if code > 0:
                raise EditorError(tr("The editor ended with code {code}: the message is as it was.").format(code=code))
            if code < 0:
                raise EditorError(tr("The editor was stopped: the message is as it was."))
            return _read(path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        sentence = tr("The editor {command!r} cannot be used ({reason}): set VISUAL or EDITOR.")
        raise EditorError(sentence.format(command=command[0], reason=reason)) from error


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", newline="\n") as file:
        file.write(text)


def _read(path: str) -> str:
    with Path(path).open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        sentence = tr("The text has more than {size}: the message is as it was.")
        raise EditorError(sentence.format(size=f"{MAX_BYTES // 1_000_000} MB"))
    return decode(data)[0].removesuffix("\n")
