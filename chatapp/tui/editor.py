"""The user's own editor on a text, while the window stands aside."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from textual.app import App, SuspendNotSupported

from chatapp import editorfile
from chatapp.editorfile import EditorError
from chatapp.texts import tr


async def edited(app: App[None], command: Sequence[str], text: str) -> str:
    """Return a text as the user leaves it in an editor. Raises `EditorError`; then the text is as it was.

    What goes on in the window goes on.
    """
    try:
        return await editorfile.edited(command, text, lambda words: _run(app, words))
    except SuspendNotSupported as error:
        raise EditorError(tr("This terminal cannot be lent to an editor.")) from error


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
