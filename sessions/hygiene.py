"""The one rule for text that comes in, at every border: what becomes of it before it is stored or tokenized.

Line ends (CR LF, and CR alone) become LF; byte order marks at the start are dropped; NUL and lone surrogates, which can
be neither stored nor tokenized, become U+FFFD and are counted. All else stays: zero-width characters, which Persian,
Indic scripts and emoji are spelt with, and marks of direction too.
"""

from __future__ import annotations

import re

BOM = "\ufeff"
_PAIR = re.compile("[\\ud800-\\udbff][\\udc00-\\udfff]")
_UNSTORABLE = re.compile("[\\x00\\ud800-\\udfff]")


def tidy(text: str) -> tuple[str, int]:
    """Return text as it is stored, and how many characters became U+FFFD. Tidied again it stays the same.

    Two surrogates that make one character together become it.
    """
    text = text.lstrip(BOM).replace("\r\n", "\n").replace("\r", "\n")
    text = _PAIR.sub(lambda pair: pair.group().encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text)
    return _UNSTORABLE.subn("\ufffd", text)
