"""How much disk stored KV may take, and what goes first when it is too much."""

from __future__ import annotations

import errno
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from models.kvfolder import KvFolder, tips_in_use
from models.kvformat import Part
from models.kvindex import KvIndex, Outline
from models.kvsettings import KvSettings

_MIB = 1 << 20
_GIB = 1 << 30
_DEFAULT_BUDGET = 20 * _GIB
_DEFAULT_FLOOR = 1 * _GIB
# What is always left to the conversations' own database, however small the disk.
_LEAST_FLOOR = 16 * _MIB
# Evicting a little more than needed, so that not every turn has to.
_HEADROOM = 0.05
_LOST_ROWS_KEPT = 5_000


class KvFull(OSError):
    """KV may not be written now; `strerror` says which limit stands in the way."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.ENOSPC, reason)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes: all stored KV together, disk space left free, written in one day (None: no cap)."""

    budget_bytes: int
    free_floor_bytes: int
    daily_bytes: int | None


def limits_for(settings: KvSettings, folder: KvFolder, stored_bytes: int) -> Limits:
    """The user's limits, or the defaults for this disk. Raises OSError.

    Budget: min(20 GiB, a tenth of what would be free without stored KV). Floor: min(1 GiB, a twentieth of the disk),
    at least 16 MiB.
    """
    budget, floor = settings.budget_bytes, settings.free_floor_bytes
    if budget is None:
        budget = min(_DEFAULT_BUDGET, (folder.free_bytes() + stored_bytes) // 10)
    if floor is None:
        floor = max(_LEAST_FLOOR, min(_DEFAULT_FLOOR, folder.disk_bytes() // 20))
    return Limits(budget, floor, settings.daily_bytes)


def make_room(
    folder: KvFolder,
    index: KvIndex,
    limits: Limits,
    n_bytes: int,
    *,
    build: str,
    today: str,
    parent: bytes | None = None,
) -> None:
    """Evict until `n_bytes` more fit all limits; the store's lock must be held. Raises `KvFull` or OSError.

    `build` is this program's llama.cpp: generations of another one cannot be used and go first. `today` is an ISO date.
    What is to be stored continues the chain that ends in `parent`, so that one stays.
    """
    if limits.daily_bytes is not None and n_bytes and index.written(today) + n_bytes > limits.daily_bytes:
        raise KvFull(f"today's limit of {size(limits.daily_bytes)} of writing is reached")
    if n_bytes > limits.budget_bytes:
        # Nothing is worth evicting for what will not fit all the same.
        raise KvFull(f"the budget of {size(limits.budget_bytes)} is smaller than what is to be stored")
    over_budget = index.total_bytes() + n_bytes - limits.budget_bytes
    over_disk = limits.free_floor_bytes + n_bytes - folder.free_bytes()
    over = max(over_budget, over_disk)
    if over <= 0:
        return
    wanted = over + int(limits.budget_bytes * _HEADROOM)
    freed = evict(folder, index, wanted, build=build, parent=parent)
    if freed < over_budget:
        raise KvFull(f"the budget of {size(limits.budget_bytes)} is taken by conversations in use")
    if limits.free_floor_bytes + n_bytes > folder.free_bytes():
        raise KvFull(f"the disk has less than {size(limits.free_floor_bytes + n_bytes)} free")


def evict(folder: KvFolder, index: KvIndex, n_bytes: int, *, build: str, parent: bytes | None = None) -> int:
    """Delete at least `n_bytes` of segments if there are as many to delete; returns the bytes freed. Raises OSError.

    The order: generations of another build; recurrent states inside a chain; then the ends of chains, least recently
    used first, so that what several conversations share goes last. What an engine works on is never touched, nor the
    chain that ends in `parent`. The store's lock must be held.
    """
    rows = index.outlines()
    stale = {key for key in {row.fingerprint for row in rows} if is_stale(folder, key, build)}
    tips = tips_in_use(folder) | ({parent} if parent else set())
    protected = ancestry({row.key: row for row in rows}, tips)
    victims: list[tuple[Outline, Part]] = []
    freed = 0
    for row, part in _order(rows, stale, protected):
        if freed >= n_bytes:
            break
        victims.append((row, part))
        freed += row.rows_bytes if part == "rows" else row.state_bytes
    # Rows first: killed in between, there is a file too many, never a promise too many.
    index.lose([(row.key, part) for row, part in victims], "evicted")
    for row, part in victims:
        folder.delete(row.fingerprint, row.key, part)
    index.drop_lost_leaves(_LOST_ROWS_KEPT)
    return freed


def is_stale(folder: KvFolder, fingerprint: bytes, build: str) -> bool:
    """True if a generation was made by another build of llama.cpp, so that this program can never use it."""
    fields = folder.about(fingerprint).get("fields")
    return isinstance(fields, dict) and fields.get("llama_build") != build


def ancestry(rows: dict[bytes, Outline], tips: Iterable[bytes]) -> set[bytes]:
    """Keys of all segments on the chains that end in `tips`."""
    keys: set[bytes] = set()
    for tip in tips:
        key = tip
        while key not in keys and (row := rows.get(key)) is not None:
            keys.add(key)
            key = row.parent
    return keys


def _order(rows: list[Outline], stale: set[bytes], protected: set[bytes]) -> Iterator[tuple[Outline, Part]]:
    by_key = {row.key: row for row in rows}
    n_children = Counter(row.parent for row in rows if row.bytes)
    candidates = [row for row in rows if row.bytes and row.key not in protected]
    inner = [row for row in candidates if row.state_bytes and n_children[row.key] and row.fingerprint not in stale]
    gone: set[bytes] = set()

    def leaves(among: list[Outline]) -> Iterator[tuple[Outline, Part]]:
        """Ends of chains, oldest first; a parent becomes one when its last child is gone."""
        allowed = {row.key for row in among}
        heap = [(row.last_used, row.key) for row in among if not n_children[row.key]]
        heapq.heapify(heap)
        while heap:
            _, key = heapq.heappop(heap)
            row = by_key[key]
            if row.rows_bytes:
                yield row, "rows"
            if row.state_bytes and key not in gone:
                yield row, "state"
            n_children[row.parent] -= 1
            if row.parent in allowed and not n_children[row.parent]:
                heapq.heappush(heap, (by_key[row.parent].last_used, row.parent))

    yield from leaves([row for row in candidates if row.fingerprint in stale])
    for row in sorted(inner, key=lambda row: row.state_used):
        gone.add(row.key)
        yield row, "state"
    yield from leaves([row for row in candidates if row.fingerprint not in stale])


def size(n_bytes: int) -> str:
    """A size in words: 512 MiB."""
    value, unit = float(n_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
