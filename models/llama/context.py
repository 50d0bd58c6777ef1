"""One KV cache: evaluate, cut, and its rows as bytes."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from models import kvrows
from models.errors import EngineError, ModelError
from models.llama.model import KvType, MemoryKind, Model
from models.llama.native import lib
from models.llama.sampler import Sampler

N_BATCH = 512
N_GUESSED = 32
"""Tokens that `Context.decode_guessed` takes at most."""
ABORTED = 2
"""What llama_decode answers when the abort callback ended it."""
_WARM_UP_TOKENS = 24
_PARTIAL = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
# Attention runs over every cell up to the highest used one, in steps of 256: fewer in front cost nothing.
_PUSHED_BACK_CELLS = 256
_Q8_BLOCK = 32


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """How a context is made: tokens of context, flash attention, threads, type of K and V.

    `threads_batch` evaluate prompts (None: `threads`), `n_ubatch` tokens of them together. `n_branches` sequences can
    branch from the resident prefix (`Branches`).
    """

    n_ctx: int
    flash_attention: bool
    threads: int
    kv_type: KvType = "f16"
    threads_batch: int | None = None
    n_ubatch: int = N_BATCH
    n_branches: int = 0


@dataclass(frozen=True, slots=True)
class _Anchor:
    """The state of a memory that cannot rewind, as it was behind the first `end` tokens of what is resident."""

    end: int
    state: bytearray


class Context:
    """One KV cache with one resident token prefix (sequence 0) and one scratch sequence (1).

    Invariant: `tokens` are exactly the positions [0, len(tokens)) of sequence 0.
    """

    def __init__(self, model: Model, settings: ContextSettings) -> None:
        """Allocate the cache; raises `ModelError` when there is not enough memory or the KV type cannot be had."""
        params = lib.llama_context_default_params()
        params.n_ctx = settings.n_ctx
        params.n_batch, params.n_ubatch = N_BATCH, settings.n_ubatch
        params.n_seq_max = 2 + settings.n_branches
        params.kv_unified = True
        # Rows outside the window are kept, so that a segment cut later still carries its own window.
        params.swa_full = True
        params.flash_attn_type = (
            lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if settings.flash_attention else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        if settings.kv_type == "q8_0":
            _check_q8(model, settings)
            params.type_k = params.type_v = lib.GGML_TYPE_Q8_0
        params.n_threads, params.n_threads_batch = settings.threads, settings.threads_batch or settings.threads
        params.no_perf = True
        handle = lib.llama_init_from_model(model.handle, params)
        if not handle:
            raise ModelError(
                f"There is not enough memory for a context of {settings.n_ctx:,} tokens; choose a smaller --ctx."
            )
        self.settings = settings
        self._threads = settings.threads
        self.tokens: list[int] = []
        self.row_bytes = 0
        """Bytes one more token adds to the state of a sequence; 0 before a whole `warm_up`, and if recurrent."""
        self.state_bytes = 0
        """Bytes of the part that does not grow, hybrid and recurrent; 0 before a whole `warm_up`, and for others."""
        self.cells_end = 0
        """Upper bound of the highest used cell's index + 1: what attention runs over."""
        self.has_branches = False
        """True while other sequences than the prefix and its scratch have tokens."""
        self._model = model
        self._kind = model.memory_kind
        self._handle = handle
        self._memory = lib.llama_get_memory(handle)
        self._n_ctx = int(lib.llama_n_ctx(handle))
        self._needs_state = False
        self._anchor: _Anchor | None = None
        self._empty_state = bytes(self._read(1, _PARTIAL)[kvrows.HEADER_BYTES :]) if self._kind == "hybrid" else b""
        self._cancelled = ctypes.create_string_buffer(2)
        self._can_rewind = self._kind in ("dense", "sliding window")
        self._one = (lib.llama_token * 1)()
        self._one_batch = lib.llama_batch_get_one(self._one, 1)
        self._guessed: lib.llama_batch | None = None
        # A small context takes smaller batches, and aborts the process on a larger one.
        self._n_batch = min(N_BATCH, int(lib.llama_n_batch(handle)))
        self._chunk = (lib.llama_token * N_BATCH)()
        # Polled by native code between graph nodes. A C function costs nothing there, a Python one would take the
        # interpreter lock each time: strlen is true exactly if the first byte of the flag is set.
        libc = (
            ctypes.CDLL(None) if hasattr(ctypes, "pythonapi") and not hasattr(ctypes, "windll") else ctypes.cdll.msvcrt
        )
        self._abort = ctypes.cast(libc.strlen, lib.ggml_abort_callback)
        self._never = lib.ggml_abort_callback()
        self._may_abort(True)
        if model.adapters:
            n = len(model.adapters)
            adapters = (lib.llama_adapter_lora_p_ctypes * n)(*(adapter for adapter, _scale in model.adapters))
            scales = (ctypes.c_float * n)(*(scale for _adapter, scale in model.adapters))
            if lib.llama_set_adapters_lora(handle, adapters, n, scales) != 0:
                self.close()
                raise ModelError("The LoRA adapters cannot be applied to this model.")

    def close(self) -> None:
        """Free the cache."""
        if self._guessed is not None:
            lib.llama_batch_free(self._guessed)
        lib.llama_free(self._handle)

    @property
    def kind(self) -> MemoryKind:
        """What the model's state consists of."""
        return self._kind

    @property
    def n_ctx(self) -> int:
        """Tokens the cache can hold."""
        return self._n_ctx

    @property
    def handle(self) -> object:
        """The native context, for this package."""
        return self._handle

    @property
    def memory(self) -> object:
        """The native memory, for this package."""
        return self._memory

    @property
    def n_batch(self) -> int:
        """Tokens that are evaluated at once at most."""
        return self._n_batch

    @property
    def n_free(self) -> int:
        """Tokens that can still be appended."""
        return self.n_ctx - len(self.tokens)

    @property
    def kv_bytes(self) -> int:
        """Bytes the resident sequence would take in a file: what its KV really uses."""
        return int(lib.llama_state_seq_get_size(self._handle, 0)) if self.tokens else 0

    def use_threads(self, n: int) -> None:
        """Evaluate with `n` threads from now on; with as many as the settings say, prompts get theirs back too."""
        if n != self._threads:
            self._threads = n
            is_usual = n == self.settings.threads
            lib.llama_set_n_threads(self._handle, n, (self.settings.threads_batch or n) if is_usual else n)

    @property
    def threads(self) -> int:
        """How many threads decode now."""
        return self._threads

    # --- cancel (called from the reader thread) ---

    def cancel(self) -> None:
        """Abort the running evaluation within milliseconds; stays set until `clear_cancel`."""
        self._cancelled[0] = b"\x01"

    def clear_cancel(self) -> None:
        """Allow evaluations again."""
        self._cancelled[0] = b"\x00"

    @property
    def is_cancelled(self) -> bool:
        """True between `cancel` and `clear_cancel`."""
        return self._cancelled[0] != b"\x00"

    def _may_abort(self, allowed: bool) -> None:
        lib.llama_set_abort_callback(
            self._handle, self._abort if allowed else self._never, ctypes.cast(self._cancelled, ctypes.c_void_p)
        )

    # --- evaluation ---

    def prefill(
        self, tokens: Sequence[int], progress: Callable[[int], None], *, finishes_batches: bool = False
    ) -> bool:
        """Append tokens in batches of N_BATCH; `progress` receives the tokens done. False if cancelled on the way.

        What was evaluated before a cancel stays resident, if the memory can be rewound to it. With `finishes_batches`
        a batch once begun is not broken off, so that nothing is lost in any memory. Raises `EngineError`.
        """
        if finishes_batches:
            self._may_abort(False)
            try:
                return self.prefill(tokens, progress)
            finally:
                self._may_abort(True)
        done = 0
        while done < len(tokens):
            if self.is_cancelled:
                return False
            n = min(self._n_batch, len(tokens) - done)
            self._chunk[:n] = list(tokens[done : done + n])
            if not self._decode(self._chunk, n):
                return False
            done += n
            progress(done)
        return True

    def decode(self, token: int) -> bool:
        """Append one token; False if cancelled, and then nothing was added.

        A memory that cannot rewind would lose the whole prefix to an aborted step, so there a step once begun is
        finished: it is short.
        """
        if self.is_cancelled:
            return False
        self._one[0] = token
        if self._can_rewind:
            return self._decode(self._one, 1, self._one_batch)
        self._may_abort(False)
        try:
            return self._decode(self._one, 1, self._one_batch)
        finally:
            self._may_abort(True)

    def decode_guessed(self, token: int, guesses: Sequence[int]) -> bool:
        """Append a token and guesses at what follows it, in one batch; `sample` takes the logits behind each.

        What was guessed wrong must be taken back (`take_back`) before anything else is appended. False if cancelled,
        and then nothing was added. Not for a memory that cannot rewind.
        """
        assert self._can_rewind, "a wrong guess cannot be taken back from a state"
        assert len(guesses) < N_GUESSED, "more than one batch holds"
        if self.is_cancelled:
            return False
        tokens = [token, *guesses]
        if self._guessed is None:
            self._guessed = lib.llama_batch_init(N_GUESSED, 0, 1)
        batch = self._guessed
        batch.n_tokens = len(tokens)
        for i, one in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = one, len(self.tokens) + i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        return self._decode(tokens, len(tokens), batch)

    def take_back(self, n: int) -> None:
        """Remove the newest `n` tokens, which were guessed wrong; the rows before them are as they were."""
        if n == 0:
            return
        end = len(self.tokens) - n
        is_in_front = self.cells_end == len(self.tokens)
        # A window needs no look: its cells are only taken over once they are behind the tokens that stay.
        if not lib.llama_memory_seq_rm(self._memory, 0, end, -1) or not self._spans(end):
            self.clear()
            raise EngineError("The engine could not take back what it had guessed.")
        del self.tokens[end:]
        if is_in_front:
            self.cells_end = end

    def _decode(self, batch: Sequence[int] | ctypes.Array[ctypes.c_int32], n: int, prepared: object = None) -> bool:
        """Evaluate `n` tokens: an array of the library's own, or any with the batch that was made of them."""
        assert not self._needs_state, "rows of a hybrid model are unusable without their state"
        n_before, cells_before = len(self.tokens), self.cells_end
        self._allocated(n)
        result = lib.llama_decode(self._handle, prepared or lib.llama_batch_get_one(batch, n))
        if result == 0:
            if self._model.is_offloaded:
                lib.llama_synchronize(self._handle)  # else what comes next would seem slow
            self.tokens.extend(batch[:n])
            return True
        if result == ABORTED:
            end = int(lib.llama_memory_seq_pos_max(self._memory, 0)) + 1
            self.tokens.extend(batch[: max(0, end - n_before)])
            del self.tokens[end:]
            self.cells_end = cells_before + max(0, end - n_before)
            # A state is half changed now, and the batch may have taken cells of the window.
            if not self._can_rewind or not self._holds(end):
                self.clear()
            return False
        self.clear()
        raise EngineError(f"The engine could not evaluate the prompt (llama_decode gave {result}).")

    def warm_up(self) -> None:
        """Run a short batch and one step: the first use of weights, buffers and threads costs what later ones do not.

        Measures `row_bytes` and `state_bytes` on the way. Leaves the cache empty.
        """
        self.clear()
        self.prefill([0] * _WARM_UP_TOKENS, lambda _done: None)
        before = self.kv_bytes
        if self.decode(0):
            self.row_bytes = self.kv_bytes - before
            self.state_bytes = 0 if self._can_rewind else int(self._size(0, _PARTIAL))
        self.clear()

    def sample(self, sampler: Sampler, at: int = -1) -> int:
        """Choose the next token from the logits behind the `at`th of what was evaluated last; -1: the last of it.

        Raises `GrammarError`.
        """
        if sampler.grammar is None:
            return int(lib.llama_sampler_sample(sampler.handle, self._handle, at))
        logits = ctypes.cast(
            lib.llama_get_logits_ith(self._handle, at), ctypes.POINTER(ctypes.c_float * self._model.n_vocab)
        ).contents
        return sampler.choose(memoryview(logits).cast("B").cast("f"))

    def logits(self) -> array[float]:
        """A copy of the logits behind the last evaluated token, one float32 per token of the vocabulary."""
        found = array("f")
        found.frombytes(ctypes.string_at(lib.llama_get_logits_ith(self._handle, -1), 4 * self._model.n_vocab))
        return found

    # --- the resident prefix ---

    def keep(self, n: int) -> None:
        """Cut the resident prefix to its first `n` tokens; a memory that cannot rewind goes back to its anchor instead.

        Without one before there it is emptied. `len(tokens)` afterwards tells.
        """
        if n >= len(self.tokens) and not self._needs_state:
            return
        if self._anchor is not None and self._anchor.end <= n and self._go_back(self._anchor):
            return
        is_in_front = self.cells_end == len(self.tokens)
        removed = n > 0 and self._can_rewind and lib.llama_memory_seq_rm(self._memory, 0, n, -1)
        if not removed or not self._holds(n):
            self.clear()
            return
        del self.tokens[n:]
        if is_in_front:
            self.cells_end = n

    @property
    def anchor_end(self) -> int | None:
        """Where `keep` can go back to in a memory that cannot rewind; None if nowhere."""
        return self._anchor.end if self._anchor else None

    def anchor(self) -> None:
        """Let `keep` go back to where the prefix ends now, until the cache is emptied.

        That takes `state_bytes` of memory. Nothing is done where a memory rewinds anyway. Raises `EngineError`.
        """
        if self.tokens and not self._can_rewind:
            self._anchor = _Anchor(len(self.tokens), self.export_state())

    def _go_back(self, anchor: _Anchor) -> bool:
        """Cut the prefix to where an anchor was taken; False if that is not possible, and then it may be empty."""
        tokens, is_in_front = self.tokens[: anchor.end], self.cells_end == len(self.tokens)
        if self._kind == "recurrent":
            self.clear()
            is_back = self.import_state(memoryview(anchor.state), tokens)
        else:
            # The state first: rows behind it can be cut as soon as it is no later than they are.
            is_back = (
                self._write(anchor.state, 0, _PARTIAL)
                and bool(lib.llama_memory_seq_rm(self._memory, 0, anchor.end, -1))
                and self._holds(anchor.end)
            )
            if is_back:
                del self.tokens[anchor.end :]
                self._needs_state = False
                self.cells_end = anchor.end if is_in_front else self.cells_end
        self._anchor = anchor if is_back else None
        return is_back

    def clear(self) -> None:
        """Empty the cache, scratch included; of branches nothing is touched."""
        if self.has_branches:
            for sequence in (0, 1):
                lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        else:
            lib.llama_memory_clear(self._memory, True)
            self.cells_end = 0
        self.tokens.clear()
        self._needs_state = False
        self._anchor = None

    def replace_prefix(self, tokens: Sequence[int]) -> None:
        """Take note that sequence 0 holds other tokens now."""
        self.tokens[:] = tokens
        self._anchor = None
        assert self._spans(len(tokens)), "the prefix is what it is said to be"

    def _spans(self, n: int) -> bool:
        """True if sequence 0 ends at `n`; without windows and states also that it begins at 0."""
        ends = lib.llama_memory_seq_pos_max(self._memory, 0) == n - 1
        return bool(ends and (self._kind != "dense" or lib.llama_memory_seq_pos_min(self._memory, 0) == 0))

    def _holds(self, n: int) -> bool:
        """True if sequence 0 ends at `n` and has all that the token there needs."""
        if not self._spans(n):
            return False
        # The library's own answer is not enough: it cuts a window whose rows are gone without a word.
        return self.holds_window(0, n)

    def holds_window(self, sequence: int, end: int) -> bool:
        """True if a sequence that ends at `end` has all that the token there sees; without windows it always has."""
        return self._kind != "sliding window" or self._sees_window(sequence, end)

    def _sees_window(self, sequence: int, end: int, start: int = 0) -> bool:
        """Read from the sequence itself: its partial state is the rows of the sliding-window layers."""
        section = kvrows.first_section(self._read(sequence, _PARTIAL))
        return section is not None and section.covers_window(end, self._model.sliding_window, start)

    def _carries_window(self, rows: bytearray | memoryview, end: int, start: int) -> bool:
        """Read from a segment's bytes, which is quicker: the window of a large model is hundreds of megabytes."""
        found = kvrows.sections(rows)
        if found is None or len(found) != 2:
            return self._sees_window(1, end, start)
        return found[1].covers_window(end, self._model.sliding_window, start)

    # --- where the prefix lies in the cache ---

    @property
    def is_pushed_back(self) -> bool:
        """True if so many cells lie before or between those of the prefix that attention is slower for it.

        A long prefix must be pushed back further: moving it costs more, and the same cells slow it down less.
        """
        n_behind = max(_PUSHED_BACK_CELLS, len(self.tokens) // 4)
        return not self.has_branches and self.cells_end > len(self.tokens) + n_behind

    def compact(self) -> bool:
        """Move the prefix to the front of the cache by save, clear and restore; the logits behind it stay the same.

        There must be no other sequence. Of sliding-window layers only the rows of the last window remain, so export
        first. False if the library refused; then the cache is empty.
        """
        assert not self._needs_state, "rows of a hybrid model are unusable without their state"
        assert lib.llama_memory_seq_pos_max(self._memory, 1) < 0, "other sequences would be lost"
        if not self.tokens:
            self.clear()
            return True
        saved = self._read(0)
        # Old rows stay in the buffers behind the prefix: no cell refers to them, and zeroing them takes longer.
        lib.llama_memory_clear(self._memory, False)
        if not self._write(saved, 0) or not self._holds(len(self.tokens)):
            self.clear()
            return False
        self.cells_end = len(self.tokens)
        return True

    def branches_allocated(self, n: int) -> None:
        """Take note that branches have filled `n` more cells."""
        self.cells_end = min(self._n_ctx, self.cells_end + n)

    def _allocated(self, n: int) -> None:
        """Raise the bound: the next free cell lies at most behind all that are or were in use; the scratch is empty."""
        if self._kind != "recurrent":
            self.cells_end = min(self._n_ctx, max(self.cells_end, len(self.tokens)) + n)

    # --- KV as bytes ---

    def export_rows(self, start: int, end: int) -> bytearray:
        """The attention rows of positions [start, end) as the library's own bytes; not for recurrent models.

        Sliding-window layers contribute the rows that the token at `end` sees. The range is copied to the scratch
        sequence (metadata only) and read there. Raises `EngineError`.
        """
        assert self._kind != "recurrent", "a recurrent model has no rows"
        lib.llama_memory_seq_cp(self._memory, 0, 1, start, end)
        try:
            rows = self._read(1)
            state = self._read(1, _PARTIAL)[kvrows.HEADER_BYTES :] if self._kind == "hybrid" else b""
            section = kvrows.first_section(rows)
            n_attention = len(rows) - len(state)
            if (
                section is None
                or not section.holds_exactly(start, end)
                or not rows.endswith(state)
                or n_attention < section.end
            ):
                raise EngineError("The KV rows could not be read.")
            if self._kind == "sliding window" and not self._carries_window(rows, end, start):
                raise EngineError(f"The sliding-window rows before token {end:,} are gone.")
        finally:
            lib.llama_memory_seq_rm(self._memory, 1, -1, -1)
        if self._kind == "hybrid":
            # The scratch shares the state at the tail, which has nothing to do with this range.
            rows[n_attention:] = self._empty_state
        return rows

    def import_rows(self, payload: memoryview, start: int, tokens: Sequence[int], begin: int, end: int) -> bool:
        """Append positions [begin, end) from rows that hold [start, start + len(tokens)); not for recurrent models.

        `payload` must be verified already: native code checks its shape, not its content. `begin` must be where the
        resident prefix ends; only dense rows may be cut. A hybrid context is unusable until `import_state`. False if
        the library refused or the rows are of other positions than asked; then the cache is emptied, because a failed
        load may leave cells behind.
        """
        assert self._kind != "recurrent", "a recurrent model has no rows"
        assert begin == len(self.tokens), "rows must continue the resident prefix"
        stop = start + len(tokens)
        assert self._kind == "dense" or (begin, end) == (start, stop), "only dense rows may be cut"
        section = kvrows.first_section(payload)
        self._allocated(len(tokens))
        if (
            section is None
            or not section.holds_exactly(start, stop)
            or payload[len(payload) - len(self._empty_state) :] != self._empty_state
            or not self._write(payload, 1)
            or (self._kind == "sliding window" and not self._carries_window(payload, end, start))
        ):
            self.clear()
            return False
        lib.llama_memory_seq_cp(self._memory, 1, 0, begin, end)
        lib.llama_memory_seq_rm(self._memory, 1, -1, -1)
        self.cells_end -= stop - end  # rows that were cut off were the last ones
        self._needs_state = self._kind == "hybrid"
        if not self._needs_state and not self._spans(end):
            self.clear()
            return False
        self.tokens.extend(tokens[begin - start : end - start])
        return True

    def export_state(self) -> bytearray:
        """What a hybrid or recurrent model keeps of all resident tokens, as it is behind the last of them.

        It cannot be had for an earlier position. Raises `EngineError`.
        """
        assert not self._can_rewind, "only hybrid and recurrent models have a state"
        assert not self._needs_state, "rows of a hybrid model are unusable without their state"
        state = self._read(0, _PARTIAL)
        if kvrows.state_position(state) != len(self.tokens) - 1:
            raise EngineError("The state could not be read.")
        return state

    def import_state(self, payload: memoryview, tokens: Sequence[int]) -> bool:
        """Load the state behind `tokens`: the resident rows of a hybrid model, or a recurrent one's whole prefix.

        `payload` must be verified already. A recurrent context must be empty. False if the library refused or the
        state stands elsewhere; then the cache is emptied.
        """
        assert not self._can_rewind, "only hybrid and recurrent models have a state"
        assert list(tokens) == self.tokens if self._kind == "hybrid" else not self.tokens, "the state must fit the rows"
        if kvrows.state_position(payload) != len(tokens) - 1 or not self._write(payload, 0, _PARTIAL):
            self.clear()
            return False
        self._needs_state = False
        if not self._holds(len(tokens)):
            self.clear()
            return False
        self.tokens[:] = tokens
        return True

    def _size(self, sequence: int, flags: int = 0) -> int:
        return int(lib.llama_state_seq_get_size_ext(self._handle, sequence, flags))

    def _read(self, sequence: int, flags: int = 0) -> bytearray:
        size = self._size(sequence, flags)
        state = bytearray(size)
        target = (ctypes.c_uint8 * size).from_buffer(state)
        if lib.llama_state_seq_get_data_ext(self._handle, target, size, sequence, flags) != size:
            raise EngineError("The KV rows could not be read.")
        del target  # it pins the buffer's size
        return state

    def _write(self, payload: bytearray | memoryview, sequence: int, flags: int = 0) -> bool:
        """True if the library took the bytes, all of them."""
        size = len(payload)
        source = (ctypes.c_uint8 * size).from_buffer(payload)
        return bool(lib.llama_state_seq_set_data_ext(self._handle, source, size, sequence, flags) == size)


def _check_q8(model: Model, settings: ContextSettings) -> None:
    if not settings.flash_attention:
        raise ModelError("A q8_0 KV cache needs flash attention; turn flash attention on, or keep the KV in f16.")
    if model.kv_shape.head_dim % _Q8_BLOCK:
        raise ModelError("This model's attention heads do not fit q8_0 blocks; keep the KV in f16.")
