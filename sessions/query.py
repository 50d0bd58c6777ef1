"""What somebody types to search, and where it stands in a text; pure.

Plain words are beginnings of words and all of them must be there; a "quoted phrase" is taken as it is. `tag:NAME`,
`in:title` and `is:open|done|pinned|archived` narrow the search. Everything else is text to look for: no query is wrong.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from sessions.hygiene import tidy
from sessions.terms import PIECES, SPACELESS, WORD_BEGINS, WORD_ENDS, ends_spaceless, has_words, wanted

Quality: TypeAlias = Literal["open", "done", "pinned", "archived"]
Span: TypeAlias = tuple[int, int]

MAX_TERMS = 16
MAX_TERM_CHARS = 100
"""More is not looked for."""

SNIPPET_CHARS = 160
_LEAD_CHARS = 40
"""What a snippet shows before its first match."""
_CHUNK_CHARS = 20_000
_MAX_FOUND = 200

_DIACRITIC = re.compile("[\\u0300-\\u036f\\u1ab0-\\u1aff\\u1dc0-\\u1dff\\u20d0-\\u20ff]")
_PIECE = re.compile(r'"([^"]*)(?:"|$)|(\S+)')


@dataclass(frozen=True, slots=True)
class Term:
    """A word or a phrase. Its last word may go on, if `is_open`."""

    text: str
    is_open: bool

    @property
    def match(self) -> str:
        """The term in the index's own query language."""
        more = " *" if self.is_open or ends_spaceless(self.text) else ""
        return '"' + wanted(self.text).replace('"', '""') + '"' + more

    @property
    def pattern(self) -> str:
        """A regular expression for the term in a folded text."""
        parts = PIECES.findall(fold(self.text)[0])
        pattern = ""
        for before, part in zip([None, *parts], parts, strict=False):
            if before is not None:
                # Two words are told apart by something between them, a word and a run without spaces are not.
                pattern += r"[\W_]*" if SPACELESS.match(before) or SPACELESS.match(part) else r"[\W_]+"
            pattern += re.escape(part)
        head = WORD_BEGINS if parts and not SPACELESS.match(parts[0]) else ""
        if parts and SPACELESS.match(parts[-1]):
            return head + pattern + "(?![\u1160-\u11ff])"  # else half a Hangul syllable would do
        return head + pattern + ("" if self.is_open else WORD_ENDS)


@dataclass(frozen=True, slots=True)
class Query:
    """A search: its terms, and what it is narrowed to."""

    terms: tuple[Term, ...] = ()
    tags: tuple[str, ...] = ()
    qualities: frozenset[Quality] = frozenset()
    is_in_title: bool = False

    @property
    def match(self) -> str | None:
        """All terms in the index's own query language; None where there is nothing to look for."""
        return " AND ".join(term.match for term in self.terms) or None


def parse(text: str) -> Query:
    """Return what was typed as a query."""
    terms: list[Term] = []
    tags: list[str] = []
    qualities: set[Quality] = set()
    is_in_title = False
    for quoted, word in _PIECE.findall(tidy(text)[0]):
        key, _, value = word.lower().partition(":")
        quality: Quality | None = next((known for known in get_args(Quality) if (key, value) == ("is", known)), None)
        if quality:
            qualities.add(quality)
        elif key == "tag" and value.strip("#"):
            tags.append(value.removeprefix("#"))
        elif (key, value) == ("in", "title"):
            is_in_title = True
        elif has_words(quoted or word):
            terms.append(Term((quoted or word)[:MAX_TERM_CHARS], is_open=not quoted))
    return Query(tuple(terms[:MAX_TERMS]), tuple(tags), frozenset(qualities), is_in_title)


def snippet(text: str, query: Query) -> tuple[str, tuple[Span, ...]]:
    """Return the part of a text that shows most of the query's terms, and where they stand in that part.

    Positions count characters of the part. A term that the index finds and this does not see is not marked.
    """
    start = _best_start(text, query)
    end = min(len(text), start + SNIPPET_CHARS)
    part = text[start:end]
    before = text[max(0, start - 1) : start]
    found = [(a - len(before), b - len(before)) for a, b, _ in spans(before + part, query) if a >= len(before)]
    return part, tuple(found)


def spans(text: str, query: Query) -> Iterator[tuple[int, int, int]]:
    """Find where terms stand in a text: begin, end, number of the term; in order, none inside another."""
    if not query.terms:
        return
    folded, places = fold(text)
    pattern = re.compile("|".join(f"({term.pattern})" for term in query.terms))
    for match in pattern.finditer(folded):
        assert match.lastindex, "each alternative is a group"
        if match.end() > match.start():
            yield places[match.start()], places[match.end() - 1] + 1, match.lastindex - 1


def fold(text: str) -> tuple[str, list[int] | range]:
    """Return a text without case and marks, and which character of it each of the folded ones comes from."""
    if text.isascii():
        return text.lower(), range(len(text))
    folded: list[str] = []
    places: list[int] = []
    for at, char in enumerate(text):
        for part in unicodedata.normalize("NFKD", char).lower():
            if not _DIACRITIC.match(part):
                folded.append(part)
                places.append(at)
    return "".join(folded), places


def _best_start(text: str, query: Query) -> int:
    found: list[tuple[int, int, int]] = []
    for at in range(0, len(text), _CHUNK_CHARS):
        for a, b, term in spans(text[at : at + _CHUNK_CHARS + SNIPPET_CHARS], query):
            found.append((at + a, at + b, term))
            if len(found) >= _MAX_FOUND:
                break
        if found:
            break
    if not found:
        return 0
    room = SNIPPET_CHARS - _LEAD_CHARS
    first = max(found, key=lambda one: (len({t for a, b, t in found if one[0] <= a and b <= one[0] + room}), -one[0]))
    if first[1] <= SNIPPET_CHARS:
        return 0
    start = first[0] - _LEAD_CHARS
    space = max(text.rfind(" ", start, first[0]), text.rfind("\n", start, first[0]))
    return space + 1 if space >= 0 else start
