"""Where everything about stored KV lies: `CACHE/kv/` and what is in it. File names are keys, never a user's words."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from models.cachefile import write_atomically
from models.kvformat import PARTS, Part

# How long one change of the store may wait for another process's.
_LOCK_S = 5.0
_ABOUT = "about.json"
_IN_USE = "in-use"
_NOTHING = bytes(32)
# Tip, fingerprint and key of what is being loaded.
_SIGN_BYTES = 3 * 32


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A segment file that lies in a generation's folder; nothing about its content is known yet."""

    path: Path
    fingerprint: bytes
    key: bytes
    part: Part


class KvFolder:
    """Paths, lock and small files of one KV folder.

    ```
    index.db            what is stored, see kvindex
    lock                held while files are published or deleted
    in-use/             one entry for each running engine: the end of the chain it works on
    damaged/            files that failed their check
    <fingerprint>/      one folder for each generation of KV
        about.json      the fingerprint's fields, the model's name and path
        notes.json      what was measured and checked for this generation
        ab/<key>.rows   and .state: the segments
    ```
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self) -> None:
        """Make the folder (0700) and remove what the first version of the store left. Raises OSError."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for old in self.root.glob("[0-9a-f][0-9a-f]"):
            shutil.rmtree(old, ignore_errors=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the store's lock: nobody else publishes or deletes files meanwhile. Raises OSError after 5 s."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)  # a lock would make it, but open to others
        lock = FileLock(self.lock_path, timeout=_LOCK_S, mode=0o600, thread_local=False, fallback_to_soft=False)
        try:
            lock.acquire()
        except Timeout as exc:
            raise TimeoutError("another program holds the KV store") from exc
        try:
            yield
        finally:
            lock.release()

    @property
    def lock_path(self) -> Path:
        """The file that is locked."""
        return self.root / "lock"

    @property
    def index_path(self) -> Path:
        """The index database."""
        return self.root / "index.db"

    @property
    def damaged_dir(self) -> Path:
        """Where files that failed their check are set aside."""
        return self.root / "damaged"

    def generation_dir(self, fingerprint: bytes) -> Path:
        """The folder of one fingerprint's segments."""
        return self.root / fingerprint.hex()

    def segment_path(self, fingerprint: bytes, key: bytes, part: Part) -> Path:
        """Where a part of a segment lies."""
        name = key.hex()
        return self.generation_dir(fingerprint) / name[:2] / f"{name}.{part}"

    def generations(self) -> list[bytes]:
        """Fingerprints that have a folder."""
        return [bytes.fromhex(path.name) for path in self._entries(self.root) if _is_hex(path.name, 64)]

    def files(self, fingerprint: bytes) -> Iterator[StoredFile]:
        """Every segment file of a generation, in no order."""
        for bucket in self._entries(self.generation_dir(fingerprint)):
            if not _is_hex(bucket.name, 2):
                continue
            for path in self._entries(bucket):
                name, _, suffix = path.name.partition(".")
                for part in PARTS:
                    if suffix == part and _is_hex(name, 64):
                        yield StoredFile(path, fingerprint, bytes.fromhex(name), part)

    def remnants(self, fingerprint: bytes) -> Iterator[Path]:
        """Temporary files of writers that were killed; only meaningful while the lock is held."""
        yield from self.generation_dir(fingerprint).glob("??/.*.tmp")

    def delete(self, fingerprint: bytes, key: bytes, part: Part) -> None:
        """Delete a part of a segment, if it is there. Raises OSError."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self.segment_path(fingerprint, key, part).unlink()

    def set_aside(self, path: Path) -> None:
        """Move a damaged file out of the way; failing that, delete it."""
        try:
            self.damaged_dir.mkdir(exist_ok=True, mode=0o700)
            path.replace(self.damaged_dir / path.name)
        except OSError:
            _remove(path)

    def clear_damaged(self) -> int:
        """Delete what was set aside; returns bytes freed."""
        freed = 0
        for path in self._entries(self.damaged_dir):
            with contextlib.suppress(OSError):
                size = path.lstat().st_size
                _remove(path)
                freed += size
        return freed

    def remove_generation(self, fingerprint: bytes) -> None:
        """Delete a generation's folder with everything in it."""
        shutil.rmtree(self.generation_dir(fingerprint), ignore_errors=True)

    def free_bytes(self) -> int:
        """Free bytes on the disk the folder is on. Raises OSError."""
        return shutil.disk_usage(self.root).free

    def disk_bytes(self) -> int:
        """Size of the disk the folder is on. Raises OSError."""
        return shutil.disk_usage(self.root).total

    # --- small files of a generation ---

    def write_about(self, fingerprint: bytes, about: dict[str, Any]) -> None:
        """Say what a generation is; failing to is not an error."""
        folder = self.generation_dir(fingerprint)
        if folder.is_symlink() or folder.is_file():
            with contextlib.suppress(OSError):
                folder.unlink()  # nobody puts anything but a folder there
        path = folder / _ABOUT
        if self.about(fingerprint) != about:
            write_atomically(path, json.dumps(about, indent=1).encode())

    def about(self, fingerprint: bytes) -> dict[str, Any]:
        """What a generation says of itself; empty when it does not."""
        return _read_json(self.generation_dir(fingerprint) / _ABOUT)

    def notes(self, fingerprint: bytes) -> dict[str, Any]:
        """What was measured and checked for a generation; empty when nothing was."""
        return _read_json(self.generation_dir(fingerprint) / "notes.json")

    def write_notes(self, fingerprint: bytes, notes: dict[str, Any]) -> None:
        """Remember measurements and checks; failing to is not an error."""
        write_atomically(self.generation_dir(fingerprint) / "notes.json", json.dumps(notes, indent=1).encode())

    def _entries(self, folder: Path) -> list[Path]:
        try:
            return list(folder.iterdir())
        except OSError:
            return []


class InUse:
    """An engine's sign on the door: the chain it works on, which nobody evicts while the process lives.

    A lock file that dies with its owner, and beside it a note of fixed size, rewritten in place: the chain's tip, and
    the segment that native code is loading right now. Signs of dead processes are removed by whoever looks next.
    """

    def __init__(self, folder: KvFolder) -> None:
        """Put the sign up; the store's lock must be held. Raises OSError."""
        self._one_at_a_time = threading.Lock()
        self._place = folder.root / _IN_USE
        self._put_up()

    def _put_up(self) -> None:
        self._place.mkdir(exist_ok=True, mode=0o700)
        self._path = self._place / secrets.token_hex(8)
        self._lock = FileLock(self._path.with_suffix(".lock"), mode=0o600, thread_local=False, fallback_to_soft=False)
        self._lock.acquire(timeout=0)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        self._file = os.fdopen(os.open(self._path, flags, 0o600), "r+b", buffering=0)
        self._said = b""

    def show(self, tip: bytes | None, loading: tuple[bytes, bytes] | None) -> None:
        """Name the end of the chain in use, and fingerprint and key of what is being loaded; None: nothing."""
        fingerprint, key = loading or (_NOTHING, _NOTHING)
        with self._one_at_a_time:
            self._say((tip or _NOTHING) + fingerprint + key)

    def correct(self, tip: bytes, stored: bytes | None) -> None:
        """Name `stored` in place of `tip`, which could not be written, if that is still named; from any thread."""
        with self._one_at_a_time:
            if self._said[:32] == tip:
                self._say((stored or _NOTHING) + self._said[32:])

    def _say(self, said: bytes) -> None:
        with contextlib.suppress(OSError):
            if not os.fstat(self._file.fileno()).st_nlink:
                # The folder was deleted while it is in use, and may have been made anew.
                file, lock = self._file, self._lock
                self._put_up()
                file.close()
                lock.release()
            if said != self._said:
                self._said = said
                self._file.seek(0)
                self._file.write(said)

    def close(self) -> None:
        """Take the sign down."""
        self._file.close()
        self._path.unlink(missing_ok=True)
        self._lock.release()
        with contextlib.suppress(OSError):
            self._path.with_suffix(".lock").unlink()


def tips_in_use(folder: KvFolder) -> set[bytes]:
    """Ends of the chains that living engines work on; the store's lock must be held."""
    tips = {said[:32] for _, said, is_alive in _signs(folder) if is_alive}
    return tips - {_NOTHING, b""}


def take_crashes(folder: KvFolder) -> list[tuple[bytes, bytes]]:
    """Fingerprint and key of what engines were loading when they died, told once; the store's lock must be held."""
    crashes = []
    for path, said, is_alive in _signs(folder):
        if is_alive:
            continue
        if len(said) == _SIGN_BYTES and said[32:64] != _NOTHING:
            crashes.append((said[32:64], said[64:]))
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink()
    return crashes


def _signs(folder: KvFolder) -> Iterator[tuple[Path, bytes, bool]]:
    """Every sign: its note's path and content, and whether its owner lives."""
    try:
        # Some systems delete a lock's file with the lock, others do not: either file is a sign.
        paths = {entry.with_suffix("") for entry in (folder.root / _IN_USE).iterdir()}
    except OSError:
        return
    for path in paths:
        lock_path = path.with_suffix(".lock")
        try:
            said = path.read_bytes()
        except OSError:
            said = b""
        probe = FileLock(lock_path, mode=0o600, fallback_to_soft=False)
        try:
            probe.acquire(timeout=0)
        except (Timeout, OSError):
            yield path, said, True
            continue
        probe.release()
        yield path, said, False


def _remove(path: Path) -> None:
    """Delete whatever lies there, as far as that can be done."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_hex(name: str, n: int) -> bool:
    return len(name) == n and all(c in "0123456789abcdef" for c in name)
