"""A Markdown text that grows, and its lines: each change reads and lays out only what it can have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from textual.content import Content

from chatapp.tui.markdown_blocks import Block, Text, parse
from chatapp.tui.markdown_lines import Line, joints, lines_of
from chatapp.tui.openblock import OpenBlock

LONGEST = 100_000
"""Characters that are read as Markdown; a longer text stands as it was written, or opening it would take seconds."""


class Sheet:
    """Owner of a text's blocks and of its lines at one width.

    Characters `[0, _n_read)` of the text are in blocks; behind them stands, while it grows, the open block as it was
    written: a fence, list or table is drawn when the next block begins. Lines are laid out when they are asked for.
    """

    def __init__(self) -> None:
        self.text = ""
        self._width = 0
        self._blocks: list[Block] = []
        self._n_read = 0
        self._last_at = 0  # where the last top-level block begins in the text
        self._n_before_last = 0  # blocks in front of that one
        self._growing = OpenBlock()
        self._starts: list[int] = []  # the first line of each block that is laid out
        self._lines: list[Line] = []  # of those blocks
        self._open_lines: list[Line] = []  # of the whole lines of the open block
        self._open_read = 0  # characters up to the end of those
        self._shown: list[Line] | None = None

    def set(self, text: str) -> None:
        """Take a whole text."""
        self.text = text
        self._growing = OpenBlock()
        if len(text) > LONGEST:
            self._blocks, line, self._n_before_last = [Text(Content(text))], 0, 0
        else:
            self._blocks, line, self._n_before_last = parse(text)
        self._last_at = _offset(text, line)
        self._n_read = len(text)
        self._forget(0)

    def grow(self, text: str) -> None:
        """Take a text that begins with the one before."""
        self.text = text
        self._shown = None
        settled = self._growing.feed(text)
        if settled <= self._n_read:
            return
        # The last block may have gone on: it is read again with what came.
        part = text[self._last_at : settled]
        blocks, line, n_before = parse(part)
        if self._n_before_last and blocks:
            blocks[0] = replace(blocks[0], gap=Content())
        self._forget(self._n_before_last)
        self._blocks[self._n_before_last :] = blocks
        self._n_before_last += n_before
        self._last_at += _offset(part, line)
        self._n_read = settled

    def lines(self, width: int) -> Sequence[Line]:
        """Return the lines, each at most `width` cells wide (but for a character that is wider)."""
        if width != self._width:
            self._width = width
            self._forget(0)
        if self._shown is None:
            for block in self._blocks[len(self._starts) :]:
                self._starts.append(len(self._lines))
                self._lines += lines_of(block, width)
            self._shown = [*self._lines, *self._open(width)]
        return self._shown

    def _forget(self, n_blocks: int) -> None:
        """Keep the lines of the first `n_blocks` blocks only."""
        self._shown = None
        if n_blocks < len(self._starts):
            del self._lines[self._starts[n_blocks] :]
            del self._starts[n_blocks:]
        self._open_lines, self._open_read = [], 0

    def _open(self, width: int) -> list[Line]:
        if self._open_read < self._n_read:
            self._open_lines, self._open_read = [], self._n_read
        rest = self.text[self._open_read :]
        end = rest.rfind("\n") + 1
        for line in rest[:end].split("\n")[:-1]:
            if line.strip() or self._open_lines:
                self._open_lines += _plain(line, width)
        self._open_read += end
        lines = self._open_lines + (_plain(rest[end:], width) if rest[end:].strip() else [])
        return [Line(Content()), *lines] if lines and self._blocks else lines


def _plain(text: str, width: int) -> list[Line]:
    content = Content(text.expandtabs(4))
    pieces = content.wrap(width)
    return [Line(piece, 0, joint) for piece, joint in zip(pieces, joints(content.plain, pieces), strict=True)]


def _offset(text: str, n_lines: int) -> int:
    """Return where line `n_lines` of a text begins."""
    at = 0
    for _ in range(n_lines):
        at = text.find("\n", at) + 1
    return at
