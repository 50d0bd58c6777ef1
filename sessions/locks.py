"""Locks that the system frees when their process ends, however that ends; their files go when they are given back."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from filelock import FileLock, Timeout

_TRIES = 3
"""A file may be removed by its holder between opening and locking it, which looks as if it were held."""


class OsLock:
    """A lock on a file, held by one holder at a time, of this process or another. Raises `OSError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path, timeout=0, mode=0o600, thread_local=False, fallback_to_soft=False)

    def take(self) -> bool:
        """Take the lock without waiting; False if somebody else has it."""
        assert not self._lock.is_locked, "a lock is taken once"
        for _ in range(_TRIES):
            with contextlib.suppress(Timeout):
                self._lock.acquire()
                return True
        return False

    def release(self) -> None:
        """Give it back and remove its file; nothing happens where it is not held."""
        if not self._lock.is_locked:
            return
        # POSIX: while it is held, so that nobody's new file is removed; who waits on the old one notices (`st_nlink`).
        # Windows removes no open file: afterwards, and not if somebody was faster.
        if os.name == "posix":
            _remove(self.path)
        self._lock.release()
        if os.name != "posix":
            _remove(self.path)


def is_locked(path: Path) -> bool:
    """True if somebody holds the lock of this file. What a killed process left is removed."""
    if not path.exists():
        return False
    lock = OsLock(path)
    if not lock.take():
        return True
    lock.release()
    return False


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
