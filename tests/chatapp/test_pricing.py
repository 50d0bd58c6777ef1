from __future__ import annotations

from pathlib import Path

from chatapp.pricing import Pricing
from models.engine import Sampling
from models.fake import FakeEngine
from sessions.manager import SessionManager
from sessions.store import Store


async def test_conversations_without_kv_are_cold(tmp_path: Path) -> None:
    """Where there is no KV folder, all that has tokens is cold, and nothing is known of the time."""
    store = Store(tmp_path / "data")
    manager = SessionManager(store, FakeEngine())
    session_id = manager.new().id
    empty_id = manager.new().id
    async for _ in manager.send(session_id, "hello", Sampling()):
        pass
    pricing = Pricing(store, tmp_path / "cache")
    found = pricing(manager.sessions())
    pricing.close()
    assert (found[session_id].is_warm, found[session_id].seconds) == (False, None)
    assert empty_id not in found
    assert [summary.session.id for summary in manager.sessions()] == [session_id, empty_id]
