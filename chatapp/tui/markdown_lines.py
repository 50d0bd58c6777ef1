"""The blocks of an answer as lines of a given width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from textual.content import Content

from chatapp.tui.markdown_blocks import QUOTE, Block, Code, Rule, Table, Text
from chatapp.tui.markdown_table import table_lines

NARROWEST = 8
"""Cells that a text has at least, however much stands in front of it."""
_CODE_STYLE = "on $surface"
_LANGUAGE = "$foreground 50%"


@dataclass(frozen=True, slots=True)
class Line:
    """One line on the screen: what it shows, `n_lead` characters of it in front of the text, and its background.

    `joint` is what stands between it and the line above where both are one line of the text: "" or a space. It is
    None for a line that begins one: copied text has no other line ends than the source.
    """

    content: Content
    n_lead: int = 0
    joint: str | None = None
    fill: str = ""


def lines_of(block: Block, width: int) -> Iterator[Line]:
    """Yield the lines of a block, the one above it included where it has one; `width` in cells."""
    if block.gap is not None:
        yield Line(block.gap, len(block.gap))
    match block:
        case Text():
            yield from _wrapped(block, width)
        case Code():
            if block.language:
                name = block.lead.rest + Content.styled(block.language, _LANGUAGE)
                yield Line(name, len(block.lead.rest), fill=_CODE_STYLE)
            yield from _wrapped(block, width, fill=_CODE_STYLE)
        case Table():
            room = max(NARROWEST, width - block.lead.first.cell_length)
            for at, line in enumerate(table_lines(block, room)):
                lead = block.lead.rest if at else block.lead.first
                yield Line(lead + line, len(lead))
        case Rule():
            lead = block.lead.first
            rule = "─" * max(NARROWEST, width - lead.cell_length)
            yield Line(lead + Content.styled(rule, "$foreground 40%"), len(lead))


def _wrapped(block: Text | Code, width: int, fill: str = "") -> Iterator[Line]:
    lead = block.lead.first
    room = max(NARROWEST, width - block.lead.rest.cell_length)
    for text in block.content.split("\n", allow_blank=True):
        pieces = text.wrap(room) if isinstance(block, Text) else folded(text, room)
        for piece, joint in zip(pieces, joints(text.plain, pieces), strict=True):
            yield Line(lead + piece, len(lead), joint, fill)
            lead = block.lead.rest


def folded(text: Content, width: int) -> Sequence[Content]:
    """Return a line of code in pieces of at most `width` cells; its words may be cut, its spaces stay."""
    return text.fold(width) if text.cell_length > width else [text]


def joints(text: str, pieces: Sequence[Content]) -> Iterator[str | None]:
    """Yield what stands between each piece of a wrapped text and the one before, None for the first."""
    at = 0
    for number, piece in enumerate(pieces):
        begin = text.find(piece.plain, at) if piece.plain else at
        yield None if number == 0 else " " if begin > at else ""
        at = begin + len(piece.plain)


def copied(lines: Sequence[Line], spans: Sequence[tuple[int, int]]) -> str:
    """Return what selected lines say, without the line ends and the leads that only the layout has.

    `spans` has for each line the first and the last character (exclusive, -1 for the end) that is selected.
    """
    out: list[str] = []
    for number, (line, (start, end)) in enumerate(zip(lines, spans, strict=True)):
        text = line.content.plain
        is_inside = line.joint is not None or line.fill
        begin = max(start, line.n_lead) if is_inside else start
        if number:
            out.append("\n" if line.joint is None else line.joint)
        lead = text[begin : max(begin, line.n_lead)].replace(QUOTE, "> ")
        out.append(lead + text[max(begin, line.n_lead) : len(text) if end == -1 else end])
    return "".join(out)
