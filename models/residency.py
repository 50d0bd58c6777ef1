"""Make a token prefix resident: from the context, else from disk, else by prefill; and put what is new on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import takewhile

from models import misses
from models.cost import Estimate, rates_from
from models.engine import Phase
from models.errors import EngineError
from models.kvformat import Part, ReadTimes, SegmentDamaged, SegmentId
from models.kvstore import SEGMENT_BYTES, Found, Hit, KvStore, plan_segments
from models.kvwriter import Item, KvWriter, Written
from models.llama import Context
from models.misses import Cause
from models.stats import common_prefix

# Below this many tokens the disk is left alone: they fit into the batch that has to run anyway.
_WORTH_A_LOOK = 16
# How long copying rows may keep a waiting request from its turn.
_PATIENCE_S = 0.03
# A recurrent state is taken behind a message only if this many tokens lie before it: each is a file of its own.
_STATE_SPACING = 256
# How long it may take to notice that somebody waits.
_WAIT_S = 0.01

Report = Callable[[Phase, int, int], None]
Done = Callable[[Written], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a prefix became resident: tokens by origin, seconds, whether it was finished (False: cancelled).

    `estimate` is what the decision between disk and prefill was made from, None where there was nothing to decide.
    `restore_read_s` and `restore_verify_s` are seconds of the reading threads, which overlap with each other and with
    `restore_copy_s`, the loading of what they have read.
    """

    resident: int
    restored: int
    prefilled: int
    restore_s: float
    prefill_s: float
    miss_reason: str | None
    is_complete: bool
    estimate: Estimate | None = None
    restore_read_s: float = 0.0
    restore_verify_s: float = 0.0
    restore_copy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """A prefix to make resident.

    At most `reusable` of its `tokens` may be reused (one must run to have logits). `n_history` of them were
    evaluated in an earlier turn: reusing fewer is a miss, and `cause_at` says what lies at the token it is cut at.
    `ends` are the positions behind its messages; `keeps` says that what is new may be stored.
    """

    tokens: Sequence[int]
    reusable: int
    n_history: int
    ends: Sequence[int] = ()
    keeps: bool = True
    cause_at: Callable[[int], Cause] = lambda _position: "edited text"


