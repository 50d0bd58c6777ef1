"""Turns the vocabulary and the merges of byte-level BPE into tokens in order of priority, as tiktoken wants them.

llama.cpp merges pairs in the order of a list, tiktoken merges whatever two neighbours spell a token, the lowest rank
first. Both come to the same tokens if each token with a rank is one that the pairs make of its own bytes, and the rank
is that of the last of these pairs: two neighbours spell such a token only where they are that pair, because what is
merged between two borders that nothing is merged across does not depend on what stands behind them.
"""

from __future__ import annotations

import codecs
import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from models.vocabulary import Raw, Unsuitable, looked_for

# Models whose special tokens swallow the spaces around them.
_STRIPPING_NAMES = ("phi-3", "phi3", "modern-bert")
_STRIPPING_ARCHITECTURES = ("nomic-bert-moe", "jina-bert-v3")
_MAX_STEPS = 1 << 22
_MAX_WORD = 1024


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens in order of priority: the 256 bytes, then what merges make, then what is only taken as a whole word.

    `ids[i]` is the model's id of `spellings[i]`, -1 for a byte without a token. `found` are the tokens that are cut out
    of a text before anything else, in the order in which they are looked for, with their ids.
    """

    pre: str
    spellings: Sequence[bytes]
    ids: Sequence[int]
    found: Sequence[tuple[str, int]]


def build(raw: Raw, *, whole_words: bool) -> Vocabulary:
    """The same vocabulary as tiktoken needs it. Raises `Unsuitable`.

    With `whole_words` a word that is a token is never taken apart, even where merges would not make it.
    """
    if raw.architecture in _STRIPPING_ARCHITECTURES or any(name in raw.name for name in _STRIPPING_NAMES):
        raise Unsuitable("special tokens that take spaces with them")
    tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(raw.tokens)]
    ids = {text: i for i, text in enumerate(tokens)}
    if len(ids) < len(tokens) or len(raw.types) < len(tokens):
        raise Unsuitable("a token twice, or without a type")
    if not raw.merges:
        raise Unsuitable("no merges")
    tree = _Tree(raw.merges, tokens if whole_words else ())
    texts = [*_BYTE_CHARACTERS, *tree.made]
    if any(text not in ids for text in tree.made):
        raise Unsuitable("merges that make no token")
    if whole_words:
        texts += [text for text in tokens if len(text) > 1 and text not in tree.made and tree.never_makes(text)]
    return Vocabulary(
        raw.pre,
        [_spelled(text) for text in texts],
        [ids.get(text, -1) for text in texts],
        [(text, ids[text]) for text in looked_for(tokens, ids, raw)],
    )


class _Tree:
    """How each token is merged, from the bytes up.

    Nodes are numbered in the order of their merges. A merge is left out if its pair never stands in a text. `made` are
    the tokens that merging their own bytes makes, in the order of the merge that makes them.
    """

    def __init__(self, merges: Sequence[str], words: Sequence[str]) -> None:
        self._nodes = {text: i for i, text in enumerate(_BYTE_CHARACTERS)}
        self._left = list(range(256))
        self._right = list(range(256))
        self._pairs: dict[tuple[int, int], int] = {}
        self._taken_apart: dict[str, int] = {}
        early = self._grow(merges)
        late = self._late(early)
        order = self._with_late(late, merges, words) if late else list(self._nodes)[256:]
        self.made = dict.fromkeys(order)

    def _grow(self, merges: Sequence[str]) -> list[tuple[str, str]]:
        """Take the merges in their order; returns those whose parts were not there yet."""
        nodes, early = self._nodes, []
        for merge in merges:
            left_text, _, right_text = merge.partition(" ")
            left, right = nodes.get(left_text), nodes.get(right_text)
            if left is None or right is None:
                early.append((left_text, right_text))
                continue
            text = left_text + right_text
            if text not in nodes and self._is_final(left, right):
                self._pairs[left, right] = nodes[text] = len(self._left)
                self._left.append(left)
                self._right.append(right)
        return early

    def _late(self, early: Sequence[tuple[str, str]]) -> list[str]:
        """What is made by merges that come before the ones that make their parts."""
        nodes, late = self._nodes, []
        for left_text, right_text in early:
            left, right = nodes.get(left_text), nodes.get(right_text)
            text = left_text + right_text
            if left is not None and right is not None and text not in nodes and self._is_final(left, right):
                late.append(text)
        return late

    def _with_late(self, late: Sequence[str], merges: Sequence[str], words: Sequence[str]) -> list[str]:
        """The order of what is made, where those that hold one of `late` were merged step by step."""
        ranks: dict[tuple[str, str], int] = {}
        for rank, merge in enumerate(merges):
            left, _, right = merge.partition(" ")
            ranks.setdefault((left, right), rank)
        texts = list(self._nodes)
        made = {
            text: ranks[texts[left], texts[right]]
            for text, left, right in zip(texts[256:], self._left[256:], self._right[256:], strict=True)
        }
        steps = 0
        for text in _holding(late, {*("".join(pair) for pair in ranks), *words}):
            steps += len(text) ** 2
            if steps > _MAX_STEPS:
                raise Unsuitable("too many merges that come before the ones they need")
            made.pop(text, None)
            parts, last_rank = _merged(text, ranks)
            self._taken_apart[text] = len(parts)
            if len(parts) == 1:
                made[text] = last_rank
        return sorted(made, key=made.__getitem__)

    def never_makes(self, text: str) -> bool:
        """True for a text of bytes, which merges neither make nor leave as two parts. Raises `Unsuitable` for two."""
        if not _is_of_bytes(text):
            return False
        parts = self._taken_apart.get(text, 0)
        if parts == 2 or len(text) > _MAX_WORD:
            raise Unsuitable("a token whose parts must not be merged")
        nodes = {} if parts else self._nodes
        for cut in range(1, len(text)):
            left, right = nodes.get(text[:cut]), nodes.get(text[cut:])
            if left is not None and right is not None and self._is_final(left, right):
                raise Unsuitable("a token whose parts must not be merged")
        return True

    def _is_final(self, left: int, right: int) -> bool:
        """True if merging the bytes of both so far comes to exactly these two.

        Undoes the merges next to the border, the latest first, and looks for a pair across it that would have come
        before: of two equal ones the left comes first.
        """
        pairs, lefts, rights = self._pairs, self._left, self._right
        limit = sys.maxsize
        while True:
            across = pairs.get((left, right))
            if across is not None and across < limit:
                return False
            if left > right:
                limit = left
                left = rights[left]
                if left == limit:
                    limit = right + 1
                    right = lefts[right]
                    if right + 1 == limit:
                        return True
            else:
                limit = right + 1
                right = lefts[right]
                if right + 1 == limit:
                    limit = left
                    left = rights[left]
                    if left == limit:
                        return True


def _holding(late: Iterable[str], texts: Iterable[str]) -> list[str]:
    """Those texts of byte characters that one of `late` is a part of."""
    listed = [text for text in texts if "\n" not in text]
    joined = "\n".join(listed)
    ends = list(accumulate(len(text) + 1 for text in listed))
    found = set()
    for part in late:
        at = joined.find(part)
        while at >= 0:
            place = bisect_right(ends, at)
            found.add(listed[place])
            at = joined.find(part, ends[place])
    return [text for text in found if _is_of_bytes(text)]


def _merged(text: str, ranks: Mapping[tuple[str, str], int]) -> tuple[list[str], int]:
    """What merging makes of a text, step by step, and the rank of the last merge."""
    parts, rank = list(text), -1
    while len(parts) > 1:
        best, at = min((ranks.get(pair, sys.maxsize), i) for i, pair in enumerate(pairwise(parts)))
        if best == sys.maxsize:
            break
        rank = best
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts, rank


def _byte_characters() -> str:
    """The character that stands for each byte in a byte-level vocabulary."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in plain else next(others)) for byte in range(256))


_BYTE_CHARACTERS = _byte_characters()
_TO_BYTES = codecs.charmap_build(_BYTE_CHARACTERS)


def _spelled(text: str) -> bytes:
    """The bytes that a text of byte characters stands for."""
    return codecs.charmap_encode(text, "strict", _TO_BYTES)[0]


def _is_of_bytes(text: str) -> bool:
    try:
        _spelled(text)
    except UnicodeEncodeError:
        return False
    return True
