"""Token ids -> text, byte-exact across token borders, and the stop strings that end it.

The text of tokens is that of their bytes as UTF-8. U+FFFD stands for bytes that cannot become valid; a character that
is not whole where the tokens end is no text yet, and U+FFFD never stands for it: its bytes are in the ids, and the next
tokens may complete it. Each token's bytes are looked at once: the time is linear in the length of the text.
"""

from __future__ import annotations

import bisect
import codecs
from collections.abc import Callable, Iterable

Piece = Callable[[int], bytes]
"""A token id -> the bytes it stands for; a character may be spread over several tokens."""


class Detokenizer:
    """Turns token ids into text one at a time, holding back the bytes of a character that is not complete."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """Return the text that this token completes; U+FFFD stands for bytes that cannot become valid."""
        return self._utf8.decode(self._piece(token_id))

    @property
    def is_between_characters(self) -> bool:
        """True when no bytes are held back."""
        return not self._utf8.getstate()[0]


class StopMatcher:
    """Passes text on up to the first stop string, holding back what may turn out to be the start of one.

    The first to be *complete* wins, of two that end together the longer: so the result does not depend on how
    the text is cut into chunks. Empty stop strings never match.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._fallbacks = tuple(_fallbacks(stop) for stop in self._stops)
        # Knuth-Morris-Pratt: how much of each stop string the text so far ends with.
        self._matched = [0] * len(self._stops)
        self._held = ""
        self.found = ""
        """The stop string that was found."""

    def feed(self, text: str) -> tuple[str, bool]:
        """Return the text that is now safe to show, and whether a stop string is complete.

        After a match nothing is held, and what followed the stop string in `text` is dropped.
        """
        if not self._stops:
            return text, False
        window = self._held + text
        for end, char in enumerate(text, len(self._held) + 1):
            self.found = self._longest_match(char)
            if self.found:
                self._held = ""
                return window[: end - len(self.found)], True
        safe = len(window) - max(self._matched)
        self._held = window[safe:]
        return window[:safe], False

    def flush(self) -> str:
        """Return what is held back: no more text comes, so it is no stop string."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _longest_match(self, char: str) -> str:
        """Take in one character; return the longest stop string it completes, empty if none."""
        longest = ""
        for i, (stop, fallback) in enumerate(zip(self._stops, self._fallbacks, strict=True)):
            n = self._matched[i]
            while n and stop[n] != char:
                n = fallback[n]
            n += stop[n] == char
            self._matched[i] = n
            if n == len(stop) and n > len(longest):
                longest = stop
        return longest


class Decoder:
    """The text of one answer as its tokens arrive, up to a stop string; and the tokens it is made of.

    `feed` and `finish` find text, `take` hands out what is settled of it: whole tokens with exactly their text. A stop
    string may begin inside a token. Then `kept` whole tokens stand for the text up to there but for `tail`, which has
    to be tokenized anew: `token_ids[:kept]` + tokens of `tail` = the tokens of `text`.
    """

    def __init__(self, piece: Piece, stops: tuple[str, ...] = ()) -> None:
        self._detokenizer = Detokenizer(piece)
        self._matcher = StopMatcher(stops)
        self._parts: list[str] = []
        self._n_shown = 0
        self._n_decoded = 0
        self._n_tokens = 0
        # Where tokens end between two characters: borders_tokens[i] tokens make borders_chars[i] characters.
        self._borders_tokens = [0]
        self._borders_chars = [0]
        self._untaken = ""
        self._n_taken_chars = 0
        self._n_taken_tokens = 0
        self.is_stopped = False

    def begin(self, token_ids: Iterable[int]) -> None:
        """Take in tokens that are text whatever it says: the prompt, not the model, has chosen them."""
        assert not self._n_tokens, "an answer begins once"
        for token_id in token_ids:
            text = self._detokenizer.feed(token_id)
            self._n_tokens += 1
            self._n_decoded += len(text)
            if self._detokenizer.is_between_characters:
                self._mark_border()
            self._show(text)

    def feed(self, token_id: int) -> None:
        """Take in a token; `is_stopped` tells whether a stop string came."""
        assert not self.is_stopped, "no tokens after a stop string"
        text = self._detokenizer.feed(token_id)
        self._n_tokens += 1
        self._n_decoded += len(text)
        if self._detokenizer.is_between_characters:
            self._mark_border()
        shown, self.is_stopped = self._matcher.feed(text)
        self._show(shown)

    def finish(self) -> None:
        """No more tokens come: what was held back as the head of a stop string is text."""
        if not self.is_stopped:
            self._show(self._matcher.flush())

    def take(self) -> tuple[str, int]:
        """Return text that was not returned yet, and of how many further tokens it is the text."""
        border = self._last_border()
        n_chars = self._borders_chars[border] - self._n_taken_chars
        n_tokens = self._borders_tokens[border] - self._n_taken_tokens
        text, self._untaken = self._untaken[:n_chars], self._untaken[n_chars:]
        self._n_taken_chars += n_chars
        self._n_taken_tokens += n_tokens
        return text, n_tokens

    @property
    def stop(self) -> str:
        """The stop string that came, empty before."""
        return self._matcher.found

    @property
    def text(self) -> str:
        """All text found so far, but for what may be the head of a stop string."""
        return "".join(self._parts)

    @property
    def kept(self) -> int:
        """How many leading tokens lie entirely inside `text`."""
        return self._borders_tokens[self._last_border()]

    @property
    def tail(self) -> str:
        """The end of `text` that the kept tokens do not cover."""
        return self.text[self._borders_chars[self._last_border()] :]

    def _show(self, text: str) -> None:
        self._parts.append(text)
        self._untaken += text
        self._n_shown += len(text)

    def _mark_border(self) -> None:
        self._borders_tokens.append(self._n_tokens)
        self._borders_chars.append(self._n_decoded)

    def _last_border(self) -> int:
        return bisect.bisect_right(self._borders_chars, self._n_shown) - 1


def _fallbacks(stop: str) -> list[int]:
    """For each n: the length of the longest proper prefix of `stop` that `stop[:n]` ends with."""
    table = [0, 0]
    n = 0
    for char in stop[1:]:
        while n and stop[n] != char:
            n = table[n]
        n += stop[n] == char
        table.append(n)
    return table