class Residency:
    """The one place that decides between context, disk and prefill, and that knows what is stored.

    Invariant: `_chain` are stored (or queued) segments that cover `[0, _chain[-1].end)` of the context's tokens.
    """

    def __init__(
        self,
        context: Context,
        store: KvStore | None,
        *,
        off_reason: str = misses.OFF,
        is_awaited: Callable[[], bool] = lambda: False,
    ) -> None:
        """`store` None means KV is not kept on disk, for `off_reason`; `is_awaited` that another request waits."""
        self._context = context
        self._store = store
        self._off_reason = off_reason
        self._is_awaited = is_awaited
        self._chain: list[SegmentId] = []
        self._writer = KvWriter(store) if store else None
        self._rates = rates_from(store.note("rates") if store else None)
        self._are_rates_new = False
        self._carried = Written(0, None)
        self._read_times = ReadTimes()
        self._copy_s = 0.0
        self.left_s: float | None = None
        """Seconds that the phase of the newest report is expected to take from there; None: nothing was measured."""

    # --- making resident ---

    def ensure(self, request: Request, report: Report) -> Outcome:
        """Make the request's tokens the resident prefix. Raises `EngineError` from the native layer."""
        outcome = self.reuse(request, report)
        n_reused, begun = len(self._context.tokens), time.monotonic()
        is_complete = self._prefill(request, report)
        self._show_use()
        n_prefilled = max(0, len(self._context.tokens) - n_reused)
        return replace(outcome, prefilled=n_prefilled, prefill_s=time.monotonic() - begun, is_complete=is_complete)

    def reuse(self, request: Request, report: Report) -> Outcome:
        """Make resident what of the request's tokens can be reused, from the context or from disk; evaluate nothing."""
        context, tokens = self._context, request.tokens
        begun = time.monotonic()
        self.cut(min(common_prefix(context.tokens, tokens), request.reusable))
        found, miss = self._find(tokens[: request.reusable])
        hits, estimate, refusal = self._plan(found)
        resident = self._make_way(hits)
        self._read_times, self._copy_s = ReadTimes(), 0.0
        miss = self._restore(hits, report) or refusal or miss
        self._show_use()
        reused = len(context.tokens)
        resident = min(resident, reused)
        if reused >= min(request.n_history, request.reusable):
            miss = None
        elif miss is None and self._store:
            miss = self._store.why(found, tokens[: request.reusable], reused)
            miss = miss or misses.cut(reused, request.cause_at(reused))
        return Outcome(
            resident=resident,
            restored=reused - resident,
            prefilled=0,
            restore_s=time.monotonic() - begun if reused > resident else 0.0,
            prefill_s=0.0,
            miss_reason=miss,
            is_complete=True,
            estimate=estimate,
            restore_read_s=self._read_times.read_s,
            restore_verify_s=self._read_times.verify_s,
            restore_copy_s=self._copy_s,
        )

    def cut(self, n: int) -> None:
        """Cut the resident prefix to its first `n` tokens, or to less where the memory cannot rewind to there."""
        self._context.keep(n)
        self._trim_chain()

    def forget_place(self) -> None:
        """Take note that the resident prefix was exchanged: what of it is stored has to be looked up."""
        self._chain.clear()

    def recall(self, tokens: Sequence[int]) -> bool:
        """Make a history resident as `ensure` does, and keep nothing of it on disk; False if cancelled on the way."""
        request = Request(tokens, len(tokens), len(tokens), keeps=False)
        return self.ensure(request, lambda _phase, _done, _total: None).is_complete

    @property
    def prefill_s_per_token(self) -> float:
        """Seconds for each prefilled token, as measured so far."""
        return self._rates.prefill_s_per_token

    def _find(self, wanted: Sequence[int]) -> tuple[Found, str | None]:
        """What is stored beyond the resident prefix, and why nobody looked, if so."""
        n_missing = len(wanted) - len(self._context.tokens)
        if self._store is None or self._writer is None:
            return Found(), self._off_reason
        if n_missing < _WORTH_A_LOOK:
            return Found(), misses.TOO_SMALL
        found = self._store.lookup(wanted)
        useful = max(len(self._context.tokens) + _WORTH_A_LOOK, found.end + 1)
        if self._writer.holds_part_of(wanted, useful):
            # What was just said there is still being written: waiting for a disk is shorter than a prefill.
            self._writer.drain()
            found = self._store.lookup(wanted)
        return found, None

    def _plan(self, found: Found) -> tuple[list[Hit], Estimate | None, str | None]:
        """The hits to restore, what the decision was made from, and why none or fewer."""
        context = self._context
        gain = found.end - len(context.tokens)
        if gain < _WORTH_A_LOOK:
            return [], None, None
        hits, refusal = list(found.hits), None
        last = hits[-1]
        if not last.is_whole and len(context.tokens[: last.segment.start]) + len(last.segment.tokens) > context.n_ctx:
            # The whole piece has to be loaded before the unwanted part can be cut off.
            hits.pop()
            refusal = misses.cut(last.segment.start, "context limit")
        wanted = _parts(hits, context.kind, len(context.tokens))
        if not wanted:
            return [], None, refusal
        estimate = self._rates.estimate(n_tokens=gain, n_bytes=_bytes(wanted), n_files=len(wanted))
        if not estimate.restores:
            self._rates = self._rates.after_refusal()
            self._are_rates_new = True
            return [], estimate, misses.TOO_SMALL
        return hits, estimate, refusal

    def _make_way(self, hits: Sequence[Hit]) -> int:
        """Cut the resident prefix to where the stored pieces can be joined to it; returns its length."""
        context = self._context
        if hits:
            first = next(hit.segment for hit in hits if hit.end > len(context.tokens))
            # The whole piece is loaded beside what is resident, also the part of it that is resident already.
            n_cells = len(context.tokens) + len(first.tokens)
            # Only dense rows can be joined in the middle, and a recurrent state replaces the one that is there.
            if context.kind != "dense" or n_cells > context.n_ctx:
                context.keep(0 if context.kind == "recurrent" else first.start)
                # A hybrid memory may have gone back to an anchor, and pieces can be joined to their own borders only.
                if context.kind == "hybrid" and all(hit.segment.start != len(context.tokens) for hit in hits):
                    context.keep(0)
                self._trim_chain()
        return len(context.tokens)

    def _restore(self, hits: Sequence[Hit], report: Report) -> str | None:
        """Load what the context does not hold yet; returns why it could not go on, None if it could."""
        if not hits:
            return None
        assert self._store is not None
        context, store = self._context, self._store
        begun = time.monotonic()
        wanted = _parts(hits, context.kind, len(context.tokens))
        payloads = store.read_each([(hit.segment, part) for hit, part in wanted], self._read_times)
        total = hits[-1].end
        for i, (hit, part) in enumerate(wanted):
            if context.is_cancelled:
                self._give_up()
                return None  # the prefill that follows ends for the same reason
            self.left_s = self._rates.expected_restore_s(n_bytes=_bytes(wanted[i:]), n_files=len(wanted) - i)
            report("restore", min(len(context.tokens), hit.segment.start), total)
            self._show_use()
            try:
                payload = next(payloads)
            except (SegmentDamaged, OSError) as exc:
                self._give_up()
                return _reason(exc)
            store.use(self._tip, loading=hit.segment)
            copied_from = time.monotonic()
            is_loaded = self._load(hit, part, hits, payload)
            self._copy_s += time.monotonic() - copied_from
            if not is_loaded:
                self._chain.clear()
                if context.has_branches:  # the file may be sound, and there were too few cells for it
                    return misses.cut(hit.segment.start, "context limit")
                store.reject(hit.segment, part)
                return misses.damaged("the engine refused it")
        self._chain = [hit.segment for hit in hits if hit.is_whole]
        self.left_s = 0.0
        report("restore", total, total)
        self._rates = self._rates.after_restore(_bytes(wanted), len(wanted), time.monotonic() - begun)
        self._are_rates_new = True
        return None

    def _give_up(self) -> None:
        """End a restore half way; what was loaded stays, unless it is rows without the state that belongs to them."""
        if self._context.kind == "hybrid":
            self._context.clear()
        self._trim_chain()

    def _load(self, hit: Hit, part: Part, hits: Sequence[Hit], payload: memoryview) -> bool:
        context = self._context
        if part == "rows":
            return context.import_rows(payload, hit.segment.start, hit.segment.tokens, len(context.tokens), hit.end)
        return context.import_state(payload, [token for one in hits for token in one.segment.tokens])

    def _prefill(self, request: Request, report: Report) -> bool:
        """Evaluate the rest; a memory that cannot rewind is put aside at its restore points on the way."""
        context, tokens = self._context, request.tokens
        first = len(context.tokens)
        total = len(tokens) - first
        self.left_s = self._rates.expected_prefill_s(total)
        report("prefill", 0, total)
        seconds = 0.0
        for stop in (*self._restore_points(request), len(tokens)):
            position = len(context.tokens)

            begun = time.monotonic()

            def advance(done: int, position: int = position, before_s: float = seconds - begun) -> None:
                n_done = position - first + done
                # The prefill itself says best how long the rest of it takes.
                self.left_s = (before_s + time.monotonic()) / n_done * (total - n_done) if n_done else self.left_s
                report("prefill", n_done, total)

            if not context.prefill(tokens[position:stop], advance):
                return False
            seconds += time.monotonic() - begun
            if stop < len(tokens):
                self._queue([end for end in request.ends if end <= stop], waits=False)
        if total:
            self._rates = self._rates.after_prefill(total, seconds)
            self._are_rates_new = True
        return True

    def _restore_points(self, request: Request) -> list[int]:
        """Where to stop for the state of a recurrent memory: it cannot be had afterwards.

        Behind the first message, which conversations share, and behind messages far enough from the point before.
        """
        if self._store is None or not request.keeps or self._context.kind in ("dense", "sliding window"):
            return []
        points: list[int] = []
        previous = len(self._context.tokens)
        for i, end in enumerate(sorted(request.ends)):
            if not len(self._context.tokens) < end < len(request.tokens):
                continue
            if i == 0 or end - previous >= _STATE_SPACING:
                points.append(end)
                previous = end
        return points

    # --- putting on disk ---

    @property
    def tip(self) -> str | None:
        """Key (hex) of the last segment of the resident prefix that is stored or queued."""
        tip = self._tip
        return tip.key.hex() if tip else None

    @property
    def _tip(self) -> SegmentId | None:
        writer = self._writer
        return next((one for one in reversed(self._chain) if not (writer and writer.has_lost(one.key))), None)

    def capture(self, ends: Iterable[int], done: Done) -> None:
        """Queue what is resident and not on disk yet, cut at message ends; call when the tail stands at the last one.

        A request that waits is kept waiting for 30 ms at most: what was not copied by then is taken the next time.
        `done` is called from the writer's thread, or at once when there is nothing to keep.
        """
        if self._store is None or self._writer is None:
            done(Written(0, None))
            return
        self._queue(ends, waits=True)
        store, tip = self._store, self._chain[-1].key if self._chain else None

        def report(written: Written) -> None:
            if tip and written.tip != tip.hex():
                # Who makes room finds nothing under a key that is not stored, and would take the whole chain.
                store.correct_use(tip, bytes.fromhex(written.tip) if written.tip else None)
            carried, self._carried = self._carried, Written(0, None)
            done(replace(carried, tip=written.tip))

        self._writer.put([], tip, report)
        self._remember_rates()

    def _queue(self, ends: Iterable[int], *, waits: bool) -> None:
        """Copy and queue, segment by segment, so that what is not written yet is counted where there must be room."""
        assert self._store is not None
        assert self._writer is not None
        begun = time.monotonic()
        self._find_chain()
        start = self._chain[-1].end if self._chain else 0
        for begin, end in self._cuts(ends, start):
            if not self._may_go_on(begun, waits=waits):
                break
            parent = self._chain[-1].key if self._chain else self._store.root_key
            segment = SegmentId(self._store.digest, parent, begin, tuple(self._context.tokens[begin:end]))
            try:
                items = self._export(segment)
            except EngineError:
                break  # window rows that are gone cannot be kept; a later turn begins a chain that can
            self._chain.append(segment)
            self._writer.put(items, segment.key, self._carry)
        self._show_use()

    def _carry(self, written: Written) -> None:
        """Count what was written for the turn's report (in the writer's thread, like that)."""
        self._carried = Written(self._carried.n_bytes + written.n_bytes, None, self._carried.note or written.note)

    def _export(self, segment: SegmentId) -> list[Item]:
        context = self._context
        items: list[Item] = []
        if context.kind != "recurrent":
            items.append(Item(segment, "rows", context.export_rows(segment.start, segment.end)))
        if context.kind in ("hybrid", "recurrent") and segment.end == len(context.tokens):
            items.append(Item(segment, "state", context.export_state()))
        return items

    def _find_chain(self) -> None:
        """Bring `_chain` up to date with what others have stored or deleted, and with what failed to be written."""
        store, writer = self._store, self._writer
        assert store is not None
        assert writer is not None
        if writer.has_failed():
            self._chain.clear()
        self._chain = list(takewhile(lambda one: writer.holds(one) or store.has(one.key), self._chain))
        if not self._chain or self._chain[-1].end < len(self._context.tokens):
            known = [hit.segment for hit in store.lookup(self._context.tokens).hits if hit.is_whole]
            if known and (not self._chain or known[-1].end > self._chain[-1].end):
                self._chain = known

    def _cuts(self, ends: Iterable[int], start: int) -> list[tuple[int, int]]:
        """Ranges of the segments to make; a recurrent memory has nothing to put into any but the last."""
        context = self._context
        if context.kind == "recurrent":
            return [(start, len(context.tokens))] if start < len(context.tokens) else []
        return plan_segments(ends, start, max(1, SEGMENT_BYTES // max(1, context.row_bytes)))

    def _may_go_on(self, begun: float, *, waits: bool) -> bool:
        """Wait for the disk while nobody else does; False if somebody has waited long enough, or if nothing `waits`."""
        assert self._writer is not None
        while True:
            if self._is_awaited() and time.monotonic() - begun > _PATIENCE_S:
                return False
            if self._writer.has_room():
                return True
            if not waits:
                return False
            self._writer.wait_for_room(_WAIT_S)

    # --- upkeep ---

    def undisturbed(self) -> AbstractContextManager[None]:
        """Let the writer rest while somebody waits for tokens."""
        return self._writer.held() if self._writer else nullcontext()

    def tidy(self) -> None:
        """Move the conversation to the front of the cache if others' cells have pushed it back."""
        if self._context.is_pushed_back and not self._is_awaited():
            self._context.compact()
            self._trim_chain()

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

    def _trim_chain(self) -> None:
        self._chain = [segment for segment in self._chain if segment.end <= len(self._context.tokens)]

    def _show_use(self) -> None:
        if self._store:
            self._store.use(self._tip)

    def _remember_rates(self) -> None:
        if self._store and self._are_rates_new:
            self._are_rates_new = False
            self._store.remember("rates", self._rates.to_json())


def _parts(hits: Sequence[Hit], kind: str, n_resident: int) -> list[tuple[Hit, Part]]:
    """The files a restore behind `n_resident` tokens reads, in order."""
    parts: list[tuple[Hit, Part]] = []
    if kind != "recurrent":
        parts.extend((hit, "rows") for hit in hits if hit.end > n_resident)
    if kind in ("hybrid", "recurrent") and hits:
        parts.append((hits[-1], "state"))
    return parts


def _bytes(parts: Sequence[tuple[Hit, Part]]) -> int:
    return sum(hit.rows_bytes if part == "rows" else hit.state_bytes for hit, part in parts)


def _reason(failure: SegmentDamaged | OSError) -> str:
    """Why a file could not be restored from."""
    if isinstance(failure, SegmentDamaged):
        return misses.damaged(str(failure))
    if isinstance(failure, FileNotFoundError):
        return misses.VANISHED
    return misses.unreadable(failure.strerror or str(failure))
