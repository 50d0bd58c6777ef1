"""What a vocabulary can spell: characters a text loses when it is tokenized, and tokens for exactly a given text.

Tokenizers are not always their own inverse: one without a token for some byte drops it without a word, and one of the
SentencePiece kind puts a space in front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Piece = Callable[[int], bytes]
"""A token id -> the bytes it stands for."""


def lost_characters(text: str, ids: Sequence[int], piece: Piece) -> int:
    """Return how many characters of `text` are not, or not as they were, in the text of its tokens.

    A space in front that is the tokenizer's or the template's is no loss. Linear in the length of the text.
    """
    spelt = b"".join(map(piece, ids))
    if spelt.removeprefix(b" ") == text.encode("utf-8", "replace").removeprefix(b" "):
        return 0
    return min(_n_missing(text, spelt), _n_missing(text, spelt.removeprefix(b" ")))


def _n_missing(text: str, spelt: bytes) -> int:
    """Characters of which a byte is not found, each looked for behind the last one."""
    n_missing = at = 0
    for char in text:
        encoded = char.encode("utf-8", "replace")
        if spelt.startswith(encoded, at):
            at += len(encoded)
            continue
        n_missing += 1
        for byte in encoded:
            at += spelt.startswith(bytes([byte]), at)
    return n_missing


def spell(text: str, tokenize: Callable[[str], Sequence[int]], piece: Piece, vocabulary: Iterable[int]) -> list[int]:
    """Return tokens whose text is `text`, or as much of its beginning as the vocabulary can spell.

    They are the tokenizer's own where those are exact; else the longest pieces that fit, one after another.
    """
    data = text.encode("utf-8", "replace")
    ids = list(tokenize(text))
    if b"".join(map(piece, ids)) == data:
        return ids
    known: dict[bytes, int] = {}
    for token in vocabulary:
        known.setdefault(piece(token), token)
    longest = max(map(len, known), default=0)
    ids, at = [], 0
    while at < len(data):
        ends = range(min(len(data), at + longest), at, -1)
        end = next((end for end in ends if data[at:end] in known), at)
        if end == at:
            break
        ids.append(known[data[at:end]])
        at = end
    return ids
