"""Markdown as blocks that a layout can draw: what an answer says, apart from how wide it is drawn.

A block carries what stands in front of its lines (bullets, quote bars), so that a list or a quote is not a tree of
widgets: one answer is one widget, however long it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode
from textual.content import Content, Span
from textual.highlight import highlight
from textual.style import Style

from chatapp.tui.formulas import in_unicode, protect

LINK = "link"
"""Key of a link's address in the style of its text."""

QUOTE = "▌ "
"""Stands in front of each line of a quote."""

_BULLETS = "•◦▪"
_HEADINGS = ("bold underline $primary", "bold $primary", "bold $secondary", "bold", "bold", "italic")
_INLINE = {"em": "italic", "strong": "bold", "s": "strike"}
_CODE = "$text-warning on $warning-muted"
_FORMULA = "italic $text-secondary"
_HIGHLIGHTED = 60_000
"""Characters of a code block that get colours; longer ones would hold up the window."""


@dataclass(frozen=True, slots=True)
class Lead:
    """What stands in front of the first line of a block, and of its others."""

    first: Content = field(default_factory=Content)
    rest: Content = field(default_factory=Content)


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph, a heading, or what a list item says. `gap` stands in a line above it, None for no such line."""

    content: Content
    lead: Lead = field(default_factory=Lead)
    gap: Content | None = None


@dataclass(frozen=True, slots=True)
class Code:
    """A block of code; its lines are told from wrapped ones when they are copied."""

    content: Content
    language: str
    lead: Lead
    gap: Content | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table; `aligns` has "left", "center" or "right" for each column."""

    header: tuple[Content, ...]
    rows: tuple[tuple[Content, ...], ...]
    aligns: tuple[str, ...]
    lead: Lead
    gap: Content | None


@dataclass(frozen=True, slots=True)
class Rule:
    """A line across."""

    lead: Lead
    gap: Content | None


Block = Text | Code | Table | Rule


def parser() -> MarkdownIt:
    """Return a parser of GitHub's Markdown that shows HTML as text and keeps formulas whole."""
    return protect(MarkdownIt("gfm-like", {"html": False}))


def parse(text: str) -> tuple[list[Block], int, int]:
    """Return the blocks of a text, the line where its last top-level block begins, and how many blocks stand before."""
    tokens = parser().parse(text)
    last = max((token.map[0] for token in tokens if token.map and token.level == 0), default=0)
    blocks: list[Block] = []
    n_before = 0
    for node in SyntaxTreeNode(tokens).children:
        if node.map and node.map[0] == last:
            n_before = len(blocks)
        blocks += _blocks(node, _Leader(), None if not blocks else Content())
    return blocks, last, n_before


class _Leader:
    """Hands out what stands in front: the first block of an item gets its bullet, the others its indent."""

    def __init__(self, first: Content | None = None, rest: Content | None = None) -> None:
        self.first = first if first is not None else Content()
        self.rest = rest if rest is not None else Content()

    def take(self) -> Lead:
        """Return the lead of the next block."""
        lead = Lead(self.first, self.rest)
        self.first = self.rest
        return lead


def _blocks(node: SyntaxTreeNode, leader: _Leader, gap: Content | None, depth: int = 0) -> Iterator[Block]:
    match node.type:
        case "paragraph" | "inline":
            yield Text(_content_of(node), leader.take(), gap)
        case "heading":
            style = _HEADINGS[int(node.tag[1]) - 1]
            yield Text(_content_of(node).stylize_before(style), leader.take(), gap)
        case "bullet_list" | "ordered_list":
            yield from _list(node, leader, gap, depth)
        case "blockquote":
            bar = Content.assemble((QUOTE, "$primary 60%"))
            inner = _Leader(leader.take().first + bar, leader.rest + bar)
            yield from _children(node, inner, gap, Content() + inner.rest, depth)
        case "fence" | "code_block":
            language = (node.info.split() or [""])[0]
            yield Code(highlighted(node.content.removesuffix("\n"), language), language, leader.take(), gap)
        case "formula_block":
            yield Text(_formula(node.content), leader.take(), gap)
        case "table":
            yield _table(node, leader.take(), gap)
        case "hr":
            yield Rule(leader.take(), gap)
        case _:  # nothing else is produced by this parser; its text must not be lost if one day it is
            yield Text(Content(node.content), leader.take(), gap)


