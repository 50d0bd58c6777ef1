"""What people do with stored KV: forget a deleted conversation, prune, clear. Needs no engine and no model."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from models.fingerprint import LLAMA_BUILD
from models.kvbudget import ancestry, evict, is_stale, limits_for
from models.kvfolder import KvFolder, tips_in_use
from models.kvformat import PARTS, key_id
from models.kvindex import KvIndex, Outline
from models.kvreconcile import open_index, reconcile
from models.kvsettings import KvSettings

FOLDER = "kv"
"""Where KV lies in the cache folder."""


@dataclass(frozen=True, slots=True)
class Freed:
    """Bytes that were deleted, and bytes of segments that are left."""

    freed_bytes: int
    total_bytes: int


def known_mac_key(data_dir: Path) -> bytes | None:
    """The MAC key of a data directory, None if it has none yet; makes none. Raises OSError."""
    try:
        key = (data_dir / "kv.key").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return key if len(key) == 32 else None


def forget(
    cache_dir: Path, data_dir: Path, alive_tips: Iterable[str], *, clock: Callable[[], float] = time.time
) -> int:
    """Delete every segment of this data directory that no chain of `alive_tips` (hex keys) reaches.

    What is in use is deleted too: privacy goes before an engine that still has a deleted conversation in memory, and
    which only finds its segments missing. Also goes what was set aside. Returns bytes freed. Raises OSError.
    """
    mac_key = known_mac_key(data_dir)
    folder = KvFolder(cache_dir / FOLDER)
    if mac_key is None or not folder.root.is_dir():
        return 0
    owner = key_id(mac_key)
    with _opened(folder, clock()) as index:
        rows = {row.key: row for row in index.outlines()}
        alive = ancestry(rows, _keys(alive_tips))
        dead = [row for row in rows.values() if row.owner == owner and row.key not in alive]
        before = index.total_bytes()
        _delete(folder, index, dead)
        return _finished(folder, index, before).freed_bytes


def prune(
    root: Path,
    *,
    settings: KvSettings,
    to_bytes: int | None = None,
    clock: Callable[[], float] = time.time,
    build: str = LLAMA_BUILD,
) -> Freed:
    """Evict down to `to_bytes` (None: the budget), but nothing in use; delete what no engine can use any more.

    Raises OSError.
    """
    folder = KvFolder(root)
    if not root.is_dir():
        return Freed(0, 0)
    with _opened(folder, clock()) as index:
        before = index.total_bytes()
        rows = {row.key: row for row in index.outlines()}
        in_use = {rows[key].fingerprint for key in ancestry(rows, tips_in_use(folder))}
        stale = [key for key in folder.generations() if key not in in_use and is_stale(folder, key, build)]
        _remove_generations(folder, index, stale)
        target = limits_for(settings, folder, before).budget_bytes if to_bytes is None else to_bytes
        surplus = index.total_bytes() - target
        if surplus > 0:
            evict(folder, index, surplus, build=build)
        return _finished(folder, index, before)


def give_way(
    cache_dir: Path, n_bytes: int, *, clock: Callable[[], float] = time.time, build: str = LLAMA_BUILD
) -> None:
    """Delete `n_bytes` of KV for something more important, a message that finds the disk full. Raises OSError.

    In the usual order, and nothing in use. A disk may be too full even for the index to say so, or another program hold
    the store for too long: then the oldest files go, in use or not, and are found missing.
    """
    folder = KvFolder(cache_dir / FOLDER)
    if not folder.root.is_dir():
        return
    try:
        with _opened(folder, clock()) as index:
            evict(folder, index, n_bytes, build=build)
    except OSError:
        for path, size in _oldest_first(folder):
            if n_bytes <= 0:
                break
            path.unlink(missing_ok=True)
            n_bytes -= size


def _oldest_first(folder: KvFolder) -> list[tuple[Path, int]]:
    found = []
    for fingerprint in folder.generations():
        for file in folder.files(fingerprint):
            with contextlib.suppress(OSError):
                status = file.path.lstat()
                found.append((status.st_mtime, file.path, status.st_size))
    return [(path, size) for _, path, size in sorted(found)]


def clear(
    root: Path, *, fingerprints: Collection[bytes] | None = None, clock: Callable[[], float] = time.time
) -> Freed:
    """Delete everything of these generations, or of all (None): segments, measurements, checks, crash counts.

    What is in use goes too; its engine finds it missing. Raises OSError.
    """
    folder = KvFolder(root)
    if not root.is_dir():
        return Freed(0, 0)
    with _opened(folder, clock()) as index:
        before = index.total_bytes()
        if fingerprints is None:
            fingerprints = {*folder.generations(), *index.generations()}
        _remove_generations(folder, index, fingerprints)
        return _finished(folder, index, before)


def clear_chains(
    root: Path, tips: Iterable[str], other_tips: Iterable[str], *, clock: Callable[[], float] = time.time
) -> Freed:
    """Delete what the chains of `tips` (hex keys) reach and those of `other_tips` do not, and what hangs on that.

    In use or not, as in `clear`. Raises OSError.
    """
    folder = KvFolder(root)
    if not root.is_dir():
        return Freed(0, 0)
    with _opened(folder, clock()) as index:
        before = index.total_bytes()
        rows = {row.key: row for row in index.outlines()}
        kept = ancestry(rows, _keys(other_tips))
        children: dict[bytes, list[Outline]] = {}
        for row in rows.values():
            children.setdefault(row.parent, []).append(row)
        doomed: dict[bytes, Outline] = {}
        queue = [rows[key] for key in ancestry(rows, _keys(tips))]
        while queue:
            row = queue.pop()
            if row.key not in kept and row.key not in doomed:
                doomed[row.key] = row
                queue += children.get(row.key, [])
        _delete(folder, index, doomed.values())
        return _finished(folder, index, before)


@contextmanager
def _opened(folder: KvFolder, now: float) -> Iterator[KvIndex]:
    """The index, in line with the files, while nobody else changes either."""
    folder.make()
    with folder.locked(), closing(open_index(folder, now, is_checked=True)) as index:
        reconcile(folder, index, now)
        yield index


def _finished(folder: KvFolder, index: KvIndex, before: int) -> Freed:
    """Delete what was set aside too, and the traces in the index's log."""
    set_aside = folder.clear_damaged()
    index.checkpoint()
    left = index.total_bytes()
    return Freed(before - left + set_aside, left)


def _delete(folder: KvFolder, index: KvIndex, rows: Collection[Outline]) -> None:
    """Delete rows, then their files, as many as can be. Raises the last failure's OSError."""
    index.remove(row.key for row in rows)
    failure: OSError | None = None
    for row in rows:
        for part in PARTS:
            try:
                folder.delete(row.fingerprint, row.key, part)
            except OSError as exc:
                failure = exc
    if failure:
        raise failure


def _remove_generations(folder: KvFolder, index: KvIndex, fingerprints: Iterable[bytes]) -> None:
    for fingerprint in fingerprints:
        index.remove_generation(fingerprint)
        folder.remove_generation(fingerprint)


def _keys(tips: Iterable[str]) -> list[bytes]:
    """Keys of tips as conversations keep them; what is no hex number (another engine's) names nothing here."""
    keys = []
    for tip in tips:
        with contextlib.suppress(ValueError):
            keys.append(bytes.fromhex(tip))
    return keys
