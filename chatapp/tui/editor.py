"""The user's own editor on a text, while the window stands aside."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from textual.app import App, SuspendNotSupported

from sessions.textfiles import MAX_BYTES, decode


class EditorError(Exception):
    """The editor could not do its work; the message is one sentence for the user."""


async def edited(app: App[None], command: Sequence[str], text: str) -> str:
    """Return a text as the user leaves it in an editor. Raises `EditorError`; then the text is as it was.

    The file is readable by its owner only, and deleted behind the editor. What goes on in the window goes on.
    """
    if not command:
        raise EditorError("There is no editor: set VISUAL or EDITOR to the name of one.")
    try:
        # A folder that only its owner can read: so is what an editor leaves beside the file, and all of it is deleted.
        with tempfile.TemporaryDirectory(prefix="chatapp-", ignore_cleanup_errors=True) as folder:
            path = os.path.join(folder, "message.md")  # noqa: PTH118 - a path would count as blocking work here
            _write(path, text)
            code = await _run(app, [*command, path])
            if code != 0:
                end = f"ended with code {code}" if code > 0 else "was stopped"
                raise EditorError(f"The editor {end}: the message is as it was.")
            return _read(path)
    except SuspendNotSupported as error:
        raise EditorError("This terminal cannot be lent to an editor.") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise EditorError(f"The editor {command[0]!r} cannot be used ({reason}): set VISUAL or EDITOR.") from error


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", newline="\n") as file:
        file.write(text)


def _read(path: str) -> str:
    with Path(path).open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise EditorError(f"The text has more than {MAX_BYTES // 1_000_000} MB: the message is as it was.")
    return decode(data)[0].removesuffix("\n")


async def _run(app: App[None], command: Sequence[str]) -> int:
    # The batch keeps the window from painting over the editor; the process is awaited, so that answers go on.
    with app.batch_update(), app.suspend(), _undisturbed():
        process = await asyncio.create_subprocess_exec(*command)
        code = await process.wait()
    app.refresh(layout=True)
    return code


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl+C in the editor is the editor's: it must not end this program too."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which the editor would inherit
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
