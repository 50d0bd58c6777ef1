"""The contract every engine keeps: what it is asked (`Prompt`, `Sampling`) and what it answers (events)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

Role = Literal["system", "user", "assistant"]
Phase = Literal["load", "wait", "tune", "check", "restore", "prefill", "decode"]
MemoryKind = Literal["dense", "sliding window", "hybrid", "recurrent"]
FinishReason = Literal["end", "stop", "length", "context", "cancelled"]
Reasoning = Literal["keep", "strip"]
GAVE_UP = "gave_up"
"""The kind of a failure that also ends the engine's process, after it was told."""


@dataclass(frozen=True, slots=True)
class TokenRun:
    """The exact tokens of one message in the KV cache, the template's glue included.

    `ids[:body_start]` is the opening glue, `ids[body_start:body_end]` the message's own text,
    `ids[body_end:]` the closing glue. The concatenation over messages is the KV prefix.
    """

    ids: tuple[int, ...]
    body_start: int
    body_end: int

    @property
    def body(self) -> tuple[int, ...]:
        """The tokens of the message's own text."""
        return self.ids[self.body_start : self.body_end]


@dataclass(frozen=True, slots=True)
class Entry:
    """One message of a prompt; `run` is None until an engine has tokenized it for the first time."""

    role: Role
    text: str
    run: TokenRun | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation up to and including the newest message, oldest first.

    An answer at its end is not whole yet: `generate` goes on with it, and its pieces and its final text begin with what
    is there. `store_kv` False leaves no KV on disk (ephemeral runs, batch rows); stored KV may still be read.
    `reasoning` says what later prompts contain of the answer: all of it, or the answer without the reasoning it begins
    with. It streams, and is told in `Finished.text`, all the same. Without `may_reason` the block is empty, where the
    model's template has one. `conversation` names whose prompt it is, for engines that keep state by name; '' for none.
    """

    entries: tuple[Entry, ...]
    store_kv: bool = True
    reasoning: Reasoning = "keep"
    may_reason: bool = True
    conversation: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. Temperature 0 is greedy; `max_tokens` None means until the context is full.

    `top_k` 0, `top_p` 1, `min_p` 0 and `repeat_penalty` 1 each switch their step off;
    `seed` None draws one, which the stats then report. `grammar` is GBNF text that the answer follows from its first
    character to its last, see `models/grammar.py` for its limits: the answer ends when the grammar is complete.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    grammar: str | None = None


@dataclass(frozen=True, slots=True)
class Prices:
    """What a service takes for a million tokens, in `currency`; `cached` is the price of input it had in its cache."""

    input: float
    output: float
    cached: float
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class Server:
    """The server that a model runs at: its profile's name, its host and port, how long it keeps a prefix (s)."""

    name: str
    host: str
    kind: str
    cache_lifetime_s: float | None = None
    prices: Prices | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known about a loaded model and the settings it runs with.

    `memory_kind` is what its state consists of. `kv_bytes_per_token` is what one more token adds (bytes),
    `kv_state_bytes` what the state at a restore point takes beside it (0 for a dense cache); `kv_note` says why KV is
    not kept on disk, if so, `notes` how the chat template is used. `weights` is the hash of the model's file (hex), its
    name by content, `file_bytes` the size of all its files. `reasoning` names how the template marks reasoning, as
    `models/reasoning.py` does; None: it knows of none. `sampling` is what the model's file recommends, and the usual
    values where it recommends nothing. `active_bytes` of the weights are read for each decoded token, and
    `read_bytes_per_s` is how fast this machine's memory can be read by that many threads; None where that is unknown.
    `n_parallel` requests are served at once; more of them wait. `server` is where it runs if not here: then `path` is
    its place (`models/remote_profile.py`), `weights` stands for its name there, and what only the server knows is 0 or
    empty.
    """

    name: str
    path: str
    architecture: str
    n_params: int
    weights_bytes: int
    n_ctx: int
    n_ctx_train: int
    kv_bytes_per_token: int
    flash_attention: bool
    threads: int
    gpu_layers: int
    fingerprint: str
    supports_system: bool
    kv_note: str | None
    load_s: float
    memory_kind: MemoryKind = "dense"
    kv_state_bytes: int = 0
    kv_type: str = "f16"
    notes: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    weights: str = ""
    file_bytes: int = 0
    reasoning: str | None = None
    active_bytes: int | None = None
    read_bytes_per_s: float | None = None
    n_parallel: int = 1
    server: Server | None = None


@dataclass(frozen=True, slots=True)
class TurnStats:
    """What one turn cost; None is unknown. Seconds, bytes, tokens.

    `prompt_tokens` = `resident_tokens` + `restored_tokens` + `prefilled_tokens`, counted from what the engine
    really evaluated. `ttft_s` is measured in the client from send to the first non-empty piece, `tpot_s` from the
    engine's timestamps: (last token - first token) / (tokens - 1). Where stored KV could be used, `restore_decision`
    is what the two estimates led to: 'restore', or 'prefill' because that is expected to be faster. `reasoning_tokens`
    are those of the answer's reasoning, marks included, None when it has none; `stripped_tokens` is how many fewer
    tokens later prompts hold of it, None where nothing was stripped.

    `ttft_s` = `queue_s` + `restore_s` + `prefill_s` + `first_decode_s` + `transport_s`: the fourth from the end of
    prefill to the first text, the last from there to who asked (None, and part of `queue_s`, where the clocks of the
    two cannot be compared). Within `restore_s`, `restore_read_s` and `restore_verify_s` are spent by threads that work
    ahead of `restore_copy_s`, the loading into the context: they overlap, and may add up to more. `sampling_s` is what
    choosing the answer's tokens took, in sum. `speculated_tokens` were evaluated before they were chosen, and
    `accepted_tokens` of them were chosen then; None where nothing may be guessed. `waited_s` (for other requests) and
    `model_load_s` (None: the model was there) are parts of `queue_s`.
    `tpot_floor_s` is what `tpot_s` would be if reading memory were all that decoding takes (`stats.tpot_floor`), and
    `cpu_share` how much of the processor time it asked for it got (0 to 1; less than 1 went to other programs).
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    prompt_tokens: int | None = None
    resident_tokens: int | None = None
    restored_tokens: int | None = None
    prefilled_tokens: int | None = None
    output_tokens: int | None = None
    restore_s: float | None = None
    prefill_s: float | None = None
    kv_bytes: int | None = None
    kv_bytes_per_token: int | None = None
    kv_bytes_written: int | None = None
    miss_reason: str | None = None
    restore_decision: Literal["restore", "prefill"] | None = None
    restore_estimate_s: float | None = None
    prefill_estimate_s: float | None = None
    seed: int | None = None
    reasoning_tokens: int | None = None
    stripped_tokens: int | None = None
    waited_s: float | None = None
    model_load_s: float | None = None
    first_decode_s: float | None = None
    tpot_floor_s: float | None = None
    cpu_share: float | None = None
    restore_read_s: float | None = None
    restore_verify_s: float | None = None
    restore_copy_s: float | None = None
    sampling_s: float | None = None
    transport_s: float | None = None
    speculated_tokens: int | None = None
    accepted_tokens: int | None = None

    @property
    def queue_s(self) -> float | None:
        """Seconds of `ttft_s` before the engine restored or evaluated anything; None where a part is not known."""
        if self.ttft_s is None or self.restore_s is None or self.prefill_s is None or self.first_decode_s is None:
            return None
        known_s = self.restore_s + self.prefill_s + self.first_decode_s + (self.transport_s or 0.0)
        return max(0.0, self.ttft_s - known_s)

    @property
    def memory_limit_share(self) -> float | None:
        """At what share of this machine's memory limit decoding ran, 0 to 1; see `stats.memory_share`."""
        from models.stats import memory_share  # which imports this module

        return memory_share(self.tpot_s, self.tpot_floor_s)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model is ready."""

    info: ModelInfo


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` in the named phase (tokens for restore and prefill, permille for load, seconds for wait).

    `total` is 0 where it is not known. `left_s` is how long the rest of the phase is expected to take, before anything
    of it is done by what was measured of earlier ones; None where nothing was. It is no part of what happened.
    """

    phase: Phase
    done: int
    total: int
    left_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The prompt is resident. `runs` are the token runs of all entries, in their order.

    `opening` and `closing` are the glue that will stand around the answer (empty when nothing is generated). Reasoning
    that the generation prompt begins is no part of `opening`: it is evaluated now, and comes with the first `Piece`.
    `kv_bytes` is what the sequence occupies now, measured. `lost_characters` of the messages tokenized for this request
    cannot be spelt with the model's vocabulary, and are missing from their runs. A server's token ids are not known:
    `runs` is empty then, and where it does not tell before the answer what it had of the prompt, the counts are 0 and
    `is_counted` is False.
    """

    resident: int
    restored: int
    prefilled: int
    miss_reason: str | None
    restore_s: float
    prefill_s: float
    kv_bytes: int
    runs: tuple[TokenRun, ...]
    opening: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()
    lost_characters: int = 0
    is_counted: bool = True


@dataclass(frozen=True, slots=True)
class Piece:
    """Newly decoded text and the token ids it is made of; a server tells none.

    After each piece the text so far is that of the ids so far, so that an answer that breaks off agrees with itself.
    Where the generation prompt begins reasoning, the first piece begins with its mark: the text of an answer says by
    itself what in it is reasoning (`models/reasoning.py`). Marks of the model's own family are text also where they are
    control tokens. `told_at` of the first text is when the engine told it, by the monotonic clock that the processes of
    one machine share (s); None for all others, and where there is no such clock.
    """

    text: str
    token_ids: tuple[int, ...]
    told_at: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete: `text` equals all pieces joined, `run` is the message as later prompts contain it.

    `text` is the text of `run.body`: its bytes as UTF-8, U+FFFD for those that are none. A character that is not whole
    at the end is in the ids only.

    With `Prompt.reasoning` "strip", if the answer begins with reasoning and a prompt gets shorter for it, `run` is the
    answer without: what the template opens earlier answers with, the ids that were decoded behind the block and the
    blank lines after it (only what shares a token with those is spelt anew), and the closing. The text of `run.body` is
    then `answer_of(text)`, empty for an answer that ended inside its reasoning. This run is evaluated in the place of
    what was decoded before `Stored`, and gives way to a next prompt like all that is done then; with `store_kv` False
    that is left to the next prompt.
    """

    reason: FinishReason
    text: str
    run: TokenRun
    stats: TurnStats


