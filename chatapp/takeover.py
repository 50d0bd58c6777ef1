"""How a window asks another one for a conversation, and what is said of that; plain mode is a window here, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from chatapp.texts import tr, tr_later
from sessions.lease import Leases

LOOK_S = 0.25
"""How often it is looked at who asks for a conversation, and whether one is free, in seconds."""
ASK_S = 3.0
"""How long another window is asked to let a conversation go, in seconds."""
_ASK_AGAIN_S = 0.05

WRITTEN_HERE = tr_later("This conversation is written in this window already.")
TAKEN = tr_later("This conversation is written here now: the other window reads along.")


def why_reading(leases: Leases, session_id: str) -> str:
    """Why nothing is sent to a conversation that another window has."""
    pid = leases.holder(session_id)
    if pid is None:
        return tr("Open in another window: reading along · /takeover writes here")
    told = tr("Open in another window (process {pid}): reading along · /takeover writes here")
    return told.format(pid=pid)


async def ask_for(
    leases: Leases,
    session_id: str,
    *,
    is_answering: Callable[[], bool],
    is_wanted: Callable[[], bool] = lambda: True,
) -> str | None:
    """Ask the window that has a conversation for it, until it is held here or `is_wanted` no more.

    Returns a sentence on why it is not let go, None if there is nothing to say. Raises `SessionError`.
    """
    with leases.wanting(session_id) as is_first:
        if not is_first:
            return tr("Another window is asking for this conversation already: it reads along there from now on.")
        for _ in range(round(ASK_S / _ASK_AGAIN_S)):
            if not is_wanted() or leases.take(session_id):
                return None
            if is_answering():
                return tr("An answer is being written in the other window: take over when that is done.")
            await asyncio.sleep(_ASK_AGAIN_S)
    return tr(
        "The other window does not let this conversation go: a message waits there, a question is to be "
        "answered, or it hangs. Look there, or try again."
    )
