"""What coming back to conversations takes, for the list of the window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sessions.conversation import SessionSummary
from sessions.store import Store

if TYPE_CHECKING:
    from models.price import Price


class Pricing:
    """Prices from the KV below `cache_dir` and from the tips in a store, over a connection of its own.

    It is opened by the first call and belongs to the thread that calls. Raises `StoreError`, OSError.
    """

    def __init__(self, store: Store, cache_dir: Path) -> None:
        self._store = store
        self._cache_dir = cache_dir
        self._beside: Store | None = None

    def __call__(self, summaries: Sequence[SessionSummary]) -> Mapping[str, Price]:
        """Return the prices of conversations by id."""
        # The window starts faster without the KV index.
        from models.kvcare import FOLDER
        from models.price import asks, prices

        tokens = [(summary.session.id, summary.n_tokens) for summary in summaries]
        tips = self._opened().newest_kv_tips([session_id for session_id, _ in tokens])
        return prices(self._cache_dir / FOLDER, asks(tips, tokens))

    def tips(self, session_id: str) -> Sequence[tuple[str, str]]:
        """Return (fingerprint, tip) of a conversation's newest KV, both hex."""
        return self._opened().newest_kv_tips([session_id]).get(session_id, [])

    def _opened(self) -> Store:
        if self._beside is None:
            self._beside = self._store.beside()
        return self._beside

    def close(self) -> None:
        """Close the connection."""
        if self._beside is not None:
            self._beside.close()
