"""A scripted engine that ships: tests, demos and screenshots need no model.

Its tokenizer is one token per UTF-8 byte (ids 0-255) and its glue five ids above them, so every count can be
checked by hand. It counts resident, restored and prefilled tokens honestly: over the tokens of its one
context and over a `FakeDisk` that several engines may share, as several runs of the program share the real
cache.
"""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

from models.answers import n_reasoning_tokens, stripped
from models.engine import (
    Ahead,
    Entry,
    Event,
    Failed,
    Finished,
    FinishReason,
    Loaded,
    ModelInfo,
    Piece,
    Prepared,
    Progress,
    Prompt,
    Role,
    Sampling,
    Stored,
    TokenRun,
    TurnStats,
)
from models.reasoning import answer_of
from models.stats import tpot, tpot_floor
from models.typeahead import draft_tokens

BEGIN = 256
"""Opens the first message of a conversation."""

ROLE_TOKENS: dict[Role, int] = {"system": 257, "user": 258, "assistant": 259}
"""Each opens a message of its role."""

END = 260
"""Closes every message."""

KV_BYTES_PER_TOKEN = 1024
FINGERPRINT = hashlib.sha256(b"fake engine, tokenizer 1").hexdigest()
PREFILL_CHUNK = 512
_TURN_TOKENS = 16
"""Tokens between two turns of the event loop where no pace is kept: those of a real engine come several at once too."""
_READ_BYTES_PER_S = 1e12  # so fast that KV counts for nothing


_ASCII = tuple(Piece(chr(byte), (byte,)) for byte in range(128))
"""The pieces of the tokens that are characters by themselves: most of an answer, and equal wherever they stand."""


def tokenize(text: str) -> tuple[int, ...]:
    """Return one token per UTF-8 byte."""
    return tuple(text.encode("utf-8", "replace"))


def _piece(token: int) -> bytes:
    """Return the bytes of a token; glue has none."""
    return bytes([token]) if token < BEGIN else b""


def echo(prompt: str) -> str:
    """Return a short Markdown answer that mentions the prompt: the default reply."""
    first_line = next(iter(prompt.strip().splitlines()), "")
    return (
        f"You said: **{first_line[:60]}**\n\n"
        f"- {len(prompt)} characters in {len(prompt.split())} words\n"
        f"- answered by the fake engine, which always says the same\n"
    )


