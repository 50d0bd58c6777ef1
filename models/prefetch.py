"""Asks the operating system for a conversation's KV files before they are wanted, so that a restore need not wait."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from models.fit import available_memory
from models.kvfolder import KvFolder
from models.kvformat import Part
from models.kvindex import KvIndex
from models.price import chain_to

# What is asked for at once: a few milliseconds of a disk.
_SLICE_BYTES = 4 << 20
# More would push out of memory what is needed there.
_SHARE_OF_MEMORY = 0.25

Advise = Callable[[int, int, int], None]
"""Asks for a range of an open file: its descriptor, where it begins and how many bytes it has."""


def prefetch(
    root: Path,
    tips: Sequence[tuple[str, str]],
    *,
    fingerprint: str | None,
    goes_on: Callable[[], bool],
    advise: Advise | None = None,
) -> int:
    """Bring the KV files that end in one of `tips` into the page cache; returns bytes asked for.

    `root` is the KV folder, `tips` are (fingerprint, tip) in hex; that of `fingerprint` is taken, else the first.
    Nothing is locked or written, so it counts as no use; it ends between two slices when `goes_on` says so, and at
    what is gone. Raises OSError where the index cannot be read.
    """
    chosen = next((tip for tip in tips if tip[0] == fingerprint), tips[0] if tips else None)
    advise = advise or _usual()
    if chosen is None or advise is None:
        return 0
    folder = KvFolder(root)
    generation, tip = bytes.fromhex(chosen[0]), bytes.fromhex(chosen[1])
    with closing(KvIndex(folder.index_path, read_only=True)) as index:
        chain = chain_to({row.key: row for row in index.outlines()}, tip)
    files: list[tuple[bytes, Part]] = [(row.key, "rows") for row in chain if row.rows_bytes]
    # A restore reads of states the newest alone, and begins with the first rows.
    files += [(chain[-1].key, "state")] if chain and chain[-1].state_bytes else []
    left = int(available_memory() * _SHARE_OF_MEMORY)
    n_bytes = 0
    for key, part in files:
        try:
            with folder.segment_path(generation, key, part).open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                for start in range(0, size, _SLICE_BYTES):
                    n = min(_SLICE_BYTES, size - start)
                    if n_bytes + n > left or not goes_on():
                        return n_bytes
                    advise(file.fileno(), start, n)
                    n_bytes += n
        except OSError:
            return n_bytes
    return n_bytes


def _usual() -> Advise | None:
    """The system's own way; None where it has none, and then a restore reads as it always does."""
    if not hasattr(os, "posix_fadvise"):
        return None
    return lambda file, start, n: os.posix_fadvise(file, start, n, os.POSIX_FADV_WILLNEED)
