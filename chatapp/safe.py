"""The one gate between untrusted text and a terminal, and between raw input and the program.

Stored text stays as it was written; it is made safe where it is shown.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import TextIO, cast

from sessions.hygiene import tidy

_REPLACEMENT = "\ufffd"
_ELLIPSIS = "…"


def _table() -> dict[int, str]:
    """What each code point that must not reach a terminal is shown as.

    Not in the table, on purpose: the joiners U+200C and U+200D (Persian, Indic scripts and emoji are spelt
    with them), U+200B and U+2060 (line breaks of Thai and Khmer), the marks U+200E, U+200F and U+061C (Arabic
    and Hebrew need them, and they turn no text around): they are invisible but have no power.
    """
    hidden: Iterable[int] = (
        *range(0x80, 0xA0),  # C1: some terminals obey them as they obey ESC
        *range(0x202A, 0x202F),  # bidi embeddings and overrides: text reads otherwise than it is
        *range(0x2066, 0x2070),  # bidi isolates, and the deprecated format controls behind them
        0xFEFF,  # a byte order mark; inside a text it spells nothing
        *range(0xFFF9, 0xFFFC),  # interlinear annotation: hides one text under another
        *range(0xD800, 0xE000),  # lone surrogates: cannot be written as UTF-8
        *range(0xE0000, 0xE0080),  # tags: invisible ASCII
    )
    table = dict.fromkeys(hidden, _REPLACEMENT)
    table |= {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
    table[0x7F] = "\u2421"
    table[0x2028] = table[0x2029] = "\n"  # line and paragraph separator
    return table


def _one_of(codes: Iterable[int]) -> re.Pattern[str]:
    """A class of ranges: the two thousand surrogates one by one would take longer to compile than to use."""
    runs: list[list[int]] = []
    for code in sorted(codes):
        if runs and code == runs[-1][1] + 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return re.compile("[" + "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in runs) + "]")


_GLYPHS = _table()
_UNSAFE = _one_of(_GLYPHS)
_UNSAFE_IN_ROWS = _one_of([*_GLYPHS, *map(ord, "\n\t")])
_IN_ROWS: dict[int, str | None] = dict.fromkeys([*_GLYPHS, *map(ord, "\n\t")])
_IN_ROWS |= dict.fromkeys(range(0xD800, 0xE000), _REPLACEMENT)  # these take a cell
_IN_FIELDS = _GLYPHS | dict.fromkeys(map(ord, "\n\t\u2028\u2029"), " ")
_INVISIBLE_IN_TITLES = re.compile("[\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2060-\\u2064\\ufeff]")


def clean(text: str) -> str:
    """Return text that a terminal only prints: what it might obey becomes a glyph, ESC for instance `␛`.

    Works code point by code point, so text may be cleaned in chunks cut anywhere: nothing dangerous can come
    together from two harmless halves. The one pair it knows is CR LF, a line break; where a chunk ends
    between the two, the CR is shown as `␍`, as each other CR is (it would let text overwrite its own line).
    """
    if not _UNSAFE.search(text):
        return text
    return text.replace("\r\n", "\n").translate(_GLYPHS)


def clean_line(text: str, limit: int) -> str:
    """Return clean text for a title: one line of at most `limit` cells, cut with an ellipsis.

    White space of any kind becomes single spaces. Invisible characters without a part in spelling are dropped,
    because terminals do not agree on their width.
    """
    from rich.cells import cell_len, split_graphemes  # the command line starts faster without it

    if limit <= 0:
        return ""
    # Enough for any title; bounds the work, and the marks that can be piled on one letter.
    text = text.lstrip()
    head = text[: limit * 8]
    line = " ".join(clean(_INVISIBLE_IN_TITLES.sub("", head)).split())
    if len(head) == len(text) and cell_len(line) <= limit:
        return line
    end, width = 0, len(_ELLIPSIS)
    for _, grapheme_end, cells in split_graphemes(line)[0]:
        width += cells
        if width > limit:
            break
        end = grapheme_end
    return line[:end].rstrip() + _ELLIPSIS


def clean_field(text: str) -> str:
    """Return text for a field of one line: clean, with spaces for tabs and line ends, as long as it was."""
    return text.translate(_IN_FIELDS) if _UNSAFE_IN_ROWS.search(text) else text


def inert(text: str) -> str:
    """Return a piece of a laid out row without what a terminal might obey, tabs and line ends included.

    The piece keeps its width: by the tables that rows are laid out with, all of that is no cell wide, but for
    surrogates, which become U+FFFD.
    """
    return text.translate(_IN_ROWS) if _UNSAFE_IN_ROWS.search(text) else text


class _SafeStream(io.TextIOBase):
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str, /) -> int:
        """Write clean text; return how much of `text` that was: all."""
        self._stream.write(clean(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream behind."""
        self._stream.flush()


def safe_stream(stream: TextIO) -> TextIO:
    """Return a stream that cleans what is written to another, for a library's own report of a failure."""
    return cast(TextIO, _SafeStream(stream))


def decode_input(data: bytes) -> tuple[str, int]:
    """Return UTF-8 input by the rule of `sessions.hygiene`, and how many U+FFFD stand for what could not be kept."""
    text = data.decode("utf-8", errors="replace")
    # UTF-8 finds its own character borders again after any damage, so each genuine U+FFFD is counted exactly.
    n_damaged = text.count(_REPLACEMENT) - data.count(_REPLACEMENT.encode())
    text, n_scrubbed = scrub(text)
    return text, n_damaged + n_scrubbed


def scrub(text: str) -> tuple[str, int]:
    """Return text by the rule of `sessions.hygiene`, and how many lone surrogates and NULs became U+FFFD.

    Surrogates come from arguments that are not UTF-8 and from JSON escapes.
    """
    return tidy(text)
