"""Reads what a GGUF says about its tokenizer, and which tokens llama.cpp cuts out of a text before all else."""

from __future__ import annotations

import stat
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MAX_HEADER = 64 << 20
"""Bytes of metadata. The largest vocabularies take 20 MB."""
MAX_TEXTS = 1 << 20
"""Tokens, and merges: twice the most that any model has."""
MAX_TEXTS_BYTES = 16 << 20
"""Of all tokens, and of all merges. The time to build is bounded by them."""
MAX_TEXT = 4096
"""Bytes of a token, of a merge and of a key."""
_MAX_KEYS = 1 << 16

_STRING, _ARRAY, _INT32 = 8, 9, 5
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_U32 = 4
_USER_DEFINED = 4
_TOKENIZER = "tokenizer.ggml."
_TEXTS = ("general.architecture", "general.name", f"{_TOKENIZER}model", f"{_TOKENIZER}pre")

# llama.cpp takes these for control tokens whatever type the file gives them...
# fmt: off
_ENDS = frozenset((
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
))
# fmt: on
# ...these if no key names another for the purpose...
_FIM = tuple(
    (tuple(f"{key}_token_id" for key in keys.split()), frozenset(names.split()))
    for keys, names in (
        (
            "fim_pre prefix",
            "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>",
        ),
        (
            "fim_suf suffix",
            "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>",
        ),
        (
            "fim_mid middle",
            "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>",
        ),
        ("fim_pad", "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]"),
        ("fim_rep", "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>"),
        ("fim_sep", "<|file_sep|>"),
    )
)
# ...and these for tokens to find in any text.
_FOUND = frozenset(("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"))
# Where some of both are, `<|end|>` is one more.
_CALLS, _RETURNS = frozenset(("<|call|>", "<|calls|>")), frozenset(("<|return|>", "<|flush|>"))


class Unsuitable(Exception):
    """Only the engine can count with this vocabulary, or it is damaged."""


@dataclass(frozen=True, slots=True)
class Raw:
    """What the file says about its tokenizer; `keys` are the numbers whose names begin with `tokenizer.ggml.`."""

    model: str
    pre: str
    architecture: str
    name: str
    tokens: Sequence[str]
    merges: Sequence[str]
    types: Sequence[int]
    keys: Mapping[str, int]


