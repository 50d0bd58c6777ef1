"""What plain mode says at its first start."""

from __future__ import annotations

from chatapp.config import Settings
from chatapp.firststart import is_first_start, note_welcome
from chatapp.texts import tr
from sessions.conversations import Conversations


def welcome(settings: Settings, conversations: Conversations) -> tuple[str, ...]:
    """Return three sentences at the first start, none at later ones or over the scripted engine.

    Raises `SessionError`.
    """
    folder = settings.data_dir / "window"
    if settings.engine.startswith("fake") or not is_first_start(folder, "plain", conversations):
        return ()
    note_welcome(folder, "plain")
    return (
        tr("Models on this machine: `chatapp models list`; `chatapp models default NAME` chooses one for every start."),
        tr("/stats on tells what each answer cost: resident tokens were in memory, restored ones came from disk."),
        tr("Write a line and press Enter; after leaving, `chatapp --plain --session last` goes on at once."),
    )
