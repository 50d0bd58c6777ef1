"""Whether restoring a prefix from disk is expected to be faster than prefilling it, from measured rates; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

# Weight of the newest measurement: a few turns forget a busy moment.
_NEWEST = 0.3
# What a measured disk loses of its slowness each time it is not used because of that.
_FORGOTTEN = 0.1
# From here on a prefill runs in whole batches, which take less for each token than short ones.
_LONG_TOKENS = 256
# Below this a measurement is mostly overhead and clock.
_LEAST_TOKENS = 16
_LEAST_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a decision was made from: expected seconds of both ways. `restores` is the decision."""

    restore_s: float
    prefill_s: float

    @property
    def restores(self) -> bool:
        """True if restoring is expected to be faster."""
        return self.restore_s < self.prefill_s


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured speeds: seconds per prefilled token, per restored byte, per restored file, per token of long prefills.

    All but that of files are exponential averages; until something was measured they are those of a plain disk and a
    small model, and that of long prefills 0.
    """

    prefill_s_per_token: float = 0.001
    restore_s_per_byte: float = 1 / 500e6
    restore_s_per_file: float = 0.0005
    long_prefill_s_per_token: float = 0.0

    def estimate(self, *, n_tokens: int, n_bytes: int, n_files: int) -> Estimate:
        """Expected seconds for making `n_tokens` resident from `n_files` files of `n_bytes` together, or by prefill.

        The prefill is taken as linear: attention makes it slower the longer the prefix, so this errs towards prefill.
        """
        restore_s = n_files * self.restore_s_per_file + n_bytes * self.restore_s_per_byte
        return Estimate(restore_s, n_tokens * self.prefill_s_per_token)

    def expected_prefill_s(self, n_tokens: int) -> float | None:
        """Seconds that this prefill is expected to take; None as long as none was measured."""
        if n_tokens >= _LONG_TOKENS and self.long_prefill_s_per_token:
            return n_tokens * self.long_prefill_s_per_token
        if self.prefill_s_per_token == Rates().prefill_s_per_token:
            return None
        return n_tokens * self.prefill_s_per_token

    def expected_restore_s(self, *, n_bytes: int, n_files: int) -> float | None:
        """Seconds that this restore is expected to take; None as long as none was measured."""
        if self.restore_s_per_byte == Rates().restore_s_per_byte:
            return None
        return self.estimate(n_tokens=0, n_bytes=n_bytes, n_files=n_files).restore_s

    def after_prefill(self, n_tokens: int, seconds: float) -> Rates:
        """Learn from a prefill that ran to its end."""
        if n_tokens < _LEAST_TOKENS:
            return self
        each_s = seconds / n_tokens
        usual = replace(self, prefill_s_per_token=_blend(self.prefill_s_per_token, each_s))
        if n_tokens < _LONG_TOKENS:
            return usual
        return replace(usual, long_prefill_s_per_token=_blend(self.long_prefill_s_per_token or each_s, each_s))

    def after_restore(self, n_bytes: int, n_files: int, seconds: float) -> Rates:
        """Learn from a restore that succeeded."""
        if n_bytes < _LEAST_BYTES:
            return self
        net_s = max(0.0, seconds - n_files * self.restore_s_per_file)
        return replace(self, restore_s_per_byte=_blend(self.restore_s_per_byte, net_s / n_bytes))

    def after_refusal(self) -> Rates:
        """Doubt a slow disk a little more: without restores one busy moment would decide for ever."""
        usual = min(self.restore_s_per_byte, Rates().restore_s_per_byte)
        return replace(self, restore_s_per_byte=_blend(self.restore_s_per_byte, usual, _FORGOTTEN))

    def to_json(self) -> dict[str, float]:
        """The rates as JSON takes them."""
        return asdict(self)


def rates_from(stored: Any) -> Rates:
    """Rates from what `to_json` gave; the first guesses for anything else."""
    if not isinstance(stored, Mapping):
        return Rates()
    values = {name: value for name in asdict(Rates()) if isinstance(value := stored.get(name), float)}
    return Rates(**values) if all(0 <= value < 1e3 for value in values.values()) else Rates()


def _blend(old: float, new: float, weight: float = _NEWEST) -> float:
    return old + weight * (new - old)
