r"""Formulas in Markdown: kept as they were written, and shown in Unicode where nothing is lost by it.

Markdown would take the backslashes of `\(a\)` away and read `*` and `_` in a formula as emphasis. `protect` adds
two rules to a parser that make tokens of type `formula` of them, whose content is the source with its marks.
"""

from __future__ import annotations

import re
from unicodedata import lookup

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

_CLOSING = {"\\(": "\\)", "\\[": "\\]", "$$": "$$", "$": "$"}
_LONGEST = 4000
"""Characters of a formula at most: what has no end does not make the parser look through the whole text again."""

_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa mu nu xi pi rho sigma tau phi chi psi omega "
    "Gamma Delta Theta Xi Pi Sigma Phi Psi Omega"
)
_SYMBOLS = {
    "lambda": "λ", "Lambda": "Λ",
    "times": "×", "cdot": "·", "div": "÷", "pm": "±", "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠",
    "neq": "≠", "approx": "≈", "equiv": "≡", "infty": "∞", "to": "→", "rightarrow": "→", "Rightarrow": "⇒",
    "implies": "⇒", "iff": "⇔", "in": "∈", "notin": "∉", "subset": "⊂", "subseteq": "⊆", "cup": "∪", "cap": "∩",
    "forall": "∀", "exists": "∃", "sum": "∑", "prod": "∏", "int": "∫", "partial": "∂", "nabla": "∇", "ldots": "…",
    "dots": "…", "cdots": "⋯", "neg": "¬", "land": "∧", "lor": "∨", "emptyset": "∅", "circ": "∘", "degree": "°",
}  # fmt: skip
_SYMBOLS |= {
    name: lookup(f"GREEK {'SMALL' if name.islower() else 'CAPITAL'} LETTER {name.upper()}") for name in _GREEK.split()
}
_UP = str.maketrans("0123456789+-n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ")
_DOWN = str.maketrans("0123456789+-", "₀₁₂₃₄₅₆₇₈₉₊₋")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_RAISED = re.compile(r"\^(?:\{([0-9+\-n]{1,8})\}|([0-9n]))")
_LOWERED = re.compile(r"_(?:\{([0-9+\-]{1,8})\}|([0-9]))")


def protect(parser: MarkdownIt) -> MarkdownIt:
    """Let a parser keep formulas whole; return it."""
    parser.inline.ruler.before("escape", "formula", _inline)
    parser.block.ruler.before("fence", "formula_block", _block, {"alt": ["paragraph", "blockquote", "list"]})
    return parser


def in_unicode(source: str) -> str:
    """Return a formula, its marks included, in Unicode; as it is if any part of it has no plain sign."""
    mark = next(mark for mark in _CLOSING if source.startswith(mark))
    inside = source[len(mark) : -len(_CLOSING[mark])].strip()
    shown = _COMMAND.sub(lambda found: _SYMBOLS.get(found[1], found[0]), inside)
    shown = _RAISED.sub(lambda found: (found[1] or found[2]).translate(_UP), shown)
    shown = _LOWERED.sub(lambda found: (found[1] or found[2]).translate(_DOWN), shown)
    return source if not shown or any(sign in shown for sign in "\\{}^_&") else shown


def _inline(state: StateInline, silent: bool) -> bool:
    end = _end(state.src, state.pos, state.posMax)
    if end is None:
        return False
    if not silent:
        token = state.push("formula", "", 0)
        token.content = state.src[state.pos : end]
    state.pos = end
    return True


def _end(text: str, at: int, limit: int) -> int | None:
    """Return where the formula that begins at `at` ends, None if none begins there."""
    if text[at : at + 1] not in ("\\", "$"):
        return None
    opening = text[at : at + 2] if text[at : at + 2] in _CLOSING else text[at : at + 1]
    if opening not in _CLOSING:
        return None
    begin = at + len(opening)
    end = text.find(_CLOSING[opening], begin, min(limit, at + _LONGEST))
    if end <= begin:
        return None
    inside = text[begin:end]
    # "$5 and $6" is money: a formula in single dollars touches both of them, and no digit follows.
    is_money = opening == "$" and (
        inside[0].isspace() or inside[-1].isspace() or "\n" in inside or text[end + 1 : end + 2].isdigit()
    )
    return None if is_money or "\n\n" in inside else end + len(_CLOSING[opening])


def _block(state: StateBlock, start: int, last: int, silent: bool) -> bool:
    if state.is_code_block(start):
        return False
    begin = state.bMarks[start] + state.tShift[start]
    opening = state.src[begin : begin + 2]
    if opening not in ("\\[", "$$"):
        return False
    for line in range(start, last):
        text = state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]].rstrip()
        inside = text[2:] if line == start else text
        if inside.endswith(_CLOSING[opening]) or not text:
            break
    else:
        return False
    if not text:
        return False
    if not silent:
        token = state.push("formula_block", "", 0)
        token.map = [start, line + 1]
        token.block = True
        token.content = state.getLines(start, line + 1, state.blkIndent, False).strip()
    state.line = line + 1
    return True
