"""Counts tokens without the engine: a `tiktoken.Encoding` out of the GGUF's own vocabulary, equal to llama.cpp's.

For byte-level BPE with a pre-tokenizer listed here. The counts of other models come from the engine.
"""

from __future__ import annotations

import functools
import re
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from models.cachefile import write_atomically
from models.merges import Vocabulary, build
from models.vocabulary import Unsuitable, read

if TYPE_CHECKING:
    import tiktoken

# llama.cpp's tables are those of Unicode 15.1; what came later is a letter to tiktoken and none to it.
_L, _N, _M = (rf"[\p{{{name}}}&&\p{{Age=15.1}}]" for name in "LNM")
_OTHER = rf"[^\s{_L}{_N}]"
_SUFFIX = r"'(?:[sdmt]|ll|ve|re)"
_ANY_CASE_SUFFIX = r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"
_LINES = r"|\s*[\r\n]+"
_SPACES = r"|\s+(?!\S)|\s+"
_BEFORE = rf"[^\r\n{_L}{_N}]?"
_UPPER, _LOWER = rf"[{_L}--[a-z]]", rf"[{_L}--[A-Z]]"
# What needs no look ahead is one group: tiktoken leaves it to its fast engine.
_GPT2 = rf"(?:{_SUFFIX}| ?{_L}+| ?{_N}+| ?{_OTHER}+){_SPACES}"
_DIGITS = rf"(?:{_SUFFIX}| ?{_L}+|{_N}| ?{_OTHER}+)|\s+(?={_N}){_SPACES}"
_WORDS = rf"{_ANY_CASE_SUFFIX}|{_BEFORE}{_L}+"
_LLAMA3 = rf"(?:{_WORDS}|{_N}{{1,3}}| ?{_OTHER}+[\r\n]*{_LINES}){_SPACES}"
_QWEN2 = rf"(?:{_WORDS}|{_N}| ?{_OTHER}+[\r\n]*{_LINES}){_SPACES}"
_QWEN35 = rf"(?:{_ANY_CASE_SUFFIX}|{_BEFORE}[{_L}{_M}]+|{_N}| ?[^\s{_L}{_M}{_N}]+[\r\n]*{_LINES}){_SPACES}"
_TEKKEN = rf"(?:{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|{_N}| ?{_OTHER}+[\r\n/]*{_LINES}){_SPACES}"
_GPT4O = (
    rf"(?:{_BEFORE}{_UPPER}*{_LOWER}+(?:{_ANY_CASE_SUFFIX})?|{_BEFORE}{_UPPER}+{_LOWER}*(?:{_ANY_CASE_SUFFIX})?"
    rf"|{_N}{{1,3}}| ?{_OTHER}+[\r\n/]*{_LINES}){_SPACES}"
)


@dataclass(frozen=True, slots=True)
class _Splitter:
    """How a pre-tokenizer cuts a text into words.

    The fields but the first two say of `pattern` what a long run of spaces needs: see `Counter._long_run`.
    """

    pattern: str
    whole_words: bool = False
    """A word that is a token is taken as it is."""
    behind_signs: str = r"[\r\n]*"
    """What belongs to signs that stand before it; a run of spaces then also ends behind its last line feed."""
    before_numbers: bool = False
    """A run of spaces before a number is one word."""
    letters: str = rf"[{_L}{_N}]"
    """What is no sign."""


