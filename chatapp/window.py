"""Opens the chat window over the store and the engine, and closes them behind it."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

from chatapp.config import Settings
from chatapp.engines import forget_kv, kv_gives_way, make_engine
from chatapp.tui.app import ChatApp
from chatapp.tui.composer import Count
from models.engine import ModelInfo
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
        window = ChatApp(
            manager,
            session_id=session_id,
            make_counter=lambda info: _counter(info, settings),
        )
        await window.run_async()
    finally:
        await engine.close()


def _counter(info: ModelInfo, settings: Settings) -> Count | None:
    """What counts tokens in this process, as the engine would."""
    from models.tokens import counter_for

    counter = counter_for(Path(info.path), settings.cache_dir) if info.path else None
    return counter.count if counter else None
