"""Whether this is the first start, so that somebody is to be welcomed; remembered in the window's folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from models.cachefile import write_atomically
from sessions.overview import Wanted

if TYPE_CHECKING:
    from sessions.conversations import Conversations

Mode = Literal["window", "plain"]

_EVERYWHERE = (Wanted(), Wanted(is_archived=True), Wanted(is_trashed=True))


def is_first_start(folder: Path | None, mode: Mode, conversations: Conversations) -> bool:
    """True until `note_welcome`, as long as there is no conversation. `folder` None: never. Raises `SessionError`."""
    if folder is None or _file(folder, mode).exists():
        return False
    return not any(conversations.sessions(wanted, limit=1) for wanted in _EVERYWHERE)


def note_welcome(folder: Path, mode: Mode) -> None:
    """Remember that the user of this mode was welcomed; where nothing can be written, it happens again."""
    write_atomically(_file(folder, mode), b"")


def _file(folder: Path, mode: Mode) -> Path:
    return folder / f"welcomed-{mode}"
