"""Why KV could not be reused, in the reader's language: the reasons are those of `models.misses`."""

from __future__ import annotations

import re

from chatapp.texts import tr, tr_later

_CLAUSES = {
    tr_later("nothing stored"): tr_later("nothing was stored of this conversation"),
    tr_later("too small to pay"): tr_later("they were too few for reading from disk to pay"),
    tr_later("evicted to stay within the budget"): tr_later(
        "what was stored of them was deleted to stay within the budget"
    ),
    tr_later("a stored file is missing"): tr_later("a stored file is missing"),
    tr_later("KV on disk is off"): tr_later("keeping KV on disk is switched off"),
    tr_later("cut at token {n} by edited text"): tr_later(
        "the text before them was changed (first difference at token {n})"
    ),
    tr_later("cut at token {n} by template"): tr_later(
        "the chat template puts something else there (first difference at token {n})"
    ),
    tr_later("cut at token {n} by context limit"): tr_later(
        "there was no room in the context to restore more than {n} tokens"
    ),
    tr_later("stored up to token {n}"): tr_later("no more than the first {n} tokens of this conversation were stored"),
    tr_later("cut at token {n}: this model cannot go back further on"): tr_later(
        "this model's memory can only be restored at stored points, the last of which was at token {n}"
    ),
}
"""Reasons, and what stands for them behind 'because'."""
_OTHERS = (
    tr_later("no state stored to go back to"),
    tr_later("stored under other settings: {detail}"),
    tr_later("damaged file set aside: {detail}"),
    tr_later("stored KV cannot be read: {detail}"),
    tr_later("self-test failed: {detail}"),
)
"""Reasons that a clause of their own would say no better."""


def _pattern(text: str) -> re.Pattern[str]:
    """What a reason looks like that has values in the braces; statistics leave out numbers."""
    fields = {r"\{n\}": r"(?P<n>[\d,]+|…)", r"\{detail\}": r"(?P<detail>.*)"}
    escaped = re.escape(text)
    for field, found in fields.items():
        escaped = escaped.replace(field, found)
    return re.compile(escaped, re.DOTALL)


_PATTERNS = {text: _pattern(text) for text in (*_CLAUSES, *_OTHERS)}


def reason_text(reason: str) -> str:
    """Return a reason in the reader's language; one that is not known here comes as it is."""
    text, fields = _read(reason)
    return tr(text).format(**fields) if text else reason


def because(reason: str) -> str:
    """Return why KV could not be reused as a clause behind 'because'."""
    text, fields = _read(reason)
    if clause := _CLAUSES.get(text):
        return tr(clause).format(**fields)
    return tr("what was stored could not be used ({reason})").format(reason=reason_text(reason))


def _read(reason: str) -> tuple[str, dict[str, str]]:
    """Which text a reason is, empty if none, and what stands in its braces."""
    for text, pattern in _PATTERNS.items():
        if found := pattern.fullmatch(reason):
            return text, found.groupdict()
    return "", {}