@dataclass(frozen=True, slots=True)
class Stored:
    """The KV of what is resident now is on disk. `tip` is the newest segment's key, hex; None if nothing is kept.

    `note` says why not all of it is, when it should be, or what a server would not do: one line for the user.
    """

    kv_bytes_written: int
    fingerprint: str
    tip: str | None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ended without a result; `message` is one sentence for the user."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Ahead:
    """How much of a draft is resident: `n_ready` of the `n_settled` tokens of its text that typing on does not change.

    Of the opening glue and the last word nothing is counted.
    """

    n_ready: int
    n_settled: int

    @property
    def is_whole(self) -> bool:
        """True if there is nothing left to read ahead."""
        return self.n_ready >= self.n_settled


Event = Loaded | Progress | Prepared | Piece | Finished | Stored | Failed

Emit = Callable[[Event], None]
"""Where the events of a request go."""


class Engine(Protocol):
    """One model behind one queue. Requests run one after another; `cancel` ends the one that is running.

    Where `ModelInfo.n_parallel` is more than 1, so many run at once. One whose events are closed early is cancelled.
    `prepare` and `generate` load a model that is not loaded yet, with the events of `load` first.
    """

    @property
    def info(self) -> ModelInfo | None:
        """The loaded model, None before `Loaded`."""
        ...

    def load(self) -> AsyncIterator[Event]:
        """Load the model: `Progress`*, then `Loaded` or `Failed`. Loading twice answers `Loaded` at once."""
        ...

    def prepare(self, prompt: Prompt) -> AsyncIterator[Event]:
        """Make a history resident before anything is asked: `Progress`*, `Prepared`, `Stored`; or `Failed`.

        What had to be prefilled is kept on disk, so that the next time it is restored.
        """
        ...

    def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Event]:
        """Answer a prompt: `Progress`*, `Prepared`, `Piece`*, `Finished`, `Stored`; or `Failed` at any point.

        `Stored` comes when the message is closed and its KV written, behind the user's back.
        """
        ...

    def anticipate(self, prompt: Prompt) -> AsyncIterator[Ahead]:
        """Read a prompt ahead whose last message, the user's, is still being written: `Ahead`*, the last one tells.

        Every other request, and a newer draft, ends it at once: what was read by then stays resident, and counts as
        that for whoever needs it. Nothing is written to disk. Nothing happens, without a word, before a model is
        loaded, for what does not fit the context, and at a server.
        """
        ...

    async def cancel(self) -> None:
        """Stop the running request within 200 ms; what was decoded so far arrives as `Finished` ('cancelled').

        A `prepare`, and a request that still waits for the model, end in `Failed` ('cancelled') instead.
        """
        ...

    async def count(self, text: str) -> int:
        """Tokens of a message body, without glue."""
        ...

    async def close(self) -> None:
        """Finish pending KV writes and end."""
        ...
