"""Finds text in a system prompt that changes from run to run, and moves it out; pure.

What is found: full dates, times of day beside a date or with seconds, words like "today is" with what they say,
counters and ids with their names, random ids, template variables for any of these. What is not, because it stays the
same: code (fenced or between backticks), addresses of web pages, years and months alone, versions, a date behind a word
that fixes it ("since", "born", "cutoff", ...) and examples ("such as", "e.g.", "format", ...).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sessions import volatile
from sessions.volatile import Kind

__all__ = ["Finding", "Kind", "find_volatile", "split_volatile"]

_PROTECTED = re.compile(
    r"^[ ]{0,3}(?P<fence>```+|~~~+).*?(?:^[ ]{0,3}(?P=fence)[`~]*[ \t]*$|\Z)"  # a fence that nothing ends goes on
    r"|(?P<tick>`+)(?!`)[^\n]{1,500}?(?<!`)(?P=tick)(?!`)"
    r"|\b(?:https?|ftp|data):[^\s<>\"']+",
    re.DOTALL | re.MULTILINE,
)
_FIXED_BEFORE = re.compile(
    r"(?:\b(?:e\. ?g\.|i\. ?e\.|z\. ?B\.|for example|for instance|such as|like|examples?|formats?|formatted as|"
    r"since|until|born(?: on)?|founded(?: on)?|released(?: on)?|published(?: on)?|dated|effective(?: from)?|"
    r"version|v|cut-?off(?: date)?|cutoff is|beispiel|seit|bis zum|geboren(?: am)?|par exemple|depuis|"
    r"por ejemplo|desde)|예(?:를 들어|시)?|형식|例(?:えば|如)?|格式|形式)[\s:,;=(\[\"'“”‘’「（：、]*\Z",
    re.IGNORECASE,
)
_LOOK_BACK = 40
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]]*[ \t]+|[。！？]+[」』”’）]*[ \t]*")


@dataclass(frozen=True, slots=True)
class Finding:
    """`text[start:end]` changes from run to run; `reason` says what it is, such as "a date"."""

    start: int
    end: int
    text: str
    kind: Kind
    reason: str


def find_volatile(text: str) -> list[Finding]:
    """Return what changes from run to run, in the text's order; no two overlap."""
    protected = [match.span() for match in _PROTECTED.finditer(text)]
    spans = sorted(span for span in volatile.spans(text) if not _is_fixed(text, span, protected))
    merged: list[volatile.Span] = []
    for span in spans:
        if merged and span.start < merged[-1].end:
            merged[-1] = merged[-1].through(span.end)
        else:
            merged.append(span)
    return [
        Finding(span.start, span.end, text[span.start : span.end], span.kind, volatile.REASONS[span.kind])
        for span in merged
    ]


def split_volatile(text: str) -> tuple[str, str]:
    """Return the text without the sentences that hold a finding, and those sentences, a line each.

    Nothing is lost but white space at their borders. Without a finding, the text stays as it is. What stays has none:
    sentences go until that is so.
    """
    units = list(_units(text))
    moved: set[int] = set()
    while True:
        stable, places = _without(units, moved)
        found = find_volatile(stable)
        if not found:
            break
        moved |= {
            number for number, start, end in places for finding in found if start < finding.end and finding.start < end
        }
    if not moved:
        return text, ""
    return stable, "\n".join(piece for number in sorted(moved) if (piece := units[number].text.strip()))


@dataclass(frozen=True, slots=True)
class _Unit:
    """A sentence with the space behind it, or the end of a line, with the number of the line."""

    text: str
    line: int
    is_end: bool


def _units(text: str) -> Iterator[_Unit]:
    for number, line in enumerate(text.splitlines(keepends=True)):
        body = line.rstrip("\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029")
        start = 0
        for end in _SENTENCE_END.finditer(body):
            yield _Unit(body[start : end.end()], number, is_end=False)
            start = end.end()
        if start < len(body):
            yield _Unit(body[start:], number, is_end=False)
        if len(body) < len(line):
            yield _Unit(line[len(body) :], number, is_end=True)


def _without(units: list[_Unit], moved: set[int]) -> tuple[str, list[tuple[int, int, int]]]:
    """Return what is left without some units, and where each that is left stands in it.

    A line of which nothing is left goes with its end; with anything moved, so does white space around the whole.
    """
    held = {unit.line for number, unit in enumerate(units) if not unit.is_end and number not in moved}
    emptied = {units[number].line for number in moved} - held
    kept = [
        (number, unit.text)
        for number, unit in enumerate(units)
        if number not in moved and not (unit.is_end and unit.line in emptied)
    ]
    whole = "".join(text for _, text in kept)
    stable = whole.strip() if moved else whole
    at = -(len(whole) - len(whole.lstrip())) if moved else 0
    places: list[tuple[int, int, int]] = []
    for number, text in kept:
        places.append((number, at, at + len(text)))
        at += len(text)
    return stable, places


def _is_fixed(text: str, span: volatile.Span, protected: list[tuple[int, int]]) -> bool:
    if any(start < span.end and span.start < end for start, end in protected):
        return True
    before = text[max(0, span.start - _LOOK_BACK) : span.start]
    return span.kind in ("date", "time", "id") and bool(_FIXED_BEFORE.search(before))
