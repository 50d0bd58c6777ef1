"""Publishes KV segments in a thread of its own, in order, so that nobody who waits for an answer waits for the disk."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from models.kvformat import Part, SegmentId
from models.kvstore import KvStore
from models.stats import common_prefix

# Rows waiting in memory for a slow disk; above this, capturing waits while nobody else does.
_QUEUED_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a batch: bytes written, the chain's newest stored key (hex), why it is not the whole batch."""

    n_bytes: int
    tip: str | None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One file to publish."""

    segment: SegmentId
    part: Part
    payload: bytearray


@dataclass(frozen=True, slots=True)
class _Job:
    batch: Sequence[Item]
    tip: bytes | None
    done: Callable[[Written], None]


@dataclass(frozen=True, slots=True)
class _Lost:
    """A segment that could not be written: the key before it in its chain (None: it is the first), and why."""

    parent: bytes | None
    note: str


class KvWriter:
    """A queue in front of `KvStore.write`. `done` callbacks run in the writer's thread."""

    def __init__(self, store: KvStore) -> None:
        self._store = store
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._changed = threading.Condition()
        self._pending: dict[tuple[SegmentId, Part], int] = {}
        self._pending_bytes = 0
        self._may_write = threading.Event()
        self._may_write.set()
        self._failed = threading.Event()
        self._lost: dict[bytes | None, _Lost] = {}
        self._thread = threading.Thread(target=self._run, name="kv-writer", daemon=True)
        self._thread.start()

    def put(self, batch: Sequence[Item], tip: bytes | None, done: Callable[[Written], None]) -> None:
        """Publish a batch, then call `done` with `tip`, or with the last key of its chain that is stored."""
        with self._changed:
            self._pending_bytes += sum(len(item.payload) for item in batch)
            for item in batch:
                self._pending[item.segment, item.part] = len(item.payload)
        self._jobs.put(_Job(batch, tip, done))

    def has_room(self) -> bool:
        """True if more may be captured without piling up in memory."""
        return self._pending_bytes < _QUEUED_BYTES

    def wait_for_room(self, timeout_s: float) -> None:
        """Wait until something was written, at most so long."""
        with self._changed:
            self._changed.wait_for(self.has_room, timeout_s)

    def holds(self, segment: SegmentId) -> bool:
        """True if this segment is not on disk yet."""
        with self._changed:
            return any(pending == segment for pending, _ in self._pending)

    def holds_part_of(self, tokens: Sequence[int], useful: int) -> bool:
        """True if a segment is not on disk yet that may belong to this prefix and reaches its token `useful`."""
        with self._changed:
            segments = {segment for segment, _ in self._pending}
        matches = ((segment.start, common_prefix(segment.tokens, tokens[segment.start :])) for segment in segments)
        return any(n and start + n >= useful for start, n in matches)

    def has_lost(self, key: bytes) -> bool:
        """True if this segment could not be written."""
        return key in self._lost

    def has_failed(self) -> bool:
        """True once after a write failed: what follows it in its chain cannot be found."""
        failed = self._failed.is_set()
        self._failed.clear()
        return failed

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let nothing be written while somebody waits for tokens: a busy core slows evaluation by a multiple of it."""
        self._may_write.clear()
        try:
            yield
        finally:
            self._may_write.set()

    def drain(self) -> None:
        """Write everything now, also what is held, and wait for it."""
        is_held = not self._may_write.is_set()
        self._may_write.set()
        self._jobs.join()
        if is_held:
            self._may_write.clear()

    def close(self) -> None:
        """Write what is queued and end the thread."""
        self._may_write.set()
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.done(self._publish(job))
            # Not at the start, where somebody waits for a first answer.
            self._store.tidy()
            self._jobs.task_done()
        self._jobs.task_done()

    def _publish(self, job: _Job) -> Written:
        """Write a batch; behind a segment that could not be written nothing can be found, so nothing is written."""
        n_bytes = 0
        notes: dict[bytes, str] = {}
        for item in job.batch:
            self._may_write.wait()
            segment = item.segment
            # What failed in an earlier batch is tried again; a state whose rows failed just now is not.
            before = self._parent_loss(segment)
            note = before.note if before else notes.get(segment.key)
            if note is None:
                try:
                    n_bytes += self._store.write(segment, item.payload, item.part)
                    self._lost.pop(segment.key, None)
                except OSError as exc:
                    # A full or read-only disk costs the next resume a prefill, nothing else.
                    note = f"KV is not kept: {exc.strerror or exc}"
                except Exception as exc:  # noqa: BLE001 - a thread that ended here would be waited for without end
                    note = f"KV is not kept: unexpected error ({type(exc).__name__})"
            if note is not None:
                notes[segment.key] = note
                self._failed.set()
                self._lost[segment.key] = _Lost(segment.parent if segment.start else None, note)
            with self._changed:
                self._pending_bytes -= len(item.payload)
                self._pending.pop((segment, item.part), None)
                self._changed.notify_all()
        tip = job.tip
        while tip in self._lost:
            tip = self._lost[tip].parent
        return Written(n_bytes, tip.hex() if tip else None, next(iter(notes.values()), None))

    def _parent_loss(self, segment: SegmentId) -> _Lost | None:
        """Why what stands before a segment is not stored; None if it is, perhaps by another engine since."""
        loss = self._lost.get(segment.parent)
        if loss and self._store.has(segment.parent):
            del self._lost[segment.parent]
            return None
        return loss
