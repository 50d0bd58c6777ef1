"""Opens the chat window over the store and the engine, and closes them behind it."""

from __future__ import annotations

import asyncio
from contextlib import closing

from chatapp.config import Settings
from chatapp.engines import forget_kv, kv_gives_way, make_engine
from chatapp.tui.app import ChatApp
from models.engine import Sampling
from sessions.journal import recover
from sessions.manager import SessionManager
from sessions.store import Store


def open_window(settings: Settings, session_id: str | None) -> None:
    """Run the window until the user leaves. Raises our errors when it cannot even open."""
    with closing(Store(settings.data_dir, make_room=kv_gives_way(settings))) as store:
        recover(store)
        session = store.find(session_id) if session_id else None
        asyncio.run(_run(settings, store, session.id if session else None))


async def _run(settings: Settings, store: Store, session_id: str | None) -> None:
    engine = make_engine(settings)
    try:
        manager = SessionManager(store, engine, forget_kv=forget_kv(settings))
        await ChatApp(manager, sampling=Sampling(), session_id=session_id).run_async()
    finally:
        await engine.close()
