"""Messages -> token runs: glue tokenized with control tokens on, bodies with them off, each on its own.

Tokenized apart they give what the whole text gives, but for a body that begins with a line break, or ends in what
joins with its closing: such a body never changes the tokens around it.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from models.engine import Entry, Role, TokenRun
from models.errors import TemplateError
from models.glue import Glue

Tokenize = Callable[[str, bool], list[int]]
"""Text, and whether control tokens in it are meant as such -> token ids, without BOS."""

_TEXT = "x"
"""Stands for any text without control tokens."""


@dataclass(frozen=True, slots=True)
class AnswerGlue:
    """The token ids around an answer, those that its body begins with, and what stands before one without reasoning.

    `opening` + `start` are the generation prompt. `start` begins the body: the reasoning that the prompt begins, ended
    at once if the answer is not to reason. `past_opening` is what the template opens earlier answers with.
    """

    opening: tuple[int, ...]
    start: tuple[int, ...]
    closing: tuple[int, ...]
    past_opening: tuple[int, ...]


def tokenize_entries(
    entries: Sequence[Entry], glue: Glue, tokenize: Tokenize, add_bos: int | None
) -> tuple[TokenRun, ...]:
    """Return the run of each entry: the one it has, else opening, body and closing tokenized on their own.

    A run that was made for another place (a message whose predecessor was left out) begins as one does here. Only glue
    may become control tokens; a body never does. `add_bos` is the BOS id where the tokenizer wants one; it is put first
    unless the template has printed it. Raises `TemplateError` for roles the template does not allow.
    """
    runs: list[TokenRun] = []
    previous: Role | None = None
    openings = _user_openings(glue, tokenize, add_bos) if any(entry.run for entry in entries) else {}
    for entry in entries:
        run = entry.run or _run(entry, previous, glue, tokenize, add_bos)
        if entry.role == "user" and _is_misplaced(run, previous, openings):
            run = _begun(run, openings[previous])
        runs.append(run)
        previous = entry.role
    return tuple(runs)


def answer_glue(
    previous: Role | None, glue: Glue, tokenize: Tokenize, *, may_reason: bool = True, has_grammar: bool = False
) -> AnswerGlue:
    """Return the token ids around an answer to a message of `previous`.

    One that may not reason, or has to follow a grammar, begins behind its reasoning.

    The generation prompt is tokenized as a whole, and its reasoning start begins the body if a token begins with it.
    """
    before = _end_of(previous, glue)
    prompt = _ids_behind(before, glue.opening(previous, "assistant"), True, tokenize)
    opening = _ids_behind(before, glue.assistant_opening, True, tokenize)
    if prompt[: len(opening)] != opening:
        opening = prompt
    start = prompt[len(opening) :]
    if has_grammar or not may_reason:
        text = glue.no_reasoning or ("" if may_reason else glue.empty_reasoning)
        start += _ids_behind(glue.assistant or before, text, True, tokenize)
    return AnswerGlue(
        tuple(opening),
        tuple(start),
        tuple(_ids_behind(_TEXT, glue.closing("assistant"), True, tokenize)),
        # A space at its end belongs to a body, which is there already.
        tuple(_ids_behind(before, glue.past_assistant.removesuffix(" "), True, tokenize)),
    )


def joined(runs: Sequence[TokenRun]) -> list[int]:
    """Return the tokens of messages, one behind the other: the KV prefix they are."""
    return [token for run in runs for token in run.ids]


def ends_of(runs: Sequence[TokenRun]) -> list[int]:
    """Return the positions behind each message."""
    return list(itertools.accumulate(len(run.ids) for run in runs))


def opening_ids(previous: Role | None, role: Role, glue: Glue, tokenize: Tokenize) -> list[int]:
    """Return the token ids that any message of `role` with a body begins with behind one of `previous`, without BOS.

    Raises `TemplateError` as `Glue.opening` does.
    """
    text = glue.opening(previous, role).removesuffix(" ")
    return _ids_behind(_end_of(previous, glue), text, True, tokenize)


def ids_behind_text(text: str, tokenize: Tokenize) -> list[int]:
    """Return the token ids of a text without control tokens that goes on where other text ends."""
    return _ids_behind(_TEXT, text, False, tokenize)


def _run(entry: Entry, previous: Role | None, glue: Glue, tokenize: Tokenize, add_bos: int | None) -> TokenRun:
    opening = glue.opening(previous, entry.role)
    if entry.role == "assistant":
        opening = glue.past_opening(entry.text)
    # Tokenizers make one token of a space and the word behind it: a space that ends the opening goes with the body.
    space = " " if opening.endswith(" ") else ""
    opening = opening.removesuffix(space)
    before = _end_of(previous, glue)
    opening_run = _ids_behind(before, opening, True, tokenize)
    if previous is None:
        opening_run = _with_one_bos(opening_run, glue, tokenize, add_bos)
    text = space + glue.body(entry.role, entry.text)
    start: list[int] = []
    if entry.role == "assistant" and opening == glue.assistant_opening and text.startswith(glue.reasoning_start):
        # What the generation prompt itself says cannot be forged: it is its tokens here too.
        start = _ids_behind(before + opening, glue.reasoning_start, True, tokenize)
        opening, text = opening + glue.reasoning_start, text[len(glue.reasoning_start) :]
    body = [*start, *_body_ids(before + opening, text, glue.guarded(entry.role), tokenize)]
    closing = _ids_behind(_TEXT if body else before + opening, glue.closing(entry.role), True, tokenize)
    body_end = len(opening_run) + len(body)
    return TokenRun((*opening_run, *body, *closing), len(opening_run), body_end)


def _user_openings(glue: Glue, tokenize: Tokenize, add_bos: int | None) -> dict[Role | None, tuple[int, ...]]:
    """The token ids that a message of the user begins with, by whom it follows (None: nobody)."""
    found: dict[Role | None, tuple[int, ...]] = {}
    places: tuple[Role | None, ...] = (None, "system", "user", "assistant")
    for before in places:
        with contextlib.suppress(TemplateError):
            ids = opening_ids(before, "user", glue, tokenize)
            found[before] = tuple(ids if before is not None else _with_one_bos(ids, glue, tokenize, add_bos))
    return found


def _begun(run: TokenRun, opening: tuple[int, ...]) -> TokenRun:
    """A run with another opening."""
    moved = len(opening) - run.body_start
    return TokenRun((*opening, *run.ids[run.body_start :]), len(opening), run.body_end + moved)


def _is_misplaced(run: TokenRun, previous: Role | None, openings: Mapping[Role | None, tuple[int, ...]]) -> bool:
    """True if a message of the user begins as one does behind somebody else, and not as one does here.

    What begins as none does is from an earlier form of the template, such as that of another day, and stays.
    """
    own = run.ids[: run.body_start]
    return previous in openings and own != openings[previous] and own in openings.values()


def _end_of(previous: Role | None, glue: Glue) -> str:
    """What stands before an opening, as far as it matters to a tokenizer."""
    return "" if previous is None else glue.closing(previous) or _TEXT


def _with_one_bos(ids: list[int], glue: Glue, tokenize: Tokenize, add_bos: int | None) -> list[int]:
    """Put BOS first if the tokenizer wants it, once if the template prints it too, or more than once."""
    printed = tokenize(glue.bos_token, True) if glue.bos_printed else []
    bos = printed[0] if add_bos is None and len(printed) == 1 else add_bos
    if bos is None:
        return ids
    n_printed = next((n for n, token in enumerate(ids) if token != bos), len(ids))
    return [bos, *ids[n_printed:]] if n_printed or add_bos is not None else ids


def _body_ids(before: str, text: str, guarded: Collection[str], tokenize: Tokenize) -> list[int]:
    """Return the token ids of a body; what is `guarded` stays text, even where the vocabulary calls it ordinary.

    Vocabularies list some marks as 'user defined', and those are recognised in any text: such a mark is cut in two.
    """
    marks = [mark for mark in guarded if mark in text and _is_found_in_text(mark, tokenize)]
    if not marks:
        return _ids_behind(before, text, False, tokenize)
    ids: list[int] = []
    start = 0
    for found in re.finditer("|".join(map(re.escape, sorted(marks, key=len, reverse=True))), text):
        ids += _ids_behind(before if start == 0 else _TEXT, text[start : found.start() + 1], False, tokenize)
        start = found.start() + 1
    return ids + _ids_behind(_TEXT, text[start:], False, tokenize)


def _is_found_in_text(mark: str, tokenize: Tokenize) -> bool:
    ids = tokenize(mark, False)
    return len(ids) == 1 and ids == tokenize(mark, True)


def _ids_behind(before: str, text: str, special: bool, tokenize: Tokenize) -> list[int]:
    """Return the token ids that `text` has behind `before`.

    Most tokenizers give them for the text alone. SentencePiece ones put a space before each text they are given:
    right at the start and behind a control token, where they do the same inside a text, and wrong behind other text.
    There a line break is put before it, which never joins with what follows, and taken away again.
    """
    if not text:
        return []
    if before and _puts_space(tokenize) and not _is_put_behind(before, tokenize):
        line = tokenize("\n", False)
        ids = tokenize("\n" + text, special)
        if ids[: len(line)] == line:
            return ids[len(line) :]
    return tokenize(text, special)


def _puts_space(tokenize: Tokenize) -> bool:
    """True when a text has other tokens at the start than behind a line break: a space is put before it."""
    return tokenize("\n" + _TEXT, False) != tokenize("\n", False) + tokenize(_TEXT, False)


def _is_put_behind(before: str, tokenize: Tokenize) -> bool:
    """True when a text behind `before` has the tokens it has at the start."""
    return tokenize(before + _TEXT, True) == tokenize(before, True) + tokenize(_TEXT, False)