def read(path: Path) -> Raw:
    """Read the tokenizer part of a GGUF. Raises `Unsuitable` for a damaged one, `OSError` for an unreadable one."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for somebody to write into it
        raise Unsuitable("no file")
    with path.open("rb", buffering=1 << 20) as file:
        try:
            return _Reader(file, found.st_size).raw()
        except UnicodeDecodeError:
            raise Unsuitable("texts that are no UTF-8") from None


def looked_for(tokens: Sequence[str], ids: Mapping[str, int], raw: Raw) -> list[str]:
    """The tokens that llama.cpp finds in a text in which control tokens are text: the longest first."""
    found = {text for text, kind in zip(tokens, raw.types, strict=False) if kind == _USER_DEFINED} - _ENDS
    for keys, names in _FIM:
        if any(0 <= raw.keys.get(key, -1) < len(tokens) for key in keys):
            continue
        present = names & ids.keys()
        if len(present) > 1 and present & found:
            raise Unsuitable("more than one token for a purpose")  # which one it takes is up to a hash table
        found -= present
    found |= _FOUND & ids.keys()
    if not _CALLS.isdisjoint(ids) and not _RETURNS.isdisjoint(ids):
        found |= {"<|end|>"} & ids.keys()
    ordered = sorted(found, key=lambda text: (-len(text.encode()), text))
    _check_overlaps(ordered)
    return ordered


def _check_overlaps(texts: Iterable[str]) -> None:
    """Raise `Unsuitable` if two of one length can overlap: which of the two is looked for first is not defined."""
    starts: dict[int, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    groups = defaultdict(list)
    for text in texts:
        groups[len(text.encode())].append(text)
    for n_bytes, group in groups.items():
        for text in group if len(group) > 1 else ():
            for cut in range(1, len(text)):
                starts[n_bytes][text[:cut]].add(text)
        for text in group if len(group) > 1 else ():
            if any(starts[n_bytes].get(text[cut:], {text}) != {text} for cut in range(1, len(text))):
                raise Unsuitable("tokens of one length that overlap")


class _Reader:
    """Streams through the metadata and keeps what belongs to the tokenizer."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = min(size, MAX_HEADER)

    def raw(self) -> Raw:
        """Read all keys."""
        if self._take(4) != b"GGUF" or self._number(4) not in (2, 3):
            raise Unsuitable("no GGUF")
        self._number(8)
        n_keys = self._number(8)
        if n_keys > _MAX_KEYS:
            raise Unsuitable("too many keys")
        texts: dict[str, str] = {}
        lists: dict[str, list[str]] = {}
        types: Sequence[int] = ()
        keys: dict[str, int] = {}
        seen: Counter[str] = Counter()
        for _ in range(n_keys):
            key = self._text()
            kind = self._number(4)
            seen[key] += 1
            if kind == _STRING and key in _TEXTS:
                texts[key] = self._text()
            elif kind == _ARRAY:
                kind, n = self._number(4), self._number(8)
                if kind == _STRING and key in (f"{_TOKENIZER}tokens", f"{_TOKENIZER}merges"):
                    lists[key.removeprefix(_TOKENIZER)] = self._texts(n)
                elif kind == _INT32 and key == f"{_TOKENIZER}token_type":
                    types = self._integers(n)
                else:
                    self._skip_array(kind, n)
            elif kind == _U32 and key.startswith(_TOKENIZER):
                keys[key.removeprefix(_TOKENIZER)] = self._number(4)
            else:
                self._skip(kind)
        if seen and max(seen.values()) > 1:
            raise Unsuitable("a key twice")
        return Raw(
            texts.get(f"{_TOKENIZER}model", ""),
            texts.get(f"{_TOKENIZER}pre", ""),
            texts.get("general.architecture", ""),
            texts.get("general.name", "").lower(),
            lists.get("tokens", []),
            lists.get("merges", []),
            types,
            keys,
        )

    def _texts(self, n: int) -> list[str]:
        """An array of texts: the hot loop, of up to a million small reads."""
        if n > min(MAX_TEXTS, self._left // 8):
            raise Unsuitable("too many texts")
        read, left, texts = self._file.read, self._left, []
        least = max(0, left - MAX_TEXTS_BYTES - 8 * n)
        for _ in range(n):
            size = int.from_bytes(read(8), "little")
            left -= size + 8
            if size > MAX_TEXT or left < least:
                raise Unsuitable("texts that are too long")
            texts.append(read(size).decode())
        self._left = left
        return texts

    def _integers(self, n: int) -> Sequence[int]:
        if n > MAX_TEXTS:
            raise Unsuitable("too many types")
        numbers = array("i", self._take(4 * n))
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers

    def _skip_array(self, kind: int, n: int) -> None:
        if kind != _STRING:
            self._pass(n * self._size_of(kind))
        elif n > MAX_TEXTS:
            raise Unsuitable("too many texts")
        else:
            for _ in range(n):
                self._skip(_STRING)

    def _skip(self, kind: int) -> None:
        self._pass(self._number(8) if kind == _STRING else self._size_of(kind))

    def _size_of(self, kind: int) -> int:
        size = _SIZES.get(kind)
        if size is None:
            raise Unsuitable("a type that is unknown")
        return size

    def _pass(self, n: int) -> None:
        self._left -= n
        if self._left < 0:
            raise Unsuitable("cut short")
        self._file.seek(n, 1)

    def _number(self, n_bytes: int) -> int:
        return int.from_bytes(self._take(n_bytes), "little")

    def _text(self) -> str:
        n = self._number(8)
        if n > MAX_TEXT:
            raise Unsuitable("a text that is too long")
        return self._take(n).decode()

    def _take(self, n: int) -> bytes:
        self._left -= n
        data = self._file.read(n) if self._left >= 0 else b""
        if len(data) < n:
            raise Unsuitable("cut short")
        return data
