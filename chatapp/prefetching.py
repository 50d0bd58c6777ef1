"""Brings the KV of a conversation into the page cache before it is opened, for the list of the window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from chatapp.pricing import Pricing


class Prefetching:
    """Over the KV below `cache_dir`; the tips come from the connection of `pricing`."""

    def __init__(self, pricing: Pricing, cache_dir: Path) -> None:
        self._pricing = pricing
        self._cache_dir = cache_dir

    def tips(self, session_id: str) -> Sequence[tuple[str, str]]:
        """Return a conversation's newest KV as (fingerprint, tip), in the prices' thread. Raises `StoreError`."""
        return self._pricing.tips(session_id)

    def fetch(self, tips: Sequence[tuple[str, str]], fingerprint: str | None, goes_on: Callable[[], bool]) -> int:
        """Read ahead as long as `goes_on` says so; in any thread. Returns bytes asked for. Raises OSError."""
        from models.kvcare import FOLDER
        from models.prefetch import prefetch

        return prefetch(self._cache_dir / FOLDER, tips, fingerprint=fingerprint, goes_on=goes_on)
