"""Type-ahead: which tokens of a draft no typing behind it changes; pure. `models/readahead.py` evaluates them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from models.engine import Ahead, Entry, TokenRun
from models.stats import common_prefix

# A longer word is not waited for to end: no vocabulary has tokens of that length.
_LONGEST_WORD = 64

# Texts have about four to a token. Cutting more into tokens, only to find that they are too many, takes too long.
_CHARACTERS_A_TOKEN = 8

Runs = Callable[[Sequence[Entry]], Sequence[TokenRun]]
"""Messages -> their token runs, as `tokenruns.tokenize_entries` makes them."""


def may_fit(draft: str, n_ctx: int) -> bool:
    """Return False for a draft that is so long that its tokens need not be counted."""
    return len(draft) <= n_ctx * _CHARACTERS_A_TOKEN


def settled_text(draft: str) -> str:
    """Return a draft without its last word, which more letters would make another one."""
    text = draft.rstrip()
    word = len(text) - max((text.rfind(space) for space in " \n\t"), default=-1) - 1
    return text[: len(text) - min(word, _LONGEST_WORD)].rstrip()


@dataclass(frozen=True, slots=True)
class DraftTokens:
    """A prompt whose last message is a draft: what of it can be evaluated now.

    `tokens` are the history's first `n_history`, glue up to `body_start`, and the settled ones of the draft's text;
    `n_whole` is how many the whole prompt has.
    """

    tokens: tuple[int, ...]
    n_history: int
    body_start: int
    n_whole: int

    def ahead(self, n_resident: int) -> Ahead:
        """How much of the draft is ready if so many of `tokens` are resident."""
        return Ahead(max(0, n_resident - self.body_start), len(self.tokens) - self.body_start)


def draft_tokens(entries: Sequence[Entry], runs_of: Runs) -> DraftTokens:
    """Tokenize a prompt whose last message is a draft.

    Settled are the tokens that the draft has with its last word and without: so nothing needs to be known of how a
    vocabulary cuts texts into words.
    """
    *said, draft = entries
    *before, whole = runs_of(entries)
    cut = runs_of([*said, replace(draft, text=settled_text(draft.text), run=None)])[-1]
    n = min(common_prefix(whole.ids, cut.ids), cut.body_end)
    history = [token for run in before for token in run.ids]
    body_start = len(history) + whole.body_start
    tokens = (*history, *whole.ids[: max(n, whole.body_start)])
    return DraftTokens(tokens, len(history), body_start, len(history) + len(whole.ids))
