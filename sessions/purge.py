"""Deletes a conversation for good: its text, its journal, and the KV no other conversation reaches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from sessions.journal import Journal

if TYPE_CHECKING:
    from sessions.store import Store

ForgetKV = Callable[[list[str], list[str]], None]
"""Deletes KV segments no living conversation reaches: (tips of deleted conversations, tips of all others), hex keys."""


def forget_nothing(dead: list[str], alive: list[str]) -> None:
    """Leave KV files alone: for stores whose engine keeps none."""


def delete_forever(store: Store, session_id: str, forget_kv: ForgetKV) -> None:
    """Purge a conversation's text, then its KV. Killed in between, the next deletion makes up for it.

    Raises `SessionNotFound`; `BadRequest` while it is being answered in another process.
    """
    store.session(session_id)
    with Journal(store.journal_dir, session_id, monotonic=time.monotonic) as journal:
        store.purge(session_id)
        journal.remove()
    forget_dead(store, forget_kv)


def forget_dead(store: Store, forget_kv: ForgetKV) -> None:
    """Delete the KV that no living conversation reaches."""
    dead, alive = store.tips()
    # Also without a dead tip: an engine that was killed may have stored segments and not said so.
    forget_kv(dead, alive)
    if dead:
        store.forget_dead_tips()
