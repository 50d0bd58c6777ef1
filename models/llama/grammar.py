"""A grammar that an answer follows, token by token."""

from __future__ import annotations

import codecs
import ctypes
import math
import os
import re
import tempfile
from array import array
from collections.abc import Callable, Iterable
from typing import Any

from models.errors import GrammarError
from models.grammar import check_grammar
from models.llama.model import Model
from models.llama.native import lib

_NEVER = -math.inf
_COMPLAINT = re.compile(r"error parsing grammar: (.{1,120})")


class _Candidates:
    """Tokens with their logits, as the library's samplers take them: triples of id, logit, probability."""

    def __init__(self, n: int) -> None:
        self._data = (lib.llama_token_data * n)()
        raw = memoryview(self._data).cast("B")
        self._ids = raw.cast("i")[0::3]
        self.logits = raw.cast("f")[1::3]
        self._every_id = memoryview(array("i", range(n)))
        self._array = lib.llama_token_data_array()
        self._array.data = self._data

    def fill(self, logits: memoryview[float]) -> None:
        """Take all tokens of the vocabulary, in order: samplers leave them in another one."""
        self._ids[:] = self._every_id
        self.logits[:] = logits
        self._array.size, self._array.selected, self._array.sorted = len(logits), -1, False

    def fill_one(self, token: int) -> None:
        """Take one token."""
        self._ids[0], self.logits[0] = token, 0.0
        self._array.size, self._array.selected, self._array.sorted = 1, -1, False

    def apply(self, sampler: Any) -> None:
        """Let a sampler work on them."""
        lib.llama_sampler_apply(sampler, ctypes.byref(self._array))

    def picked_by(self, chain: Any) -> int:
        """The token that a chain selects."""
        self.apply(chain)
        return int(self._data[self._array.selected].id)

    def forbid(self, tokens: Iterable[int]) -> None:
        """Rule tokens out; the array must be as `fill` left it."""
        for token in tokens:
            self.logits[token] = _NEVER

    @property
    def left(self) -> list[int]:
        """Those that are not ruled out; the array must be as `fill` left it."""
        return [token for token, logit in enumerate(self.logits) if logit != _NEVER]

    @property
    def is_first_hopeless(self) -> bool:
        """True when the first one is ruled out."""
        return bool(self.logits[0] == _NEVER)


class Grammar:
    """A native grammar and how far an answer has come in it.

    The library takes some bytes for characters that no text has; what is no UTF-8 is refused here.
    """

    def __init__(self, model: Model, text: str) -> None:
        """Raises `GrammarError`, naming what is wrong as far as the library tells."""
        check_grammar(text)
        self._handle, said = _with_stderr(
            lambda: lib.llama_sampler_init_grammar(model.vocab, text.encode("utf-8", "replace"), b"root")
        )
        if not self._handle:
            complaint = _COMPLAINT.search(said)
            reason = complaint.group(1) if complaint else "a rule leads back to itself before any text (left recursion)"
            raise GrammarError(f"The grammar cannot be used: {reason}.")
        self._model = model
        self._unfinished = b""
        self._zeros = memoryview(array("f", [0.0]) * model.n_vocab).cast("B").cast("f")
        self.candidates = _Candidates(model.n_vocab)
        self._one = _Candidates(1)
        self._unspoken = model.unspoken

    def allows(self, token: int) -> bool:
        """True if the answer may go on, or end, with this token."""
        unfinished = self._unfinished_behind(self._unfinished, token)
        if token in self._unspoken or unfinished is None:
            return False
        self._one.fill_one(token)
        self._one.apply(self._handle)
        if self._one.is_first_hopeless:
            return False
        return not unfinished or self._can_finish(self._handle, token, unfinished)

    def _unfinished_behind(self, unfinished: bytes, token: int) -> bytes | None:
        """What the bytes so far, then those of a token, leave of a character; None if no text can come of them."""
        if self._model.ends_generation(token):
            return None if unfinished else b""
        utf8 = codecs.getincrementaldecoder("utf-8")("strict")
        try:
            utf8.decode(unfinished + self._model.piece(token))
        except UnicodeDecodeError:
            return None
        return utf8.getstate()[0]

    def _can_finish(self, handle: Any, token: int, unfinished: bytes) -> bool:
        """True if a character begun with a token can be finished: the library takes more for its beginning than is."""
        ahead = lib.llama_sampler_clone(handle)
        try:
            lib.llama_sampler_accept(ahead, token)
            self.candidates.fill(self._zeros)
            self.candidates.apply(ahead)
            for following in self.candidates.left:
                rest = self._unfinished_behind(unfinished, following)
                if rest == b"" or (rest and self._can_finish(ahead, following, rest)):
                    return True
            return False
        finally:
            lib.llama_sampler_free(ahead)

    def mask(self, refused: Iterable[int]) -> None:
        """Rule out candidates that are not allowed, and those refused already. Raises `GrammarError` if none is left.

        Bytes that are no text may be among the rest: whether a token has them is asked when it is picked.
        """
        self.candidates.apply(self._handle)
        self.candidates.forbid(self._unspoken)
        self.candidates.forbid(refused)
        if max(self.candidates.logits) == _NEVER:
            # The library would take any token, and then end the process for it.
            raise GrammarError("The grammar allows nothing here that the model's vocabulary can spell.")

    def accept(self, token: int) -> None:
        """Go on behind a token that is allowed."""
        lib.llama_sampler_accept(self._handle, token)
        self._unfinished = self._unfinished_behind(self._unfinished, token) or b""

    def close(self) -> None:
        """Free it."""
        lib.llama_sampler_free(self._handle)


def _with_stderr(call: Callable[[], Any]) -> tuple[Any, str]:
    """What a native call returns, and what it wrote to descriptor 2: its only word on why it failed."""
    kept = os.dup(2)
    try:
        with tempfile.TemporaryFile() as said:
            os.dup2(said.fileno(), 2)
            try:
                result = call()
            finally:
                os.dup2(kept, 2)
            said.seek(0)
            return result, said.read(4096).decode("utf-8", "replace")
    finally:
        os.close(kept)
