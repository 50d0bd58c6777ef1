"""Make a token prefix resident: from the context, else from disk, else by prefill; and put new rows on disk."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from models.engine import Phase
from models.kvformat import SegmentDamaged, SegmentId
from models.kvstore import SEGMENT_BYTES, Hit, KvStore, plan_segments
from models.llama import Context
from models.stats import common_prefix

# Below this many tokens a prefill is as quick as opening a file.
_WORTH_RESTORING = 16
_QUEUED_SEGMENTS = 8

Report = Callable[[Phase, int, int], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a prefix became resident: tokens by origin, seconds, whether it was finished (False: cancelled)."""

    resident: int
    restored: int
    prefilled: int
    restore_s: float
    prefill_s: float
    miss_reason: str | None
    is_complete: bool


class Residency:
    """The one place that decides between context, disk and prefill, and that knows which rows are stored.

    Invariant: `_chain` are stored (or queued) segments that cover `[0, _chain[-1].end)` of the context's tokens.
    """

    def __init__(self, context: Context, store: KvStore | None, kv_bytes_per_token: int) -> None:
        """`store` None means KV is not kept on disk."""
        self._context = context
        self._store = store
        self._max_tokens = max(1, SEGMENT_BYTES // max(kv_bytes_per_token, 1))
        self._chain: list[SegmentId] = []
        self._writer = _Writer(store) if store else None

    def ensure(self, tokens: Sequence[int], *, reusable: int, n_history: int, report: Report) -> Outcome:
        """Make `tokens` the resident prefix, reusing at most `reusable` of them (one must run to have logits).

        `n_history` tokens were evaluated in an earlier turn: reusing fewer is a miss with a reason.
        Raises `EngineError` from the native layer.
        """
        context = self._context
        begun = time.monotonic()
        resident = min(common_prefix(context.tokens, tokens), reusable)
        hits, miss = self._find(tokens[:reusable], resident)
        context.keep(resident)
        resident = len(context.tokens)
        self._chain = [segment for segment in self._chain if segment.end <= resident]
        if hits and (failure := self._restore(hits, report)) is not None:
            miss = failure
        restored = max(0, len(context.tokens) - resident)
        resident = len(context.tokens) - restored
        middle = time.monotonic()
        rest = tokens[len(context.tokens) :]
        report("prefill", 0, len(rest))
        is_complete = context.prefill(rest, lambda done: report("prefill", done, len(rest)))
        reused = resident + restored
        if reused >= min(n_history, reusable):
            miss = None
        elif miss is None:
            miss = f"differs from what is stored at token {reused:,}"
        return Outcome(
            resident=resident,
            restored=restored,
            prefilled=len(context.tokens) - reused,
            restore_s=middle - begun if restored else 0.0,
            prefill_s=time.monotonic() - middle,
            miss_reason=miss,
            is_complete=is_complete,
        )

    def _find(self, wanted: Sequence[int], resident: int) -> tuple[list[Hit], str | None]:
        if self._store is None:
            return [], "KV on disk is off for this model"
        if len(wanted) - resident < _WORTH_RESTORING:
            return [], None
        if self._writer:
            self._writer.drain()
        hits = self._store.lookup(wanted)
        end = hits[-1].end if hits else 0
        if end - resident < _WORTH_RESTORING:
            return [], None if end else self._store.why_missing()
        return hits, None

    def _restore(self, hits: list[Hit], report: Report) -> str | None:
        """Load what the context does not hold yet; returns why it could not go on, None if it could."""
        assert self._store is not None
        context = self._context
        total = hits[-1].end
        payloads = self._store.read_each([hit.segment for hit in hits if hit.end > len(context.tokens)])
        for hit in hits:
            segment = hit.segment
            position = len(context.tokens)
            if hit.end > position:
                if context.is_cancelled:
                    return None  # the prefill that follows ends for the same reason
                report("restore", position, total)
                try:
                    payload = next(payloads)
                except SegmentDamaged as exc:
                    return f"a stored segment was set aside: {exc}"
                except OSError as exc:
                    return f"a stored segment could not be read: {exc.strerror}"
                if not context.import_rows(payload, segment.start, segment.tokens, position, hit.end):
                    self._store.reject(segment)
                    self._chain.clear()
                    return "a stored segment was refused by the engine"
            if hit.is_whole and segment not in self._chain:
                self._chain.append(segment)
        report("restore", total, total)
        return None

    def capture(self, message_ends: Iterable[int], done: Callable[[int, str | None], None]) -> None:
        """Queue the resident rows that are not on disk yet, cut at message ends; call when the tail stands at one.

        `done` is called from the writer's thread with the bytes written and the newest segment's key (hex), or
        at once when there is nothing to keep.
        """
        if self._store is None or self._writer is None:
            done(0, None)
            return
        context = self._context
        if self._writer.has_failed():
            self._chain.clear()
        if not self._chain or self._chain[-1].end < len(context.tokens):
            known = [hit.segment for hit in self._store.lookup(context.tokens) if hit.is_whole]
            if known and (not self._chain or known[-1].end > self._chain[-1].end):
                self._chain = known
        start = self._chain[-1].end if self._chain else 0
        batch: list[tuple[SegmentId, bytearray]] = []
        for begin, end in plan_segments(message_ends, start, self._max_tokens):
            parent = self._chain[-1].key if self._chain else self._store.root_key
            segment = SegmentId(self._store.root_key, parent, begin, tuple(context.tokens[begin:end]))
            batch.append((segment, context.export_rows(begin, end)))
            self._chain.append(segment)
        tip = self._chain[-1].key.hex() if self._chain else None
        self._writer.put(batch, tip, done)

    def warm_up(self) -> None:
        """Make the first use of context and disk as fast as later ones; call while nobody waits."""
        self._context.warm_up()
        if self._store:
            self._store.warm_up()

    def close(self) -> None:
        """Write what is queued and end the writer."""
        if self._writer:
            self._writer.close()
        if self._store:
            self._store.close()


@dataclass(frozen=True, slots=True)
class _Job:
    batch: list[tuple[SegmentId, bytearray]]
    tip: str | None
    done: Callable[[int, str | None], None]


class _Writer:
    """A thread that publishes segments in order, so that the answer's reader never waits for the disk."""

    def __init__(self, store: KvStore) -> None:
        self._store = store
        self._jobs: queue.Queue[_Job | None] = queue.Queue(_QUEUED_SEGMENTS)
        self._failed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-writer", daemon=True)
        self._thread.start()

    def put(
        self, batch: list[tuple[SegmentId, bytearray]], tip: str | None, done: Callable[[int, str | None], None]
    ) -> None:
        """Publish a batch, then call `done` with the bytes written and `tip`, or the last key before a failure."""
        self._jobs.put(_Job(batch, tip, done))

    def has_failed(self) -> bool:
        """True once after a write failed: what follows it in its chain cannot be found."""
        failed = self._failed.is_set()
        self._failed.clear()
        return failed

    def drain(self) -> None:
        self._jobs.join()

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            n_bytes, tip = 0, job.tip
            for segment, payload in job.batch:
                try:
                    n_bytes += self._store.write(segment, payload)
                except OSError:
                    # A full or read-only disk costs the next resume a prefill, nothing else.
                    self._failed.set()
                    tip = segment.parent.hex() if segment.start else None
                    break
            job.done(n_bytes, tip)
            self._jobs.task_done()
        self._jobs.task_done()
