"""Where a growing Markdown text may be cut: what is settled, and the open block that still changes.

Rendering a block again for every new token costs the square of its length. So an open fence, list, table or
quote is painted plain until the next block begins; an open paragraph is rendered as it grows, up to a limit.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_LIST = re.compile(r" {0,3}([-*+]|\d{1,9}[.)])(\s|$)")
_UNSURE = frozenset("`~|>-*+#=_0123456789<[!:")
"""A line that begins with one of these is only understood once it is complete."""

LONG_PARAGRAPH = 2000
"""Characters after which an open paragraph is painted plain too."""


class OpenBlock:
    """Follows a text that only grows; `feed` it the whole text, `settled` is how much may be rendered."""

    def __init__(self) -> None:
        self._at = 0  # start of the first line not yet read; lines before it are complete
        self._start = 0  # where the open block begins
        self._kind = ""  # "", "paragraph", "list", "plain" (quote, table, indented code) or a fence mark
        self._blank = False  # the last complete line was blank

    def feed(self, text: str) -> int:
        """Read the complete lines of `text` and return how many characters are fit to be rendered now."""
        while (end := text.find("\n", self._at)) >= 0:
            self._line(text[self._at : end], self._at)
            self._at = end + 1
        rest = text[self._at :]
        begins_block = self._blank or not self._kind
        unsure = rest.lstrip()[:1] in _UNSURE or (begins_block and rest[:1].isspace())
        if self._kind not in ("", "paragraph") and (unsure or not rest or not begins_block):
            return self._start
        begin = self._at if begins_block else self._start
        if len(text) - begin > LONG_PARAGRAPH:
            return begin
        return self._at if unsure else len(text)

    def _line(self, line: str, at: int) -> None:
        if self._kind[:1] in ("`", "~"):
            self._close_fence(line, at)
            return
        if not line.strip():
            self._blank = True
            return
        begins = self._kind_of(line)
        if begins == "heading":  # one line is all of it
            self._kind, self._blank, self._start = "", True, at + len(line) + 1
            return
        inside_list = self._kind == "list" and (begins == "list" or line[:1].isspace() or not self._blank)
        goes_on = begins == self._kind and not self._blank
        if begins[:1] in ("`", "~") or not (inside_list or goes_on):
            self._start, self._kind = at, begins
        self._blank = False

    def _close_fence(self, line: str, at: int) -> None:
        mark = line.strip()
        if mark and set(mark) == {self._kind[0]} and len(mark) >= len(self._kind):
            self._kind, self._blank, self._start = "", True, at + len(line) + 1

    @staticmethod
    def _kind_of(line: str) -> str:
        if fence := _FENCE.match(line):
            return fence.group(1)
        if _LIST.match(line):
            return "list"
        if line.lstrip()[:1] in ("|", ">"):
            return "plain"
        if line.startswith(("    ", "\t")):
            return "plain"
        if line.lstrip()[:1] == "#":
            return "heading"
        return "paragraph"
