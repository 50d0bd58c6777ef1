"""KV segments on disk for one fingerprint: look a token prefix up, read it verified, write what is new.

A library over files and their index. Any doubt is a miss with a reason; text never depends on it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models import misses
from models.engine import MemoryKind
from models.fingerprint import Fingerprint
from models.kvbudget import limits_for, make_room
from models.kvfolder import InUse, KvFolder, take_crashes
from models.kvformat import (
    HEADER_BYTES,
    Buffer,
    Part,
    ReadTimes,
    SegmentDamaged,
    SegmentForeign,
    SegmentId,
    key_id,
    read_segment,
    root_key,
    write_segment,
)
from models.kvindex import IndexDamaged, IndexRow, Loss, discard_index
from models.kvreconcile import open_index, reconcile
from models.kvsettings import KvSettings
from models.stats import common_prefix

SEGMENT_BYTES = 16 << 20
# A segment's file is a little larger than its rows: cells, header and token ids.
_BUFFER_BYTES = SEGMENT_BYTES + (SEGMENT_BYTES >> 6)
# Two threads read and verify ahead of the one payload that is being loaded: verification is the slowest part.
_READERS = 2
_RECONCILE_EVERY_S = 24 * 3600.0
# Fewer tokens than this in common are the glue that all conversations begin with.
_COINCIDENCE = 16
# An engine that died this often while loading one segment will do so again.
_MAX_CRASHES = 2


class KvUnusable(Exception):
    """KV is not used for this generation; the message is the reason, without a full stop."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A stored segment of which the first `n_used` tokens match the wanted prefix. Sizes in bytes, 0: not stored."""

    segment: SegmentId
    n_used: int
    rows_bytes: int
    state_bytes: int

    @property
    def is_whole(self) -> bool:
        """All of its tokens match, so a chain may continue behind it."""
        return self.n_used == len(self.segment.tokens)

    @property
    def end(self) -> int:
        """Position behind the last matching token."""
        return self.segment.start + self.n_used


@dataclass(frozen=True, slots=True)
class Found:
    """What is stored of a wanted prefix.

    `hits` is the chain up to the last point that can be restored, `n_matched` the tokens up to which any stored chain
    agrees, `loss` why the segment behind the hits has no file any more, if that is where the chain ends,
    `diverges` that something else is stored behind the hits.
    """

    hits: tuple[Hit, ...] = ()
    n_matched: int = 0
    loss: Loss | None = None
    diverges: bool = False
    error: str | None = None

    @property
    def end(self) -> int:
        """Tokens that can be restored."""
        return self.hits[-1].end if self.hits else 0