class FakeDisk:
    """The KV cache that outlives an engine: token sequences by key, in memory or one file each in a folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._sequences: dict[str, tuple[int, ...]] = {}
        if folder and folder.is_dir():
            for path in folder.glob("*.json"):
                self._sequences[path.stem] = tuple(json.loads(path.read_text(encoding="ascii")))

    def put(self, ids: tuple[int, ...]) -> tuple[str, int]:
        """Keep a sequence; return its key and how many of its tokens were not there before."""
        key = hashlib.sha256(json.dumps(ids).encode()).hexdigest()
        new = len(ids) - self.match(ids)
        self._sequences[key] = ids
        if self._folder:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = self._folder / f"{key}.tmp"
            temporary.touch(mode=0o600)
            temporary.write_text(json.dumps(ids), encoding="ascii")
            temporary.replace(self._folder / f"{key}.json")
        return key, new

    def match(self, ids: tuple[int, ...]) -> int:
        """Return how many leading tokens of `ids` some kept sequence begins with."""
        return max((_common(sequence, ids) for sequence in self._sequences.values()), default=0)

    def forget(self, keys: list[str]) -> None:
        """Delete sequences; unknown keys are ignored."""
        for key in keys:
            self._sequences.pop(key, None)
            if self._folder:
                (self._folder / f"{key}.json").unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(self._sequences)


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    n = min(len(one), len(other))
    return n if one[:n] == other[:n] else next(i for i in range(n) if one[i] != other[i])


@dataclass(frozen=True, slots=True)
class _Plan:
    """The scripted output: its tokens, the text they stand for, and why it ends there."""

    ids: tuple[int, ...]
    reason: FinishReason


class FakeEngine:
    """Answers with `reply(last user text)`, token by token. A reply may begin with reasoning, as a real answer may.

    `tokens_per_s` and `prefill_tokens_per_s` pace it through `sleep` (None: as fast as possible). The script,
    changeable at any time: before output token number `fail_at` it answers `Failed`, before `crash_at` it
    answers `Failed("died")` and loses its context, before `hang_at` it waits until it is cancelled.
    `floor_s` is the least a token can take, as its memory is said to be.
    `load_error` makes `load` fail with this sentence. With a `kv_note` it keeps nothing on its disk, and says so.
    Engines with different names are different models.
    """

    def __init__(
        self,
        reply: Callable[[str], str] | None = None,
        *,
        name: str = "fake",
        tokens_per_s: float | None = None,
        prefill_tokens_per_s: float | None = None,
        floor_s: float | None = None,
        n_ctx: int = 32_768,
        disk: FakeDisk | None = None,
        kv_note: str | None = None,
        fail_at: int | None = None,
        crash_at: int | None = None,
        hang_at: int | None = None,
        load_error: str | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fail_at = fail_at
        self.crash_at = crash_at
        self.hang_at = hang_at
        self.load_error = load_error
        self.prompts: list[Prompt] = []
        """Every prompt it was given, oldest first: what a test asserts on."""
        self.samplings: list[Sampling] = []
        """The same for sampling."""
        self.drafts: list[Prompt] = []
        """Every draft it was given to read ahead."""
        self._reply = reply or echo
        self._token_s = 1 / tokens_per_s if tokens_per_s else 0.0
        self._prefill_token_s = 1 / prefill_tokens_per_s if prefill_tokens_per_s else 0.0
        self._floor_s = floor_s
        self._name = name
        self._n_ctx = n_ctx
        self._disk = disk if disk is not None else FakeDisk()
        self._kv_note = kv_note
        self.store_gate: asyncio.Event | None = None
        """The end of a request, `Stored`, waits for this."""
        self._sleep = sleep
        self._clock = clock
        self._info: ModelInfo | None = None
        self._context: tuple[int, ...] = ()
        self._queue = asyncio.Lock()
        self._cancelled = asyncio.Event()
        self._n_cancels = 0
        self._is_closed = False

    @property
    def info(self) -> ModelInfo | None:
        """The made-up model, None before `Loaded`."""
        return self._info

    async def load(self) -> AsyncIterator[Event]:
        """Load nothing, with progress."""
        async with self._queue:
            if self._info is None:
                if self.load_error is not None:
                    yield Failed("model", self.load_error)
                    return
                for done in (0, 500, 1000):
                    if self._is_closed:
                        yield Failed("died", "The engine is closed.")
                        return
                    yield Progress("load", done, 1000)
                    await self._sleep(0)
                self._info = _info(self._name, self._n_ctx, self._kv_note, self._floor_s)
            yield Loaded(self._info)

    async def prepare(self, prompt: Prompt) -> AsyncIterator[Event]:
        """Make a history resident."""
        stored: Stored | None = None
        async with aclosing(self._resident(prompt, is_asked=False)) as events:
            async for event in events:
                stored = self._stored(prompt) if isinstance(event, Prepared) else stored
                yield event
        async for event in self._written(stored):
            yield event

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Event]:
        """Answer the last user message as scripted."""
        stored: Stored | None = None
        self.samplings.append(sampling)
        last = prompt.entries[-1]
        begun = None
        if last.role == "assistant":
            prompt, begun = replace(prompt, entries=prompt.entries[:-1]), last.run or _run(last, is_first=False)
        async with aclosing(self._resident(prompt, is_asked=True, begun=begun)) as events:
            async for event in events:
                yield event
                if isinstance(event, Prepared):
                    async for later in self._decode(prompt, sampling, event, begun.body if begun else ()):
                        stored = self._stored(prompt) if isinstance(later, Finished) else stored
                        yield later
        async for event in self._written(stored):
            yield event

    async def anticipate(self, prompt: Prompt) -> AsyncIterator[Ahead]:
        """Read a draft ahead, chunk by chunk, until a request comes."""
        if self._info is None or self._queue.locked():
            return
        self.drafts.append(prompt)
        asked = len(self.prompts), len(self.drafts)
        draft = draft_tokens(prompt.entries, _runs)
        if draft.n_whole >= self._n_ctx:
            return
        n_resident = _common(self._context, draft.tokens)
        yield draft.ahead(n_resident)
        for done in range(n_resident, len(draft.tokens), PREFILL_CHUNK):
            n = min(PREFILL_CHUNK, len(draft.tokens) - done)
            await self._sleep(n * self._prefill_token_s)
            if self._queue.locked() or asked != (len(self.prompts), len(self.drafts)):
                return
            self._context = draft.tokens[: done + n]
            yield draft.ahead(done + n)

    async def cancel(self) -> None:
        """Stop the running request before its next token, also one that still waits for the model."""
        self._n_cancels += 1
        self._cancelled.set()

    async def count(self, text: str) -> int:
        """Return the number of UTF-8 bytes."""
        return len(tokenize(text))

    async def close(self) -> None:
        """Stop what runs, a load too; the disk stays."""
        self._is_closed = True
        self._cancelled.set()

    async def _resident(
        self, prompt: Prompt, *, is_asked: bool, begun: TokenRun | None = None
    ) -> AsyncGenerator[Event, None]:
        """Load if need be, then prefill; holds the queue until it is closed."""
        if self._info is None:
            n_cancels = self._n_cancels
            async for event in self.load():
                yield event
                if isinstance(event, Failed):
                    return
            if self._n_cancels != n_cancels:
                yield Failed("cancelled", "Stopped.")
                return
        async with self._queue:
            self.prompts.append(prompt)
            self._cancelled.clear()
            async for event in self._prefill(prompt, is_asked=is_asked, begun=begun.body if begun else ()):
                yield event

    async def _prefill(self, prompt: Prompt, *, is_asked: bool, begun: tuple[int, ...]) -> AsyncIterator[Event]:
        started = self._clock()
        runs = _runs(prompt.entries)
        opening = (ROLE_TOKENS["assistant"],) if is_asked else ()
        closing = (END,) if is_asked else ()
        ids = tuple(token for run in runs for token in run.ids) + opening + begun
        if len(ids) + len(closing) + is_asked > self._n_ctx:  # an answer has at least a token
            yield Failed(
                "too_long",
                f"The prompt has {len(ids)} tokens, which is more than the context of {self._n_ctx}.",
            )
            return
        evaluate_last = 1 if is_asked and ids else 0  # logits come only from an evaluated token
        resident = min(_common(self._context, ids), len(ids) - evaluate_last)
        on_disk = min(self._disk.match(ids), len(ids) - evaluate_last)
        reason = None if on_disk > resident or resident else "nothing stored for this conversation"
        start = max(resident, on_disk)
        if start > resident:
            yield Progress("restore", start, start)
        for done in range(start, len(ids), PREFILL_CHUNK):
            yield Progress("prefill", done - start, len(ids) - start)
            chunk = min(PREFILL_CHUNK, len(ids) - done)
            await self._sleep(chunk * self._prefill_token_s)
            if self._cancelled.is_set():
                self._context = ids[:done]
                if is_asked:
                    yield Finished("cancelled", "", TokenRun(opening + closing, 1, 1), TurnStats())
                    yield Stored(0, FINGERPRINT, None)
                else:
                    yield Failed("cancelled", "Stopped.")
                return
        self._context = ids
        yield Prepared(
            resident=resident,
            restored=start - resident,
            prefilled=len(ids) - start,
            miss_reason=reason,
            restore_s=0.0,
            prefill_s=self._clock() - started,
            kv_bytes=len(ids) * KV_BYTES_PER_TOKEN,
            runs=runs,
            opening=opening,
            closing=closing,
        )

    async def _decode(
        self, prompt: Prompt, sampling: Sampling, prepared: Prepared, begun: tuple[int, ...]
    ) -> AsyncIterator[Event]:
        prefilled_at, text_at = self._clock(), None
        decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        ids = list(begun)
        text = [decoder.decode(bytes(begun))]
        plan = self._plan(prompt, sampling, text[0])
        if begun:
            text_at = prefilled_at if text[0] else None
            yield Piece(text[0], begun)
        reason = plan.reason
        first_at = last_at = self._clock()
        for n, token in enumerate((*plan.ids, None)):
            if self._token_s or n % _TURN_TOKENS == 0:
                await self._sleep(self._token_s)
            if self.hang_at == n:
                await self._cancelled.wait()
            if self._cancelled.is_set():
                reason = "cancelled"
                break
            if n in (self.fail_at, self.crash_at) and (failed := self._scripted_failure(n)):
                yield failed
                return
            if token is None:
                break
            last_at = self._clock()
            first_at = last_at if n == 0 else first_at
            piece = _ASCII[token] if token < len(_ASCII) else Piece(decoder.decode(bytes([token])), (token,))
            ids.append(token)
            text.append(piece.text)
            if text_at is None and piece.text:
                text_at = last_at
            yield piece
        run = TokenRun((*prepared.opening, *ids, *prepared.closing), 1, 1 + len(ids))
        said = "".join(text)
        shorter = stripped(run, said, prepared.opening, _piece, tokenize) if prompt.reasoning == "strip" else None
        kept = shorter or run
        self._context = self._context[: len(self._context) - 1 - len(begun)] + kept.ids
        n_output = len(ids) - len(begun)
        tpot_s = tpot(first_at, last_at, n_output)
        stats = replace(
            self._stats(prepared, n_output, tpot_s, sampling),
            first_decode_s=None if text_at is None else text_at - prefilled_at,
            reasoning_tokens=n_reasoning_tokens(ids, said, _piece),
            stripped_tokens=None if shorter is None else len(run.ids) - len(shorter.ids),
        )
        yield Finished(reason, said, kept, stats)

    async def _written(self, stored: Stored | None) -> AsyncIterator[Event]:
        """As with a real engine, the next request does not wait for the disk."""
        if stored:
            if self.store_gate:
                await self.store_gate.wait()
            yield stored

    def _stored(self, prompt: Prompt) -> Stored:
        if self._kv_note or not (prompt.store_kv and self._context):
            return Stored(0, FINGERPRINT, None)
        tip, new = self._disk.put(self._context)
        return Stored(new * KV_BYTES_PER_TOKEN, FINGERPRINT, tip)

    def _scripted_failure(self, n: int) -> Failed | None:
        if self.fail_at == n:
            return Failed("engine", "The fake engine failed, as its script says.")
        if self.crash_at == n:
            self._context = ()
            return Failed("died", "The fake engine died, as its script says.")
        return None

    def _plan(self, prompt: Prompt, sampling: Sampling, begun: str) -> _Plan:
        """What is said behind what was said already."""
        text = self._reply(prompt.entries[-1].text).removeprefix(begun)
        text = text if prompt.may_reason else answer_of(text)
        reason: FinishReason = "end"
        stops = [at for stop in sampling.stop if stop and (at := text.find(stop)) >= 0]
        if stops:
            text, reason = text[: min(stops)], "stop"
        ids = tokenize(text)
        room = self._n_ctx - len(self._context) - 1
        if sampling.max_tokens is not None and len(ids) > sampling.max_tokens:
            ids, reason = ids[: sampling.max_tokens], "length"
        if len(ids) > room:
            ids, reason = ids[:room], "context"
        return _Plan(ids, reason)

    def _stats(self, prepared: Prepared, n: int, tpot_s: float | None, sampling: Sampling) -> TurnStats:
        n_prompt = prepared.resident + prepared.restored + prepared.prefilled
        return TurnStats(
            tpot_s=tpot_s,
            tpot_floor_s=tpot_floor(self._info, n_prompt + n / 2) if self._info else None,
            prompt_tokens=n_prompt,
            resident_tokens=prepared.resident,
            restored_tokens=prepared.restored,
            prefilled_tokens=prepared.prefilled,
            output_tokens=n,
            restore_s=prepared.restore_s,
            prefill_s=prepared.prefill_s,
            kv_bytes=len(self._context) * KV_BYTES_PER_TOKEN,
            kv_bytes_per_token=KV_BYTES_PER_TOKEN,
            miss_reason=prepared.miss_reason,
            seed=sampling.seed if sampling.seed is not None else 0,
        )


def _runs(entries: Sequence[Entry]) -> tuple[TokenRun, ...]:
    return tuple(_run_at(entry, is_first=i == 0) for i, entry in enumerate(entries))


def _run_at(entry: Entry, *, is_first: bool) -> TokenRun:
    """The run an entry has; one that was made for another place begins as one does here."""
    run = entry.run or _run(entry, is_first=is_first)
    if (run.ids[:1] == (BEGIN,)) == is_first:
        return run
    moved = 1 if is_first else -1
    ids = (BEGIN, *run.ids) if is_first else run.ids[1:]
    return TokenRun(ids, run.body_start + moved, run.body_end + moved)


def _run(entry: Entry, *, is_first: bool) -> TokenRun:
    opening = ((BEGIN,) if is_first else ()) + (ROLE_TOKENS[entry.role],)
    body = tokenize(entry.text)
    return TokenRun((*opening, *body, END), len(opening), len(opening) + len(body))


def weights_of(name: str) -> str:
    """Return the made-up hash of the weights of a fake model."""
    return hashlib.sha256(b"fake weights " + name.encode()).hexdigest()


def _info(name: str, n_ctx: int, kv_note: str | None, floor_s: float | None) -> ModelInfo:
    return ModelInfo(
        name=name,
        path="",
        architecture="fake",
        n_params=0,
        weights_bytes=0,
        n_ctx=n_ctx,
        n_ctx_train=n_ctx,
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        flash_attention=False,
        threads=1,
        gpu_layers=0,
        fingerprint=FINGERPRINT,
        supports_system=True,
        kv_note=kv_note,
        load_s=0.0,
        weights=weights_of(name),
        reasoning="<think>",
        active_bytes=None if floor_s is None else round(floor_s * _READ_BYTES_PER_S),
        read_bytes_per_s=None if floor_s is None else _READ_BYTES_PER_S,
    )
