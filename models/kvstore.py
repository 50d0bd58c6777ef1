"""KV segments on disk: look a token prefix up, read it verified, write new rows, forget what nobody reaches.

A library over files and their index. Any doubt is a miss with a reason; text never depends on it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from models.fingerprint import Fingerprint
from models.kvformat import SegmentDamaged, SegmentForeign, SegmentId, read_segment, write_segment
from models.kvindex import IndexRow, KvIndex
from models.stats import common_prefix

SEGMENT_BYTES = 16 << 20
# A segment's file is a little larger than its rows: cells, header and token ids.
_BUFFER_BYTES = SEGMENT_BYTES + (SEGMENT_BYTES >> 6)


@dataclass(frozen=True, slots=True)
class Hit:
    """A stored segment of which the first `n_used` tokens match the wanted prefix."""

    segment: SegmentId
    n_used: int

    @property
    def is_whole(self) -> bool:
        """All of its tokens match, so a chain may continue behind it."""
        return self.n_used == len(self.segment.tokens)

    @property
    def end(self) -> int:
        """Position behind the last matching token."""
        return self.segment.start + self.n_used


class KvStore:
    """The segments of one fingerprint. Owned by the engine process; pruning and forgetting open it elsewhere too."""

    def __init__(self, root: Path, mac_key: bytes, fingerprint: Fingerprint, *, clock: Callable[[], float]) -> None:
        """`root` is the KV folder (made when missing). Raises OSError when it cannot be made."""
        self._root = root
        self._mac_key = mac_key
        self._fingerprint = fingerprint
        self._clock = clock
        self._buffers = (bytearray(), bytearray())
        self.root_key = fingerprint.digest()
        self._index = KvIndex(root / "index.db")
        self._index.remember_generation(self.root_key, fingerprint.to_json())

    def lookup(self, tokens: Sequence[int]) -> list[Hit]:
        """The longest stored chain along `tokens`: whole segments, then at most one that matches in part.

        Compares token ids, not only keys. An index that cannot be read holds nothing.
        """
        try:
            hits = self._longest_chain(tokens)
            self._index.touch((hit.segment.key for hit in hits), self._clock())
        except OSError:
            return []
        return hits

    def _longest_chain(self, tokens: Sequence[int]) -> list[Hit]:
        """Tries every branch: a segment that matches further in part must not hide a whole one that goes on."""
        best: list[Hit] = []
        open_chains: list[list[Hit]] = [[]]
        while open_chains:
            chain = open_chains.pop()
            parent, position = (chain[-1].segment.key, chain[-1].end) if chain else (self.root_key, 0)
            rest = tokens[position:]
            for row in self._index.children(parent) if rest else ():
                n = common_prefix(row.segment.tokens, rest)
                if not n or row.segment.start != position:
                    continue
                longer = [*chain, Hit(row.segment, n)]
                if not best or (longer[-1].end, longer[-1].is_whole) > (best[-1].end, best[-1].is_whole):
                    best = longer
                if longer[-1].is_whole:
                    open_chains.append(longer)
        return best

    def read(self, segment: SegmentId) -> memoryview:
        """The verified payload, valid until the read after the next.

        Raises `SegmentDamaged` (the file is set aside) or OSError.
        """
        try:
            return read_segment(self._path(segment.key), segment, self._mac_key, self._room)
        except SegmentDamaged:
            self._quarantine(segment)
            raise
        except SegmentForeign as exc:
            self._drop(segment)
            raise SegmentDamaged(str(exc)) from exc
        except OSError:
            self._drop(segment)
            raise

    def read_each(self, segments: Sequence[SegmentId]) -> Iterator[memoryview]:
        """The payloads in order, each valid until the one after; raises like `read` when its turn comes.

        The next one is read and verified in a thread while the caller loads the current one.
        """
        with ThreadPoolExecutor(1, "kv-reader") as reader:
            ahead = reader.submit(self.read, segments[0])
            for following in (*segments[1:], None):
                payload = ahead.result()
                if following is not None:
                    ahead = reader.submit(self.read, following)
                yield payload

    def warm_up(self) -> None:
        """Touch the read buffers once, so that the first restore does not wait for fresh memory."""
        self._buffers = (bytearray(b"\1") * _BUFFER_BYTES, bytearray(b"\1") * _BUFFER_BYTES)

    def reject(self, segment: SegmentId) -> None:
        """Take a segment out of use that verified but that the engine could not load."""
        self._quarantine(segment)

    def write(self, segment: SegmentId, payload: bytes | bytearray | memoryview) -> int:
        """Publish a segment: file first, index row after it. Returns bytes written. Raises OSError."""
        n_bytes = write_segment(self._path(segment.key), segment, payload, self._mac_key)
        self._index.add(segment, n_bytes, self._clock())
        return n_bytes

    def why_missing(self) -> str:
        """Why nothing was found, in words; names the field when the same weights are stored under other settings."""
        try:
            for fields_json in self._index.other_generations(self.root_key):
                names = self._fingerprint.difference(fields_json)
                if names and "weights" not in names:
                    return "stored under other settings: " + ", ".join(names)
        except (OSError, ValueError):
            return "the index of stored KV cannot be read"
        return "nothing stored"

    def close(self) -> None:
        """Close the index."""
        self._index.close()

    def _room(self, n_bytes: int) -> memoryview:
        """A view of the older of two buffers: touching fresh memory costs as much as reading the file."""
        newer, older = self._buffers
        if len(older) < n_bytes:
            older = bytearray(max(n_bytes, _BUFFER_BYTES))
        self._buffers = (older, newer)
        return memoryview(older)[:n_bytes]

    def _path(self, key: bytes) -> Path:
        return segment_path(self._root, key)

    def _drop(self, segment: SegmentId) -> None:
        with contextlib.suppress(OSError):
            self._index.remove([segment.key])

    def _quarantine(self, segment: SegmentId) -> None:
        self._drop(segment)
        path = self._path(segment.key)
        with contextlib.suppress(OSError):
            (self._root / "damaged").mkdir(exist_ok=True, mode=0o700)
            path.replace(self._root / "damaged" / path.name)


def segment_path(root: Path, key: bytes) -> Path:
    """Where a segment lies; the name is its key, never anything a user wrote."""
    name = key.hex()
    return root / name[:2] / f"{name}.kv"


def plan_segments(message_ends: Iterable[int], start: int, max_tokens: int) -> list[tuple[int, int]]:
    """Cut `[start, last end)` into segments of at most `max_tokens`, at message ends where possible.

    The first message stands alone, so that conversations share a system prompt; later messages are put together
    up to the cap, and one longer than the cap is cut at it.
    """
    ends = sorted({end for end in message_ends if end > start})
    cuts: list[tuple[int, int]] = []
    begin = start
    for i, end in enumerate(ends):
        following = ends[i + 1] if i + 1 < len(ends) else None
        while end - begin > max_tokens:
            cuts.append((begin, begin + max_tokens))
            begin += max_tokens
        if following is None or (start == 0 and i == 0) or following - begin > max_tokens:
            if end > begin:
                cuts.append((begin, end))
            begin = end
    return cuts


def load_mac_key(data_dir: Path) -> bytes:
    """The 32-byte key of this data directory, made on first use (mode 0600). Raises OSError."""
    path = data_dir / "kv.key"
    try:
        key = path.read_bytes()
        if len(key) == 32:
            return key
    except FileNotFoundError:
        pass
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".kv.key.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(secrets.token_bytes(32))
        file.flush()
        os.fsync(file.fileno())
    try:
        # A link fails if another process was first; then its key counts.
        os.link(temporary, path)
    except FileExistsError:
        if path.stat().st_size != 32:
            temporary.replace(path)
    except OSError:
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path.read_bytes()


def forget(cache_dir: Path, dead_tips: Sequence[str], alive_tips: Sequence[str]) -> int:
    """Delete every segment on the chains of `dead_tips` (hex) that no chain of `alive_tips` reaches.

    Branches hanging on deleted segments go too: without their parents nothing can reach them. Returns bytes freed.
    """
    root = cache_dir / "kv"
    if not (root / "index.db").exists():
        return 0
    index = KvIndex(root / "index.db")
    try:
        kept = {row.segment.key for row in _ancestry(index, alive_tips)}
        doomed = [row for row in _ancestry(index, dead_tips) if row.segment.key not in kept]
        seen = {row.segment.key for row in doomed}
        queue = list(doomed)
        while queue:
            for child in index.children(queue.pop().segment.key):
                if child.segment.key not in kept | seen:
                    seen.add(child.segment.key)
                    doomed.append(child)
                    queue.append(child)
        index.remove(row.segment.key for row in doomed)
        for row in doomed:
            segment_path(root, row.segment.key).unlink(missing_ok=True)
        return sum(row.bytes for row in doomed)
    finally:
        index.close()


def _ancestry(index: KvIndex, tips: Iterable[str]) -> list[IndexRow]:
    rows: dict[bytes, IndexRow] = {}
    for tip in tips:
        key = bytes.fromhex(tip)
        while key not in rows and (row := index.get(key)) is not None:
            rows[key] = row
            key = row.segment.parent
    return list(rows.values())