def _children(
    node: SyntaxTreeNode, leader: _Leader, gap: Content | None, next_gap: Content | None, depth: int
) -> Iterator[Block]:
    if not node.children:
        yield Text(Content(), leader.take(), gap)
    for child in node.children:
        yield from _blocks(child, leader, gap, depth)
        gap = next_gap


def _list(node: SyntaxTreeNode, leader: _Leader, gap: Content | None, depth: int) -> Iterator[Block]:
    is_tight = all(child.hidden for item in node.children for child in item.children if child.type == "paragraph")
    number = int(node.attrs.get("start", 1)) if node.type == "ordered_list" else None
    n_digits = len(str(number + len(node.children) - 1)) if number is not None else 0
    between = None if is_tight else Content() + leader.rest
    for item in node.children:
        if number is None:
            mark, drop = _BULLETS[min(depth, len(_BULLETS) - 1)], 0
            if box := _box(item):
                mark, drop = box, 4
        else:
            mark, drop, number = f"{number:>{n_digits}}.", 0, number + 1
        bullet = Content.assemble((mark + " ", "$text-primary"))
        inner = _Leader(leader.take().first + bullet, leader.rest + " " * len(bullet))
        for at, block in enumerate(_children(item, inner, gap, between, depth + 1)):
            yield _without(block, drop) if at == 0 else block
        gap = between


def _box(item: SyntaxTreeNode) -> str:
    """Return the box of a task list's item, empty for another item."""
    text = item.children[0].children[0].content if item.children and item.children[0].children else ""
    if item.children and item.children[0].type == "paragraph" and text[:4].lower() in ("[ ] ", "[x] "):
        return "☐" if text[1] == " " else "☑"
    return ""


def _without(block: Block, n: int) -> Block:
    return Text(block.content[n:], block.lead, block.gap) if n and isinstance(block, Text) else block


def _table(node: SyntaxTreeNode, lead: Lead, gap: Content | None) -> Table:
    rows = [row.children for part in node.children for row in part.children]
    header, *body = rows
    aligns = tuple(str(cell.attrs.get("style", "")).removeprefix("text-align:") or "left" for cell in header)
    cells = [tuple(_content_of(cell) for cell in row) for row in body]
    return Table(tuple(_content_of(cell) for cell in header), tuple(cells), aligns, lead, gap)


def highlighted(code: str, language: str) -> Content:
    """Return code with the colours of its language, if that is known and the code is not too long."""
    code = code.expandtabs(4)
    if not language or len(code) > _HIGHLIGHTED:
        return Content(code)
    shown = highlight(code, language=language)
    # A lexer may drop blank lines at the ends; what is shown is what was written.
    return shown if shown.plain == code else Content(code)


def _content_of(node: SyntaxTreeNode) -> Content:
    """Return the text of a node that holds inline text."""
    inline = node if node.type == "inline" else next((child for child in node.children if child.type == "inline"), None)
    if inline is None or inline.token is None or inline.token.children is None:
        return Content()
    return _inline(inline.token.children)


def _inline(tokens: list[Token]) -> Content:
    text: list[str] = []
    spans: list[Span] = []
    opened: list[tuple[int, list[Style | str]]] = []
    n = 0

    def add(part: str, *styles: Style | str) -> None:
        nonlocal n
        text.append(part)
        spans.extend(Span(n, n + len(part), style) for style in styles)
        n += len(part)

    for token in tokens:
        if token.type == "link_open":
            opened.append((n, [Style.from_meta({LINK: str(token.attrs.get("href", ""))}), "underline $text-accent"]))
        elif token.nesting == 1:
            opened.append((n, [_INLINE.get(token.tag, "")]))
        elif token.nesting == -1 and opened:
            start, styles = opened.pop()
            spans.extend(Span(start, n, style) for style in styles if n > start)
        elif token.type == "code_inline":
            add(token.content, _CODE)
        elif token.type == "formula":
            formula = _formula(token.content)
            add(formula.plain, _FORMULA)
        elif token.type == "image":
            address = Style.from_meta({LINK: str(token.attrs.get("src", ""))})
            add(f"[image: {token.content}]", address, "underline $text-accent")
        elif token.type in ("softbreak", "hardbreak"):
            add("\n")
        else:
            add(token.content)
    return Content("".join(text), spans)


def _formula(source: str) -> Content:
    return Content.styled(in_unicode(source), _FORMULA)
