"""Whether restoring a prefix from disk is expected to be faster than prefilling it, from measured rates; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

# Weight of the newest measurement: a few turns forget a busy moment.
_NEWEST = 0.3
# What a measured disk loses of its slowness each time it is not used because of that.
_FORGOTTEN = 0.1
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
    """Measured speeds: seconds per prefilled token, per restored byte, per restored file.

    The first two are exponential averages; until something was measured they are those of a plain disk and a small
    model.
    """

    prefill_s_per_token: float = 0.001
    restore_s_per_byte: float = 1 / 500e6
    restore_s_per_file: float = 0.0005

    def estimate(self, *, n_tokens: int, n_bytes: int, n_files: int) -> Estimate:
        """Expected seconds for making `n_tokens` resident from `n_files` files of `n_bytes` together, or by prefill.

        The prefill is taken as linear: attention makes it slower the longer the prefix, so this errs towards prefill.
        """
        restore_s = n_files * self.restore_s_per_file + n_bytes * self.restore_s_per_byte
        return Estimate(restore_s, n_tokens * self.prefill_s_per_token)

    def after_prefill(self, n_tokens: int, seconds: float) -> Rates:
        """Learn from a prefill that ran to its end."""
        if n_tokens < _LEAST_TOKENS:
            return self
        return replace(self, prefill_s_per_token=_blend(self.prefill_s_per_token, seconds / n_tokens))

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
