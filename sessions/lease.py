"""Which window writes in which conversation: one at a time, by locks of the operating system.

```
leases/
    <conversation>.lock     held by the window that has the conversation open; from byte 1, its process id
    <conversation>.wanted   held by a window that asks for it, as long as it asks
    <window>.window         held by a window while it is open: whose is gone, its drafts are anybody's
```

Files are removed when they are given back; those of a killed process by whoever looks at them next.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sessions.errors import StoreError
from sessions.files import make_private_folder
from sessions.locks import OsLock, is_locked

_PID_BYTES = 20


class Leases:
    """What one window holds. Raises `StoreError` where the folder cannot be written.

    A lease says who may begin a turn; the lock of the `Journal` guards the turn itself, of commands too.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, OsLock] = {}
        self._id = secrets.token_hex(8)
        self._alive: OsLock | None = None

    @property
    def window(self) -> str:
        """Id of this window; from the first time it is asked for, others see that it is open."""
        if self._alive is None:
            with self._reporting():
                alive = self._lock(self._id, "window")
                taken = alive.take()
            assert taken, "nobody else has this id"
            self._alive = alive
        return self._id

    @property
    def held(self) -> frozenset[str]:
        """The conversations that this window may write in."""
        return frozenset(self._held)

    def take(self, session_id: str) -> bool:
        """Take a conversation's lease; False while another window has it."""
        if session_id in self._held:
            return True
        with self._reporting():
            lock = self._lock(session_id, "lock")
            if not lock.take():
                return False
        self._held[session_id] = lock
        _write_pid(lock.path)
        return True

    def release(self, session_id: str) -> None:
        """Let a conversation go; nothing happens where it is not held."""
        if lock := self._held.pop(session_id, None):
            lock.release()

    def holder(self, session_id: str) -> int | None:
        """Return the process of the window that has a conversation, if that is known."""
        try:
            with self._path(session_id, "lock").open("rb") as file:
                file.seek(1)
                return int(file.read(_PID_BYTES))
        except (OSError, ValueError):
            return None

    def is_wanted(self, session_id: str) -> bool:
        """True while another window asks for a conversation."""
        with self._reporting():
            return is_locked(self._path(session_id, "wanted"))

    @contextmanager
    def wanting(self, session_id: str) -> Iterator[bool]:
        """Ask the window that has a conversation for it; False if another one is asking already."""
        with self._reporting():
            lock = self._lock(session_id, "wanted")
            is_first = lock.take()
        try:
            yield is_first
        finally:
            lock.release()

    def is_alive(self, window: str) -> bool:
        """True if a window is open, this one or another."""
        if window == self._id:
            return True
        with self._reporting():
            return bool(window) and is_locked(self._path(window, "window"))

    def close(self) -> None:
        """Give everything back."""
        for session_id in self.held:
            self.release(session_id)
        if self._alive is not None:
            self._alive.release()
            self._alive = None

    def _path(self, name: str, kind: str) -> Path:
        return self._folder / f"{name}.{kind}"

    def _lock(self, name: str, kind: str) -> OsLock:
        make_private_folder(self._folder)
        return OsLock(self._path(name, kind))

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise StoreError(
                f"{self._folder} cannot be written ({reason}): make room or change its permissions."
            ) from error


def sweep(*folders: Path) -> None:
    """Remove the lock files that killed processes left; what cannot be removed stays."""
    for folder in folders:
        for pattern in ("*.lock", "*.wanted", "*.window"):
            for path in folder.glob(pattern):
                with contextlib.suppress(OSError):
                    is_locked(path)


def _write_pid(path: Path) -> None:
    """Say whose a lock is, behind its first byte: Windows lets nobody read what is locked."""
    with contextlib.suppress(OSError):  # it is only told, nothing depends on it
        descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0))
        try:
            os.lseek(descriptor, 1, os.SEEK_SET)
            os.write(descriptor, str(os.getpid()).encode())
        finally:
            os.close(descriptor)