_GPT2_SPLITTER = _Splitter(_GPT2, behind_signs="")
_DIGITS_SPLITTER = _Splitter(_DIGITS, behind_signs="", before_numbers=True)
_LLAMA3_SPLITTER = _Splitter(_LLAMA3, whole_words=True)
_SPLITTERS = {
    **dict.fromkeys(
        ("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "granite-docling", "trillion"), _GPT2_SPLITTER
    ),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS_SPLITTER),
    **dict.fromkeys(("exaone", "minerva-7b"), _DIGITS_SPLITTER),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2", "glm4"), _LLAMA3_SPLITTER),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _Splitter(_LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "grok-2"), _Splitter(_QWEN2)),
    "qwen35": _Splitter(_QWEN35, letters=rf"[{_L}{_M}{_N}]"),
    "tekken": _Splitter(_TEKKEN, whole_words=True, behind_signs=r"[\r\n/]*"),
    **dict.fromkeys(("gpt-4o", "llama4"), _Splitter(_GPT4O, behind_signs=r"[\r\n/]*")),
}
PRE_TOKENIZERS = frozenset(_SPLITTERS)
"""The values of `tokenizer.ggml.pre` that can be counted with."""

LONG_RUN = 512
"""Spaces in a row that are cut by code of ours: tiktoken is slow with thousands, and gives up at a million."""
_SPACE = "[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_LONG_RUN = re.compile(f"{_SPACE}{{{LONG_RUN},}}")
_N_BYTES = 256
_CACHE_MAGIC = b"chatapp tokens 1"


def counter_for(path: Path, cache_dir: Path) -> Counter | None:
    """A counter for the model in a GGUF file; None if only the engine can count its tokens.

    None is also what a damaged or unreadable file gives. What was read is kept in `cache_dir`.
    """
    try:
        found = path.stat()
        place = cache_dir / f"tokens-{_digest(f'{path.resolve()}|{found.st_size}|{found.st_mtime_ns}'.encode())[:32]}"
        vocabulary = _cached(place)
        if vocabulary is None:
            vocabulary = _read(path)
            write_atomically(place, _packed(vocabulary))
        return Counter(vocabulary)
    except (OSError, Unsuitable):
        return None


