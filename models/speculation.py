"""Guess an answer's next tokens from the text before it, and how many of them are worth checking at once; pure.

The tokens an answer ends with are looked for in prompt and answer; what followed them there is the guess (prompt
lookup). The model evaluates the next token and the guesses behind it in one batch and samples at each as it always
does, so a wrong guess costs time and changes nothing. Whether a batch pays is measured: what it costs against single
steps, and how often guesses were right. That is counted for guesses nobody evaluated too, so it costs nothing to find
out.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

BATCH_SIZES = (2, 4, 8, 16, 32)
"""Tokens that are evaluated at once: one that is known and the guesses behind it."""
_NGRAMS = (3, 2)
_TOKEN_BYTES = 4
# From so many agreeing tokens on, more of them say no more about the next one.
_FAR_BACK = 64
# Match lengths that are counted together, each from here to the next, with the share of right guesses to begin with.
_MATCHES = ((2, 0.3), (3, 0.5), (5, 0.65), (9, 0.8), (17, 0.9), (33, 0.95))
_PRIOR_WEIGHT = 4.0
# What earlier answers say of the next one.
_KEPT_OF_COUNTS = 0.5
# A guess must be expected to save so much; one of a batch that was never run, more.
_LEAST_GAIN = 1.2
_LEAST_GAIN_UNKNOWN = 1.4
# A batch whose last guess is so unlikely is not worth its cost on any machine, and larger ones neither.
_HOPELESS = 0.05
# What one more token in a batch costs in steps, until batches were run: between a machine that waits for its memory,
# where it is next to nothing, and one that computes, where it is almost a step.
_USUAL_SHARE = 0.4
_NEWEST_STEP = 0.1
_NEWEST_BATCH = 0.3
# What a measured batch loses of its slowness with each answer: one busy moment must not decide for ever.
_FORGOTTEN = 0.05


class Lookup:
    """A text that grows, and the place in it whose continuation its end has repeated so far."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)
        # Searching bytes is native code: an index of a long prompt would take longer to make than it ever saves.
        self._bytes = bytearray(_packed(self._tokens))
        self._next: int | None = None
        self.n_matched = 0
        """So many of the newest tokens stand before the place as well, counted up to some dozens; 0: no place."""
        self._search()

    @property
    def guess(self) -> int | None:
        """The next token, if the text goes on as it did there."""
        return None if self._next is None else self._tokens[self._next]

    def guesses(self, n: int) -> list[int]:
        """The `n` next tokens; where the place is so near the end that they are not there yet, by going round."""
        if self._next is None or n == 0:
            return []
        known = self._tokens[self._next : self._next + n]
        return (known * (n // len(known) + 1))[:n]

    def add(self, token: int) -> None:
        """Append a token: the place moves along while the text repeats it, else another one is looked for."""
        was_right = token == self.guess
        self._tokens.append(token)
        self._bytes += _packed([token])
        if was_right and self._next is not None:
            self._next += 1
            self.n_matched = min(_FAR_BACK, self.n_matched + 1)
        else:
            self._search()

    def _search(self) -> None:
        """Find the newest place before the end that stands behind the same tokens."""
        self._next, self.n_matched = None, 0
        n_tokens = len(self._tokens)
        for n in _NGRAMS:
            if n_tokens <= n:
                continue
            start = self._found(bytes(self._bytes[-n * _TOKEN_BYTES :]), n_tokens - 1)
            if start is not None:
                self._next, self.n_matched = start + n, n
                self._look_back(start - 1, n_tokens - n - 1)
                return

    def _found(self, ngram: bytes, end: int) -> int | None:
        """The last position in `[0, end)` at which the n-gram stands, whole tokens only."""
        end_bytes = end * _TOKEN_BYTES
        while (at := self._bytes.rfind(ngram, 0, end_bytes)) >= 0:
            if at % _TOKEN_BYTES == 0:
                return at // _TOKEN_BYTES
            end_bytes = at + len(ngram) - 1
        return None

    def _look_back(self, there: int, here: int) -> None:
        """Count what else agrees before the n-gram: the longer it is, the more likely the next token is the same."""
        while there >= 0 and self.n_matched < _FAR_BACK and self._tokens[there] == self._tokens[here]:
            there, here, self.n_matched = there - 1, here - 1, self.n_matched + 1


class Costs:
    """What evaluating several tokens at once takes, in single steps; learned while it happens."""

    def __init__(self) -> None:
        self.step_s: float | None = None
        """Seconds of one step, an average that forgets."""
        self._ratios: dict[int, float] = {}

    def took(self, n_tokens: int, seconds: float) -> None:
        """Learn from an evaluation of `n_tokens`."""
        # One stall is no measure of what follows.
        if n_tokens == 1:
            usual_s = self.step_s or seconds
            had_stalled = 0 < 2 * seconds < usual_s  # as the very first one may, which reads weights from disk
            self.step_s = seconds if had_stalled else _blend(usual_s, min(seconds, 2 * usual_s), _NEWEST_STEP)
        elif self.step_s and seconds:
            # No step takes longer than a batch: by one that stalled, any batch would seem cheap.
            self.step_s = min(self.step_s, seconds)
            ratio = min(seconds / self.step_s, 2 * self.ratio(n_tokens))
            self._ratios[n_tokens] = _blend(self._ratios.get(n_tokens, ratio), ratio, _NEWEST_BATCH)

    def is_known(self, n_tokens: int) -> bool:
        """True if a batch of this size was run."""
        return n_tokens in self._ratios

    def ratio(self, n_tokens: int) -> float:
        """Steps that a batch of `n_tokens` is worth: measured, or on the line between the sizes that were."""
        known = {1: 1.0, **self._ratios}
        if n_tokens in known:
            return known[n_tokens]
        below = max(size for size in known if size < n_tokens)
        above = min((size for size in known if size > n_tokens), default=None)
        if above is not None:
            return known[below] + (known[above] - known[below]) * (n_tokens - below) / (above - below)
        # Small batches may cost more than their steps where large ones are well worth it: that is for them to show.
        share = _USUAL_SHARE if below == 1 else min(_USUAL_SHARE, (known[below] - 1) / (below - 1))
        return known[below] + share * (n_tokens - below)

    def forget_a_little(self) -> None:
        """Move what was measured towards what is usual."""
        for size, ratio in self._ratios.items():
            usual = 1 + _USUAL_SHARE * (size - 1)
            self._ratios[size] = _blend(ratio, min(ratio, usual), _FORGOTTEN)


class Speculation:
    """What one model on this machine has taught: costs of batches, and how often guesses were right."""

    def __init__(self) -> None:
        self.costs = Costs()
        self._n_right = [0.0] * len(_MATCHES)
        self._n_judged = [0.0] * len(_MATCHES)

    def begin(self, tokens: Sequence[int]) -> Guesser:
        """Guess for an answer behind these tokens. What was learned before counts less than what it will teach."""
        self._n_right = [_KEPT_OF_COUNTS * n for n in self._n_right]
        self._n_judged = [_KEPT_OF_COUNTS * n for n in self._n_judged]
        self.costs.forget_a_little()
        return Guesser(self, tokens)

    def judged(self, n_matched: int, *, is_right: bool) -> None:
        """Learn whether a guess behind so many agreeing tokens was right."""
        at = _match_class(n_matched)
        self._n_judged[at] += 1
        self._n_right[at] += is_right

    def share_right(self, n_matched: int) -> float:
        """How often a guess behind so many agreeing tokens is right, from 0 to 1."""
        at = _match_class(n_matched)
        return (self._n_right[at] + _PRIOR_WEIGHT * _MATCHES[at][1]) / (self._n_judged[at] + _PRIOR_WEIGHT)

    def n_guesses(self, n_matched: int, most: int) -> int:
        """How many guesses are worth evaluating, at most `most`; 0 where single steps are expected to be faster."""
        best, best_gain = 0, 1.0
        n_expected, share, done = 1.0, 1.0, 0
        for size in BATCH_SIZES:
            if size > most + 1:
                break
            while done < size - 1:  # the longer the guesses hold, the more sure are those behind them
                share *= self.share_right(n_matched + done)
                n_expected += share
                done += 1
            if share < _HOPELESS:
                break
            gain = n_expected / self.costs.ratio(size)
            least = _LEAST_GAIN if self.costs.is_known(size) else _LEAST_GAIN_UNKNOWN
            if gain > max(best_gain, least):
                best, best_gain = size - 1, gain
        return best


class Guesser:
    """Guesses for one answer as it grows; counts what was evaluated, and what of that was right."""

    def __init__(self, speculation: Speculation, tokens: Sequence[int]) -> None:
        self._speculation = speculation
        self._lookup = Lookup(tokens)
        self.n_guessed = 0
        """Guesses that were evaluated."""
        self.n_right = 0
        """Those of them that became part of the answer."""
        self._n_open = 0  # guesses that are evaluated and whose tokens were not sampled yet

    def add(self, token: int) -> None:
        """Take the token that was sampled, and learn from what would have been guessed."""
        guess = self._lookup.guess
        if guess is not None:
            self._speculation.judged(self._lookup.n_matched, is_right=guess == token)
        if self._n_open and guess == token:
            self._n_open -= 1
            self.n_right += 1
        else:
            self._n_open = 0
        self._lookup.add(token)

    def guesses(self, most: int) -> list[int]:
        """Tokens to evaluate behind the newest one, at most `most`; none where that would not pay."""
        n_matched = self._lookup.n_matched
        n = self._speculation.n_guesses(n_matched, most) if n_matched else 0
        self.n_guessed += n
        self._n_open = n
        return self._lookup.guesses(n)

    def took(self, n_tokens: int, seconds: float) -> None:
        """Learn what evaluating so many tokens at once took."""
        self._speculation.costs.took(n_tokens, seconds)


def _match_class(n_matched: int) -> int:
    return max(0, bisect_right(_MATCHES, n_matched, key=lambda match: match[0]) - 1)


def _packed(tokens: Sequence[int]) -> bytes:
    return array("i", tokens).tobytes()


def _blend(old: float, new: float, weight: float) -> float:
    return old + weight * (new - old)
