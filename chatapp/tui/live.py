"""What is going on, apart from any widget: the answers being written, and the readings of a conversation."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Literal

from chatapp.tui.thinking import Thought
from models.engine import (
    Ahead,
    Event,
    Failed,
    Finished,
    Loaded,
    ModelInfo,
    Phase,
    Piece,
    Prepared,
    Progress,
    Stored,
    TurnStats,
)
from models.reasoning import Kind, Splitter
from models.stats import tpot
from sessions.conversation import Attachment
from sessions.policy import Verdict

Activity = Literal["idle", "waiting", "queued", "failed"] | Phase

SAMPLE_S = 0.25
"""Length of one sample of `Readings.tpots`, in seconds."""
N_SAMPLES = 31
"""One for each cell of the panel."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """Where the tokens of a prompt came from; `miss_reason` says why KV on disk was not used, if so."""

    resident: int
    restored: int
    prefilled: int
    miss_reason: str | None
    restore_s: float
    prefill_s: float
    kv_bytes: int

    @property
    def total(self) -> int:
        """Tokens of the whole prompt."""
        return self.resident + self.restored + self.prefilled


class Readings:
    """The live numbers of one conversation; `apply` takes every event of its turns and openings.

    `now` is a monotonic time in seconds wherever it is asked for.
    """

    def __init__(self) -> None:
        self.activity: Activity = "idle"
        self.done = 0
        self.total = 0
        self.phase_since = 0.0
        self._left: tuple[float, float] | None = None  # what the engine said is left of the phase (s), and when
        self.sent_at: float | None = None
        self.first_piece_at: float | None = None
        self.last_piece_at: float | None = None
        self.n_output = 0
        self.context_tokens: int = 0
        self._n_runs: int | None = None  # tokens of the prompt's messages, without what an answer begins with
        self._n_repeated = 0  # tokens still to come that the answer begins with and nobody has to decode
        self.reuse: Reuse | None = None
        self.came_back: Reuse | None = None
        self.stats = TurnStats()
        self.tpots: deque[float] = deque(maxlen=N_SAMPLES)
        """Seconds per token in the newest samples of this turn; at least those where no token came at all."""
        self.is_first = False
        self.ahead: Ahead | None = None
        """How much of the draft in the box is read ahead; None: nothing is known of one."""
        self.kv_note: str | None = None
        self._in_turn = False
        self._restoring_at: float | None = None
        self._prefilling_at: float | None = None
        self._prepared_at: float | None = None
        self.finished_at: float | None = None
        """When the last answer that was seen here ended."""
        self._sample_start = 0.0
        self._sample_tokens = 0

    def opening(self, now: float, *, queued: bool) -> None:
        """The history is about to be made resident."""
        self.ahead = None
        self._enter("queued" if queued else "waiting", now)

    def sending(self, now: float, *, queued: bool, is_first: bool) -> None:
        """A message was sent; a new turn begins."""
        self._enter("queued" if queued else "waiting", now)
        self.sent_at, self.first_piece_at, self.last_piece_at, self.n_output = now, None, None, 0
        self.stats = TurnStats()
        self._n_runs = self._restoring_at = self._prefilling_at = self._prepared_at = None
        self.ahead = None
        # What the meters say of the turn before would be taken for this one's.
        self.reuse = self.kv_note = None
        self._in_turn, self.is_first = True, is_first
        self.tpots.clear()

    def remembered(self, stats: TurnStats, n_tokens: int) -> None:
        """Show a stored conversation's last turn until a new one begins."""
        self.stats, self.context_tokens = stats, n_tokens or _n_told(stats)

    def apply(self, event: Event, now: float) -> None:
        """Take one event of the engine."""
        match event:
            case Progress():
                if event.phase != self.activity:
                    self._enter(event.phase, now)
                if event.phase == "restore" and self._restoring_at is None:
                    self._restoring_at = now
                elif event.phase == "prefill" and self._prefilling_at is None:
                    self._prefilling_at = now
                self.done, self.total = event.done, event.total
                self._left = None if event.left_s is None else (event.left_s, now)
            case Prepared():
                self._prepared(event, now)
            case Piece():
                self._piece(event, now)
            case Finished():
                self._finished(event, now)
            case Stored():
                self.stats = replace(self.stats, kv_bytes_written=event.kv_bytes_written)
                self.kv_note = event.note
            case Failed():
                self._enter("failed", now)
            case Loaded():
                pass

    def settle(self, now: float) -> None:
        """Nothing is running any more; a failure stays visible."""
        self._in_turn = False
        if self.activity != "failed":
            self._enter("idle", now)

    def ttft(self, now: float) -> tuple[float, bool] | None:
        """Seconds to the first text and whether it has come; while waiting, the time so far."""
        if self.stats.ttft_s is not None:
            return self.stats.ttft_s, True
        if self.sent_at is None:
            return None
        if self.first_piece_at is not None:
            return self.first_piece_at - self.sent_at, True
        return (now - self.sent_at, False) if self.activity not in ("idle", "failed") else None

    def tpot(self) -> float | None:
        """Seconds per token of this turn, the first one not counted."""
        if self.stats.tpot_s is not None:
            return self.stats.tpot_s
        if self.first_piece_at is None or self.last_piece_at is None:
            return None
        return tpot(self.first_piece_at, self.last_piece_at, self.n_output)

    def so_far(self, now: float) -> TurnStats:
        """The stats of this turn as far as they are known, the part of its time that is running included."""
        ttft = self.ttft(now)
        if self.stats.ttft_s is not None or ttft is None:
            return self.stats
        restored_at = self._prefilling_at or now
        restore_s = restored_at - self._restoring_at if self._restoring_at is not None else 0.0
        prefill_s = now - self._prefilling_at if self._prefilling_at is not None else 0.0
        known = replace(
            self.stats, ttft_s=ttft[0], tpot_s=self.tpot(), restore_s=restore_s, prefill_s=prefill_s, first_decode_s=0.0
        )
        if self.reuse is None or self._prepared_at is None:
            return known
        first_at = self.first_piece_at if self.first_piece_at is not None else now
        return replace(
            known,
            prompt_tokens=self.reuse.total,
            resident_tokens=self.reuse.resident,
            restored_tokens=self.reuse.restored,
            prefilled_tokens=self.reuse.prefilled,
            restore_s=self.reuse.restore_s,
            prefill_s=self.reuse.prefill_s,
            miss_reason=self.reuse.miss_reason,
            first_decode_s=first_at - self._prepared_at,
            output_tokens=self.n_output,
        )

    def eta(self, now: float) -> float | None:
        """Seconds left in this phase, as the engine expects or by the rate so far; None while that is not known."""
        if self._left is not None:
            left_s, said_at = self._left
            return max(0.0, left_s - (now - said_at))
        took = now - self.phase_since
        if not 0 < self.done < self.total or took < 0.05:
            return None
        return took / self.done * (self.total - self.done)

    def sample(self, now: float, *, length_s: float = 2 * SAMPLE_S) -> None:
        """Close the running sample if no token did so: the engine is slow or hangs."""
        length = now - self._sample_start
        if self.activity == "decode" and self.first_piece_at is not None and length >= length_s:
            self.tpots.append(length / max(1, self._sample_tokens))
            self._sample_start, self._sample_tokens = now, 0

    def _enter(self, activity: Activity, now: float) -> None:
        self.activity, self.phase_since, self.done, self.total = activity, now, 0, 0
        self._left = None

    def _prepared(self, event: Prepared, now: float) -> None:
        if not event.is_counted:  # the end of the turn tells, if anything does
            self._n_repeated = 0
            self._enter("decode" if self._in_turn else "idle", now)
            self._sample_start, self._sample_tokens = now, 0
            return
        n_runs = sum(len(run.ids) for run in event.runs)
        self._n_runs = n_runs if self._in_turn else None
        reuse = Reuse(
            event.resident,
            event.restored,
            event.prefilled,
            event.miss_reason,
            event.restore_s,
            event.prefill_s,
            event.kv_bytes,
        )
        self.reuse = reuse
        self.context_tokens = reuse.total
        # The beginning of an answer that goes on, or of reasoning that the template opens: in the prompt already.
        self._n_repeated = reuse.total - n_runs - len(event.opening) if self._in_turn else 0
        if reuse.restored or (reuse.total and not self._in_turn):
            self.came_back = reuse
        self._prepared_at = now if self._in_turn else None
        self._enter("decode" if self._in_turn else "idle", now)
        self._sample_start, self._sample_tokens = now, 0

    def _piece(self, event: Piece, now: float) -> None:
        if self.activity != "decode":
            self._enter("decode", now)
        n_repeated = min(self._n_repeated, len(event.token_ids))
        self._n_repeated -= n_repeated
        n_tokens = len(event.token_ids) - n_repeated
        if n_repeated and not n_tokens:
            return
        self.last_piece_at = now
        self.n_output += n_tokens
        self.context_tokens += n_tokens
        if event.text and self.first_piece_at is None:
            self.first_piece_at = self._sample_start = now  # how long these tokens took is part of the TTFT
            self._sample_tokens = 0
        else:
            self._sample_tokens += n_tokens
        self.sample(now, length_s=SAMPLE_S)

    def _finished(self, event: Finished, now: float) -> None:
        written = event.stats.kv_bytes_written
        self.stats = replace(event.stats, kv_bytes_written=written or self.stats.kv_bytes_written)
        self._in_turn = False
        self.finished_at = now
        if not event.run.ids:
            self.context_tokens = _n_told(event.stats) or self.context_tokens
        elif self._n_runs is not None:
            self.context_tokens = self._n_runs + len(event.run.ids)
        self._enter("idle", now)


