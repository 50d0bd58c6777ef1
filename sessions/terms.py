"""What a text is found by: its words, and overlapping pairs of characters where words have no spaces; pure.

What is returned here is what the index holds, and deleting from the index takes exactly the same text again: a change
here, or to what counts as an answer, needs a new `FORMAT`, which has every index made anew.
"""

from __future__ import annotations

import re
import unicodedata

FORMAT = 1
"""Version of what the index holds."""

_SPACELESS = (
    "\u0e01-\u0e5b\u0e81-\u0edf"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17dd"  # Burmese, Khmer
    "\u1100-\u11ff\ua960-\ua97c\ud7b0-\ud7fb\u3131-\u318e\uac00-\ud7a3"  # Hangul
    "\u2e80-\u2fd5\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufad9"  # Han
    "\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # Hiragana, Katakana
    "\u3105-\u312f\u31a0-\u31bf"  # Bopomofo
    "\U0001aff0-\U0001b16f\U00020000-\U0003ffff"  # more Kana, more Han
)
SPACELESS = re.compile(f"[{_SPACELESS}]+")
_MARKS = "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff"
"""Signs that words of Semitic and Indic scripts are spelt with, and which are no letters for Python."""
PIECES = re.compile(f"[{_SPACELESS}]+|(?:[^\\W_{_SPACELESS}]|[{_MARKS}])+")
"""Words and runs without spaces."""
WORD_BEGINS = f"(?<![^\\W_{_SPACELESS}])(?<![{_MARKS}])"
WORD_ENDS = f"(?![^\\W_{_SPACELESS}]|[{_MARKS}])"
"""Patterns for places that no letter or digit of the same word stands before, or behind."""

# Ranges are given, and Unicode promises that these characters never compose otherwise: no version changes the outcome.
_COMPOSABLE = re.compile("[\\u1100-\\u11ff]+|[\\u3041-\\u30ff][\\u3099\\u309a]|[\\uff01-\\uffdc]+")


def indexed(text: str) -> str:
    """Return a text as the index is given it: runs without spaces as pairs of characters and the last one alone.

    So each of its characters begins a word. Letters and syllables that are written in parts, half or full width are
    put into their usual form.
    """
    return SPACELESS.sub(lambda run: _pairs(run[0]) + run[0][-1] + " ", _composed(text))


def wanted(text: str) -> str:
    """Return a text as it is looked for in the index, as a phrase; where it ends in such a run, more may follow."""
    text = _composed(text)
    tail = next((run for run in SPACELESS.finditer(text) if run.end() == len(text)), None)
    if tail is None:
        return indexed(text).strip()
    last = tail[0] if len(tail[0]) == 1 else _pairs(tail[0])
    return f"{indexed(text[: tail.start()])} {last}".strip()


def has_words(text: str) -> bool:
    """True when there is something to find a text by."""
    return any(char.isalnum() for char in text)


def ends_spaceless(text: str) -> bool:
    """True when a text ends in a run without spaces."""
    return bool(SPACELESS.fullmatch(_composed(text)[-1:]))


def _composed(text: str) -> str:
    if text.isascii():
        return text
    return _COMPOSABLE.sub(lambda part: unicodedata.normalize("NFKC", part[0]), text)


def _pairs(run: str) -> str:
    return " " + "".join(run[at : at + 2] + " " for at in range(len(run) - 1))
