"""The tokens of one answer: the text they stand for, which of them are reasoning, and what ends it; pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from models.detokenizer import Detokenizer, Piece
from models.engine import TokenRun
from models.glue import Glue
from models.reasoning import block_of, family_named
from models.tokenruns import Tokenize

_DISTINCTIVE_CHARS = 8


def with_marks(piece: Piece, reasoning: str | None, tokenize: Tokenize) -> Piece:
    """Return `piece` with a text for the marks of a family that are control tokens: those have none of their own.

    Other control tokens stay without a text, and so do the marks of families that the template does not know.
    """
    family = family_named(reasoning)
    spoken: dict[int, bytes] = {}
    for mark in family.marks if family else ():
        ids = tokenize(mark, True)
        if len(ids) == 1 and not piece(ids[0]):
            spoken[ids[0]] = mark.encode()
    return (lambda token: spoken.get(token) or piece(token)) if spoken else piece


def implied_stops(glue: Glue, tokenize: Tokenize, piece: Piece, ends: Callable[[int], bool]) -> tuple[str, ...]:
    """Return what ends an answer as text, where no token of the closing glue ends it in this vocabulary.

    That is the closing itself; where it is white space alone, the opening of the next message, if it is distinctive.
    A control token whose text nobody sees is no text: `implied_ends` has it.
    """
    closing = glue.closing("assistant")
    if any(map(ends, tokenize(closing, True))):
        return ()
    if closing.strip():
        return () if implied_ends(glue, tokenize, piece, ends) else (closing.strip(),)
    following = glue.answer_user.strip()
    is_distinctive = any(mark in following for mark in glue.marks) or (
        len(following) >= _DISTINCTIVE_CHARS and re.search(r"[^\w\s]", following) is not None
    )
    return (following,) if is_distinctive and not any(map(ends, tokenize(following, True))) else ()


def implied_ends(glue: Glue, tokenize: Tokenize, piece: Piece, ends: Callable[[int], bool]) -> frozenset[int]:
    """Return the token that ends an answer though the vocabulary does not say so: one without a text, the closing."""
    ids = tokenize(glue.closing("assistant").strip(), True)
    return frozenset(ids) if len(ids) == 1 and not piece(ids[0]) and not ends(ids[0]) else frozenset()


def n_reasoning_tokens(ids: Sequence[int], text: str, piece: Piece) -> int | None:
    """Return how many tokens the reasoning of an answer takes, marks included; None when it has none."""
    block = block_of(text)
    if not block.is_reasoning:
        return None
    return len(ids) if block.is_open else _tokens_to(ids, block.end, piece)[0]


def stripped(
    run: TokenRun, text: str, past_opening: Sequence[int], piece: Piece, spell: Callable[[str], Sequence[int]]
) -> TokenRun | None:
    """Return an answer's run without the reasoning that its `text` begins with; None if that makes it no shorter.

    The body is what follows the block and the blank lines after it. Its ids stay what they are; only where a token
    reaches over that border is what it holds of the answer put into tokens by `spell`.
    """
    block = block_of(text)
    if not block.end:
        return None
    body: tuple[int, ...] = ()
    if not block.is_open:
        n_tokens, rest = _tokens_to(run.body, block.answer_start, piece)
        body = (*spell(rest), *run.body[n_tokens:])
    ids = (*past_opening, *body, *run.ids[run.body_end :])
    if len(ids) >= len(run.ids):
        return None
    return TokenRun(ids, len(past_opening), len(past_opening) + len(body))


def _tokens_to(ids: Sequence[int], n_chars: int, piece: Piece) -> tuple[int, str]:
    """Return how many tokens hold the first `n_chars` characters, and what text they hold beyond.

    Tokens without a text that follow at once count too: they belong to the mark before them.
    """
    detokenizer = Detokenizer(piece)
    n_tokens = n_found = 0
    beyond = ""
    while n_tokens < len(ids) and not (n_found >= n_chars and detokenizer.is_between_characters):
        text = detokenizer.feed(ids[n_tokens])
        beyond += text[max(0, n_chars - n_found) :]
        n_found += len(text)
        n_tokens += 1
    while not beyond and n_tokens < len(ids) and not piece(ids[n_tokens]):
        n_tokens += 1
    return n_tokens, beyond
