"""Deletes conversations for good: their text, their journals, and the KV no other conversation reaches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from sessions.errors import BadRequest, SessionNotFound
from sessions.journal import Journal

if TYPE_CHECKING:
    from sessions.store import Store

ForgetKV = Callable[[list[str], list[str]], None]
"""Deletes KV segments no living conversation reaches: (tips of deleted conversations, tips of all others), hex keys."""

TRASH_S = 30 * 86_400.0
"""How long a conversation stays in the trash."""
_AT_ONCE = 100
"""Each has a lock that is an open file until it is deleted."""


def forget_nothing(dead: list[str], alive: list[str]) -> None:
    """Leave KV files alone: for stores whose engine keeps none."""


def delete_forever(store: Store, session_id: str, forget_kv: ForgetKV) -> None:
    """Purge a conversation's text, then its KV. Killed in between, the next deletion makes up for it.

    Raises `SessionNotFound`; `BadRequest` while it is being answered in another process.
    """
    store.session(session_id)
    with Journal(store.journal_dir, session_id, monotonic=time.monotonic) as journal:
        store.purge(session_id)
        journal.discard()
    forget_dead(store, forget_kv)


def expire(store: Store, forget_kv: ForgetKV, now: float) -> list[str]:
    """Delete for good what has been in the trash for `TRASH_S`; return the ids. Costs nothing where there is none.

    `now` is the time (epoch s). What is being answered in another process stays until the next time.
    """
    return empty_trash(store, forget_kv, before=now - TRASH_S)


def empty_trash(store: Store, forget_kv: ForgetKV, *, before: float = float("inf")) -> list[str]:
    """Delete for good what was moved to the trash before a moment (epoch s), but what is being answered; return ids."""
    found = store.trashed(before=before)
    deleted = [
        session_id
        for start in range(0, len(found), _AT_ONCE)
        for session_id in _purge_trashed(store, found[start : start + _AT_ONCE], before)
    ]
    if deleted:
        forget_dead(store, forget_kv)
    return deleted


def _purge_trashed(store: Store, session_ids: Sequence[str], before: float) -> list[str]:
    with ExitStack() as held:
        journals: dict[str, Journal] = {}
        for session_id in session_ids:
            try:
                journal = Journal(store.journal_dir, session_id, monotonic=time.monotonic)
            except BadRequest:
                continue
            journals[session_id] = held.enter_context(journal)
        # What was taken out of the trash meanwhile stays.
        gone = [session_id for session_id in store.trashed(before=before) if session_id in journals]
        if not gone:
            return []
        try:
            store.purge(*gone)
        except SessionNotFound:
            return []  # another process was faster
        for session_id in gone:
            journals[session_id].discard()
    return gone


def forget_dead(store: Store, forget_kv: ForgetKV) -> None:
    """Delete the KV that no living conversation reaches."""
    dead, alive = store.tips()
    # Also without a dead tip: an engine that was killed may have stored segments and not said so.
    forget_kv(dead, alive)
    if dead:
        store.forget_dead_tips()
