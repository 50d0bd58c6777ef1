"""What a GBNF grammar may be: checked before native code reads it, which would not survive all of it."""

from __future__ import annotations

import re

from models.errors import GrammarError

MAX_GRAMMAR_BYTES = 64 << 10
MAX_NESTING = 100
"""Parentheses in parentheses. The native reader calls itself for each, and ends the process thousands deep."""
MAX_RULES = 2000

_ROOT = re.compile(r"^\s*root\s*::=", re.MULTILINE)
_RULE = re.compile(r"::=")
# What may hold a parenthesis that opens nothing: literals, character classes, comments.
# One that is not closed reaches to the end, so that each character is looked at once.
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"?|\[(?:\\.|[^\]\\])*\]?|#[^\n]*', re.DOTALL)
_BRACKETS = re.compile(r"[()]")


def check_grammar(text: str) -> None:
    """Raise `GrammarError` for a grammar that is too large, too deep, has no root, or cannot be handed on at all."""
    if "\0" in text or len(text.encode("utf-8", "replace")) > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"The grammar is too large: {MAX_GRAMMAR_BYTES >> 10} KiB of text without NUL is the limit.")
    bare = _QUOTED.sub(" ", text)
    if not _ROOT.search(bare):
        raise GrammarError("The grammar has no rule named root, where an answer begins.")
    if len(_RULE.findall(bare)) > MAX_RULES:
        raise GrammarError(f"The grammar has more than {MAX_RULES:,} rules.")
    depth = deepest = 0
    for bracket in _BRACKETS.findall(bare):
        depth += 1 if bracket == "(" else -1
        deepest = max(deepest, depth)
    if deepest > MAX_NESTING:
        raise GrammarError(f"The grammar has parentheses in parentheses more than {MAX_NESTING} deep.")