class Counter:
    """Counts the tokens of message bodies exactly as llama.cpp makes them: control tokens in a text are text.

    Any number of threads may use it at once.
    """

    def __init__(self, source: Vocabulary) -> None:
        self._splitter = _SPLITTERS[source.pre]
        ranks = {spelling: rank for rank, spelling in enumerate(source.spellings)}
        self._encoding = _encoding(source.pre, self._splitter.pattern, ranks)
        self._found = [(text, len(ranks) + i) for i, (text, _id) in enumerate(source.found)]
        starts = sorted({re.escape(text[:4]) for text, _id in source.found})
        self._may_be_found = re.compile("|".join(starts)) if starts else None
        self._ids = [*source.ids, *(token for _text, token in source.found)]
        self._dropped = tuple(rank for rank in range(_N_BYTES) if source.ids[rank] < 0)

    def count(self, text: str) -> int:
        """How many tokens a text is."""
        ranks = self._ranks(text)
        data = text.encode("utf-8", "replace") if self._dropped else b""
        return len(ranks) - sum(ranks.count(byte) for byte in self._dropped if byte in data)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text. Bytes that the vocabulary has no token for are left out, as the engine does."""
        ids = [self._ids[rank] for rank in self._ranks(text)]
        return [token for token in ids if token >= 0] if self._dropped else ids

    def _ranks(self, text: str) -> list[int]:
        clean = text.encode("utf-8", "replace").decode()  # lone surrogates become question marks, as for the engine
        if self._may_be_found is None or not self._may_be_found.search(clean):
            return self._plain(clean)
        parts: list[str | int] = [clean]
        for token, rank in self._found:
            if token in clean:
                parts = [piece for part in parts for piece in _cut_out(part, token, rank)]
        return [rank for part in parts for rank in (self._plain(part) if isinstance(part, str) else (part,))]

    def _plain(self, text: str) -> list[int]:
        """A text in which no token is looked for."""
        ranks: list[int] = []
        at = 0
        while run := _LONG_RUN.search(text, at):
            start, *ends = self._cut(text, *run.span())
            ranks += self._encoding.encode_ordinary(text[at:start])
            for word in map(slice, (start, *ends), ends):
                ranks += self._encoding._encode_single_piece(text[word])
            at = ends[-1] if ends else start
        return ranks + self._encoding.encode_ordinary(text[at:])

    def _cut(self, text: str, start: int, end: int) -> list[int]:
        """Where the words in a long run of spaces at [start, end) begin and end; what is left belongs to what follows.

        Does what the expression does from there on, which sees no more of what stands before than its last sign.
        """
        splitter = self._splitter
        if splitter.behind_signs and start and not _matches(splitter.letters, text[start - 1]):
            taken = re.compile(splitter.behind_signs).match(text, start)
            start = taken.end() if taken else start
        borders = [start]
        if splitter.behind_signs:
            borders.append(max(start, *(text.rfind(sign, start, end) + 1 for sign in "\r\n")))
        is_whole = end == len(text) or (splitter.before_numbers and _matches(_N, text[end]))
        borders.append(max(borders[-1], end if is_whole else end - 1))
        return sorted(set(borders))


def _cut_out(part: str | int, token: str, rank: int) -> list[str | int]:
    if isinstance(part, int):
        return [part]
    cut: list[str | int] = []
    for piece in part.split(token):
        cut += (piece, rank) if piece else (rank,)
    return cut[:-1]


def _encoding(name: str, pattern: str, ranks: dict[bytes, int]) -> tiktoken.Encoding:
    import tiktoken

    return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def _matches(pattern: str, character: str) -> bool:
    return bool(_matcher(pattern).encode_ordinary(character))


@functools.cache
def _matcher(pattern: str) -> tiktoken.Encoding:
    """Says with tiktoken's tables what a character is: Python's are of another version of Unicode."""
    return _encoding("character", pattern, {bytes([byte]): byte for byte in range(_N_BYTES)})


def _read(path: Path) -> Vocabulary:
    raw = read(path)
    splitter = _SPLITTERS.get(raw.pre)
    if raw.model != "gpt2" or splitter is None:
        raise Unsuitable("another kind of tokenizer")
    return build(raw, whole_words=splitter.whole_words)


# --- the cache file: magic, digest of what follows, numbers of items, then each list's lengths and bytes ---


def _digest(data: bytes) -> str:
    return blake3(data).hexdigest()


def _packed(source: Vocabulary) -> bytes:
    found = [text.encode() for text, _id in source.found]
    numbers = array("i", [len(source.spellings), len(found)])
    numbers.extend(map(len, source.spellings))
    numbers.extend(source.ids)
    numbers.extend(map(len, found))
    numbers.extend(token for _text, token in source.found)
    body = numbers.tobytes() + b"".join(source.spellings) + b"".join(found) + source.pre.encode()
    return _CACHE_MAGIC + sys.byteorder.encode() + bytes.fromhex(_digest(body)) + body


def _cached(place: Path) -> Vocabulary | None:
    """What an earlier start has read; None if nothing that is whole."""
    prefix = _CACHE_MAGIC + sys.byteorder.encode()
    try:
        data = place.read_bytes()
    except OSError:
        return None
    body = data[len(prefix) + 32 :]
    if data[: len(prefix) + 32] != prefix + bytes.fromhex(_digest(body)):
        return None
    n, n_found = array("i", body[:8])
    numbers = array("i", body[8 : 8 + 8 * (n + n_found)])
    texts = body[8 + 8 * (n + n_found) :]
    spellings, texts = _split(texts, numbers[:n])
    found, texts = _split(texts, numbers[2 * n : 2 * n + n_found])
    return Vocabulary(
        texts.decode(),
        spellings,
        numbers[n : 2 * n],
        [(text.decode(), token) for text, token in zip(found, numbers[2 * n + n_found :], strict=True)],
    )


def _split(data: bytes, lengths: Sequence[int]) -> tuple[list[bytes], bytes]:
    borders = list(accumulate(lengths, initial=0))
    return [data[a:b] for a, b in pairwise(borders)], data[borders[-1] :]