class KvStore:
    """The segments of one fingerprint. Owned by the engine process; pruning and forgetting open the folder elsewhere.

    What a restore needs depends on the memory kind: a dense cache takes any part of a chain; a sliding window whole
    segments; a hybrid one whole segments and the state at the end of the last; a recurrent one that state alone.
    """

    def __init__(
        self,
        root: Path,
        mac_key: bytes,
        fingerprint: Fingerprint,
        *,
        clock: Callable[[], float],
        kind: MemoryKind = "dense",
        settings: KvSettings | None = None,
        model: dict[str, str] | None = None,
    ) -> None:
        """`root` is the KV folder (made when missing), `model` name and path to show in statistics.

        Raises OSError when the folder cannot be used, `KvUnusable` when loading from it has crashed before.
        """
        self.kind = kind
        self._mac_key = mac_key
        self._owner = key_id(mac_key)
        self._fingerprint = fingerprint
        self._settings = settings or KvSettings()
        self._clock = clock
        self.digest = fingerprint.digest()
        self.root_key = root_key(self.digest, self._owner)
        self._about = {"fields": fingerprint.fields(), "model": model or {}}
        self._buffers = [bytearray() for _ in range(_READERS + 1)]
        self._folder = KvFolder(root)
        self._folder.make()
        with self._folder.locked():
            self._open_index()
            try:
                try:
                    self._open()
                except IndexDamaged:
                    self._renew_index()
                    self._open()
            except BaseException:
                self._index.close()
                raise

    def _open(self) -> None:
        self._folder.write_about(self.digest, self._about)
        self._count_crashes()
        self._limits = limits_for(self._settings, self._folder, self._index.total_bytes())
        self._sign = InUse(self._folder)
        with contextlib.suppress(OSError):
            self._make_room(0)

    def _count_crashes(self) -> None:
        """Note engines that died while they loaded a segment; twice on the same one is enough."""
        for fingerprint, key in take_crashes(self._folder):
            notes = self._folder.notes(fingerprint)
            crashes = _crashes(notes)
            crashes[key.hex()] = crashes.get(key.hex(), 0) + 1
            self._folder.write_notes(fingerprint, {**notes, "crashes": crashes})
        if any(n >= _MAX_CRASHES for n in _crashes(self._folder.notes(self.digest)).values()):
            raise KvUnusable(
                "the engine died twice while it restored this model's KV; `chatapp kv clear` lets it try again"
            )

    # --- looking up ---

    def lookup(self, tokens: Sequence[int]) -> Found:
        """The longest stored chain along `tokens` that can be restored; compares token ids, not only keys."""
        try:
            found = self._mended(lambda: self._longest_chain(tokens, self.root_key))
        except OSError as exc:
            return Found(error=exc.strerror or str(exc))
        state = found.hits[-1].segment.key if found.hits and found.hits[-1].state_bytes else None
        with contextlib.suppress(OSError):  # on a full disk it can be read all the same
            self._index.touch((hit.segment.key for hit in found.hits), self._clock(), state=state)
        return found

    def _mended(self, read: Callable[[], Found]) -> Found:
        """Read from the index; if it turns out to be damaged, from one made anew."""
        try:
            return read()
        except IndexDamaged:
            with self._folder.locked():
                self._renew_index()
            return read()

    def _longest_chain(self, tokens: Sequence[int], root: bytes) -> Found:
        """Tries every branch: a segment that matches further in part must not hide a whole one that goes on."""
        best: tuple[Hit, ...] = ()
        n_matched = 0
        lost_to, loss = 0, None
        parts_at = -1
        open_chains: list[tuple[Hit, ...]] = [()]
        while open_chains:
            chain = open_chains.pop()
            parent, position = (chain[-1].segment.key, chain[-1].end) if chain else (root, 0)
            rest = tokens[position:]
            for row in self._index.children(parent) if rest else ():
                n = common_prefix(row.segment.tokens, rest)
                if row.segment.start == position and n < min(len(row.segment.tokens), len(rest)):
                    parts_at = max(parts_at, position + n)
                if not n or row.segment.start != position:
                    continue
                n_matched = max(n_matched, position + n)
                longer = (*chain, Hit(row.segment, n, row.rows_bytes, row.state_bytes))
                end = longer[-1]
                # Where only whole segments can be restored, one that matches in part would not have helped.
                if row.loss and end.end > lost_to and (end.is_whole or self.kind == "dense"):
                    lost_to, loss = end.end, row.loss
                if not self._may_pass(row):
                    continue
                if self._may_end(end) and (not best or (end.end, end.is_whole) > (best[-1].end, best[-1].is_whole)):
                    best = longer
                if end.is_whole:
                    open_chains.append(longer)
        reached = best[-1].end if best else 0
        return Found(best, n_matched, loss if lost_to > reached else None, diverges=parts_at >= reached)

    def _may_pass(self, row: IndexRow) -> bool:
        """True if a chain may go through this segment: a recurrent state replaces all rows before it."""
        return row.rows_bytes > 0 or self.kind == "recurrent"

    def _may_end(self, hit: Hit) -> bool:
        """True if the context can be restored up to the end of this match."""
        if self.kind == "dense":
            return True
        return hit.is_whole and (self.kind == "sliding window" or hit.state_bytes > 0)

    def why(self, found: Found, tokens: Sequence[int], reused: int = 0) -> str | None:
        """Why no more than `found` of `tokens` can be restored, in words; None if only because the texts part there.

        Names the field when more is stored under other settings. `reused` tokens were there without the disk.
        """
        if found.error:
            return misses.unreadable(found.error)
        if found.loss == "evicted":
            return misses.EVICTED
        if found.loss == "vanished":
            return misses.VANISHED
        if found.loss == "damaged":
            return misses.damaged("found earlier")
        if found.n_matched > max(found.end, reused) and self.kind != "dense":
            return misses.no_restore_point(found.end)
        reached = max(found.n_matched, reused)
        if reached >= len(tokens):
            return None
        try:
            names = self._elsewhere(tokens, reached)
        except OSError as exc:
            return misses.unreadable(exc.strerror or str(exc))
        if names:
            return misses.other_settings(names)
        if reached < _COINCIDENCE:
            return misses.NOTHING
        return None if found.diverges else misses.ends(reached)

    def _elsewhere(self, tokens: Sequence[int], reached: int) -> list[str]:
        """Names of the fields in which a generation differs that holds more of this prefix; empty if none does."""
        for digest, n_bytes in self._index.generations().items():
            names = self._fingerprint.difference(self._folder.about(digest).get("fields"))
            is_other = n_bytes and names and "weights" not in names
            if is_other and self._longest_chain(tokens, root_key(digest, self._owner)).n_matched > reached:
                return names
        return []

    # --- reading ---

    def read(self, segment: SegmentId, part: Part = "rows") -> memoryview:
        """The verified payload in memory of its own. Raises `SegmentDamaged` (the file is set aside) or OSError."""
        return self._read(segment, part, lambda n_bytes: memoryview(bytearray(n_bytes)))

    def _read(
        self,
        segment: SegmentId,
        part: Part,
        allocate: Callable[[int], memoryview],
        times: ReadTimes | None = None,
    ) -> memoryview:
        path = self._path(segment, part)
        try:
            return read_segment(path, segment, part, self._mac_key, allocate, times)
        except (SegmentDamaged, SegmentForeign) as exc:
            self.reject(segment, part)
            raise SegmentDamaged(str(exc)) from exc
        except OSError:
            self._lose(segment, part, "vanished")
            raise

    def read_each(
        self, wanted: Sequence[tuple[SegmentId, Part]], times: ReadTimes | None = None
    ) -> Iterator[memoryview]:
        """The payloads in order, each valid until the one after; raises like `read` when its turn comes.

        The next ones are read and verified in threads while the caller loads the current one. What the threads took
        for each payload is added to `times` before it is given.
        """
        with ThreadPoolExecutor(_READERS, "kv-reader") as readers:
            ahead: list[Future[tuple[memoryview, ReadTimes]]] = []

            def read(i: int) -> tuple[memoryview, ReadTimes]:
                took = ReadTimes()
                room = lambda n_bytes: self._room(i % len(self._buffers), n_bytes)  # noqa: E731 - names the buffer
                return self._read(*wanted[i], room, took), took

            for i in range(len(wanted)):
                while len(ahead) < min(i + len(self._buffers), len(wanted)):
                    ahead.append(readers.submit(read, len(ahead)))
                payload, took = ahead[i].result()
                if times:
                    times.add(took)
                yield payload

    def warm_up(self) -> None:
        """Touch the read buffers once, so that the first restore does not wait for fresh memory."""
        self._buffers = [bytearray(b"\1") * _BUFFER_BYTES for _ in self._buffers]

    def _room(self, i: int, n_bytes: int) -> memoryview:
        """A view of a buffer that is used again: touching fresh memory costs as much as reading the file."""
        if len(self._buffers[i]) < n_bytes:
            self._buffers[i] = bytearray(max(n_bytes, _BUFFER_BYTES))
        return memoryview(self._buffers[i])[:n_bytes]

    def reject(self, segment: SegmentId, part: Part = "rows") -> None:
        """Take a file out of use that is damaged, or that verified but that the engine could not load."""
        self._lose(segment, part, "damaged")
        self._folder.set_aside(self._path(segment, part))

    def _lose(self, segment: SegmentId, part: Part, loss: Loss) -> None:
        with contextlib.suppress(OSError):
            self._index.lose([(segment.key, part)], loss)

    # --- writing ---

    def write(self, segment: SegmentId, payload: Buffer, part: Part = "rows") -> int:
        """Publish a file, then its index row. Returns bytes written. Raises OSError, `KvFull` with the limit's name."""
        with self._folder.locked():
            self._find_index()
            try:
                return self._write(segment, payload, part)
            except IndexDamaged:
                self._renew_index()
                return self._write(segment, payload, part)

    def _write(self, segment: SegmentId, payload: Buffer, part: Part) -> int:
        self._make_room(HEADER_BYTES + 4 * len(segment.tokens) + len(payload), segment.parent)
        n_bytes = write_segment(self._path(segment, part), segment, part, payload, self._mac_key)
        self._index.add(segment, self._owner, part, n_bytes, self._clock())
        self._index.count_written(self._today(), n_bytes)
        return n_bytes

    def has(self, key: bytes) -> bool:
        """True if there is a segment with this key behind which a chain may go on; False also if nobody can tell."""
        try:
            row = self._index.get(key)
        except OSError:
            return False
        return row is not None and self._may_pass(row)

    def use(self, tip: SegmentId | None, *, loading: SegmentId | None = None) -> None:
        """Say which chain is worked on, so that nobody evicts it, and what native code is about to load."""
        self._sign.show(
            tip.key if tip else None,
            (self.digest, loading.key) if loading else None,
        )

    def correct_use(self, tip: bytes, stored: bytes | None) -> None:
        """Say that the chain worked on ends in `stored`, where it was said to end in `tip`; from any thread."""
        self._sign.correct(tip, stored)

    def _renew_index(self) -> None:
        """Make the index anew from the files; the lock must be held."""
        self._index.close()
        discard_index(self._folder.index_path)
        self._open_index()

    def _open_index(self) -> None:
        self._index = open_index(self._folder, self._clock())
        self._index_file = self._folder.index_path.stat()

    def _is_index_there(self) -> bool:
        """False also when another process has made it anew: what is open here is a file without a name then."""
        try:
            return os.path.samestat(self._index_file, self._folder.index_path.stat())
        except OSError:
            return False

    def _find_index(self) -> None:
        """The folder may be deleted while it is in use, or this generation be cleared; then it starts anew."""
        if not self._is_index_there():
            self._folder.make()
            self._index.close()
            self._open_index()
            reconcile(self._folder, self._index, self._clock())
        if not self._folder.generation_dir(self.digest).is_dir():
            self._folder.write_about(self.digest, self._about)

    def _make_room(self, n_bytes: int, parent: bytes | None = None) -> None:
        make_room(
            self._folder,
            self._index,
            self._limits,
            n_bytes,
            build=self._fingerprint.llama_build,
            today=self._today(),
            parent=parent,
        )

    def _today(self) -> str:
        return today(self._clock())

    # --- upkeep ---

    def tidy(self) -> None:
        """Once a day, bring index and files in line: a crash may have left either without the other."""
        now = self._clock()
        with contextlib.suppress(OSError):
            if now - self._index.marked("reconciled") >= _RECONCILE_EVERY_S:
                with self._folder.locked():
                    try:
                        self._index.check()
                        reconcile(self._folder, self._index, now)
                    except IndexDamaged:
                        self._renew_index()

    def note(self, name: str) -> Any:
        """What was remembered for this generation under a name; None if nothing."""
        return self._folder.notes(self.digest).get(name)

    def remember(self, name: str, value: Any) -> None:
        """Remember a measurement or a check for this generation (JSON)."""
        self._folder.write_notes(self.digest, {**self._folder.notes(self.digest), name: value})

    def close(self) -> None:
        """Close the index and leave the chain in use."""
        self._sign.close()
        self._index.close()

    def _path(self, segment: SegmentId, part: Part) -> Path:
        return self._folder.segment_path(segment.fingerprint, segment.key, part)


def _crashes(notes: dict[str, Any]) -> dict[str, int]:
    """How often an engine died while it loaded a segment, by key (hex); what is no such count is not believed."""
    counts = notes.get("crashes")
    return {key: n for key, n in counts.items() if isinstance(n, int)} if isinstance(counts, dict) else {}


def today(now: float) -> str:
    """The local date of a time (epoch s), ISO."""
    return time.strftime("%Y-%m-%d", time.localtime(now))


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
