"""Where a cursor may stand in a line: between characters as people count them, never within one.

A family emoji, a flag, a letter with its marks or a syllable of Hangul or Devanagari is one character, however
many code points spell it: the extended grapheme clusters of Unicode.
"""

from __future__ import annotations

import unicodedata

import regex

_CLUSTER = regex.compile(r"\X")
_REACH = 256
"""Code points that are looked at on either side of a place: a longer cluster is taken apart, no key waits for it."""


def left_of(line: str, at: int) -> int:
    """Return where the character begins that ends at a place, or that the place is within; 0 at the start."""
    if at <= 0:
        return 0
    start, end = _around(line, at)
    before = start
    for cluster in _CLUSTER.finditer(line, start, end):
        if cluster.end() >= at:
            return int(cluster.start())
        before = int(cluster.end())
    return before


def right_of(line: str, at: int) -> int:
    """Return where the character ends that begins at a place, or that the place is within; the end at the end."""
    start, end = _around(line, at)
    for cluster in _CLUSTER.finditer(line, start, end):
        if cluster.end() > at:
            return int(cluster.end())
    return len(line)


def snapped(line: str, at: int) -> int:
    """Return the place itself, or where the character begins that it is within."""
    return left_of(line, at) if 0 < at < len(line) and right_of(line, left_of(line, at)) != at else at


def composed(line: str, at: int, typed: str) -> tuple[int, str]:
    """Return what a typed code point makes of the character before it: from where, and the text to put there.

    That is the place and the code point, unless both together have a shorter spelling, as the letters of a syllable
    of Hangul have.
    """
    if typed.isascii() or len(typed) != 1 or at == 0:
        return at, typed
    start = left_of(line, at)
    whole = unicodedata.normalize("NFC", line[start:at] + typed)
    if len(whole) > at - start:
        return at, typed
    return start, whole


def _around(line: str, at: int) -> tuple[int, int]:
    """A stretch around a place that begins where a cluster does: before an ASCII character, if one is near."""
    start = lowest = max(0, at - _REACH)
    for place in range(at - 1, lowest - 1, -1):
        if line[place].isascii() and line[place] != "\n":
            start = place
            break
    return start, min(len(line), at + _REACH)