def _n_told(stats: TurnStats) -> int:
    """Tokens of a conversation by the counts of its last turn, where token ids are not known."""
    return (stats.prompt_tokens or 0) + (stats.output_tokens or 0)


@dataclass(frozen=True, slots=True)
class Request:
    """What a turn does: send the draft, answer a question once more, or let its answer go on.

    `message_id` is the question that the draft takes the place of, or the answer that is given once more.
    """

    kind: Literal["send", "regenerate", "continue"] = "send"
    message_id: int | None = None


SEND = Request()


class LiveAnswer:
    """An answer that is being written, whether or not its conversation is on the screen.

    `n_before` counts the messages that stand before the question, the system prompt not counted.
    """

    def __init__(
        self, session_id: str, question: str, n_before: int, *, is_queued: bool = False, request: Request = SEND
    ) -> None:
        self.session_id = session_id
        self.question = question
        self.n_before = n_before
        self.is_queued = is_queued
        self.request = request
        self.attachments: tuple[Attachment, ...] = ()
        """What of the question is attached."""
        self.verdict: Verdict | None = None
        """What the judge of the task policy said of the question."""
        self.note = ""
        """What is to be said below it while it grows."""
        self.has_begun = False
        self.stop_asked = False
        self.has_text = False
        self._splitter = Splitter()
        self._texts: dict[Kind, list[str]] = {"reasoning": [], "answer": []}
        self._n_tokens = 0
        self._began_at = 0.0
        self._took_s: float | None = None
        self._reasoning_tokens: int | None = None
        self._has_thought = False
        self._n_repeated = 0  # characters still to come that are here already

    def begin_with(self, text: str, reasoning_tokens: int | None) -> None:
        """The answer goes on from this text: it is here from now on, and the pieces that repeat it add nothing."""
        self._add(text)
        self._n_repeated = len(text)
        self._has_thought = self._splitter.is_open or bool(self._texts["reasoning"])
        self._reasoning_tokens = reasoning_tokens
        self.has_text = bool(text)

    def take(self, piece: Piece, now: float) -> None:
        """Add a piece that came at `now`, a monotonic time in seconds."""
        if not self._n_tokens:
            self._began_at = now
        self._n_tokens += len(piece.token_ids)
        was_open = self._splitter.is_open
        n_repeated = min(self._n_repeated, len(piece.text))
        self._n_repeated -= n_repeated
        self._add(piece.text[n_repeated:])
        self.has_text = self.has_text or bool(piece.text)
        if was_open or self._splitter.is_open:
            self._has_thought = True
            self._reasoning_tokens, self._took_s = self._n_tokens, now - self._began_at

    def _add(self, text: str) -> None:
        for kind, part in self._splitter.feed(text):
            self._texts[kind].append(part)

    @property
    def answer(self) -> str:
        """The text so far, without reasoning."""
        return self._joined("answer")

    @property
    def thought(self) -> Thought | None:
        """The reasoning so far; None as long as there is none."""
        if not self._has_thought:
            return None
        return Thought(self._joined("reasoning"), self._reasoning_tokens, self._took_s, is_open=self._splitter.is_open)

    def _joined(self, kind: Kind) -> str:
        pieces = self._texts[kind]
        if len(pieces) > 1:
            pieces[:] = ["".join(pieces)]
        return pieces[0] if pieces else ""


@dataclass(frozen=True, slots=True)
class Notice:
    """One sentence of ours under a conversation: on a failure, or on what was done."""

    sentence: str
    is_failure: bool = True


@dataclass(slots=True)
class ModelState:
    """The model: loading, loaded, or failed with one sentence."""

    info: ModelInfo | None = None
    failure: str | None = None
    progress: Readings = field(default_factory=Readings)
