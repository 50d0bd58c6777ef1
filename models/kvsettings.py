"""What the user chose about KV on disk; a value of its own, so that front ends need no engine to make one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvSettings:
    """How KV is kept on disk. None: the default, computed where the disk is known.

    `budget_bytes` caps the segments of all models together, `free_floor_bytes` is disk space that KV never uses,
    `daily_bytes` caps what is written in a day (None: no cap). `enabled` False neither reads nor writes.
    """

    enabled: bool = True
    budget_bytes: int | None = None
    free_floor_bytes: int | None = None
    daily_bytes: int | None = None


DEFAULT_KV = KvSettings()
"""KV is kept, with every limit computed."""
