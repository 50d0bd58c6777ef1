"""How fast each type of weights is on this machine: what was measured, kept for machine and build; no native code."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from models.cachefile import write_atomically
from models.fingerprint import LLAMA_BUILD
from models.gguf_header import Header
from models.probefile import PROBED, multiplied_bytes
from models.tuning import ANSWER_TOKENS, FOREIGN_LIMIT, MESSAGE_TOKENS, PROMPT_TOKENS, machine

USUAL = "Q4_K_M"
"""What models are mostly fetched in."""
_VERSION = 2


@dataclass(frozen=True, slots=True)
class TypeRate:
    """Tokens a second of a small model of random weights, with nothing before them."""

    prefill: float
    decode: float

    @property
    def turn_s(self) -> float:
        """Seconds that the work of one turn takes with it; less is better."""
        return (MESSAGE_TOKENS + PROMPT_TOKENS) / self.prefill + ANSWER_TOKENS / self.decode


@dataclass(frozen=True, slots=True)
class TypeRates:
    """Rates by quantization; `measured_at` in epoch seconds, `foreign` as in `Tuned`."""

    rates: Mapping[str, TypeRate]
    measured_at: float
    foreign: float | None = None

    @property
    def fastest(self) -> str:
        """The quantization with which a turn takes the shortest time."""
        return min(self.rates, key=lambda name: self.rates[name].turn_s)

    @property
    def is_doubtful(self) -> bool:
        """True if others took so much processor time that it has to be measured again."""
        return self.foreign is not None and self.foreign > FOREIGN_LIMIT

    def compared(self, quantization: str | None) -> str | None:
        """The measured quantization that another one is compared with: itself, else the usual one, None: neither."""
        return next((name for name in (quantization, USUAL) if name in self.rates), None)


def prompt_limit(types: TypeRates, quantization: str | None, headers: Sequence[Header]) -> float | None:
    """Tokens a second of a prompt, if it took no more time than the library takes for wide matrices of the same type.

    From the rate of the small model and the bytes of the matrices in the layers of both. None for a type that was not
    measured, and for experts, of which a prompt's tokens share some.
    """
    rate = types.rates.get(quantization or "")
    parts = sum((Counter(header.bytes_by_part) for header in headers), Counter())
    if rate is None or quantization is None or parts["experts"] or not parts["rest"]:
        return None
    return rate.prefill * multiplied_bytes(quantization) / parts["rest"]


def remembered_types(cache_dir: Path) -> TypeRates | None:
    """What is kept for this machine, None if nothing is, or nothing that can be used."""
    try:
        return types_from(json.loads(_note(cache_dir).read_bytes()))
    except (OSError, ValueError, RecursionError):
        return None


def remember_types(cache_dir: Path, types: TypeRates) -> None:
    """Keep a measurement; failing to is not an error."""
    write_atomically(_note(cache_dir), json.dumps(asdict(types)).encode())


def types_from(kept: Any) -> TypeRates | None:
    """A measurement from its JSON, None if it is none."""
    try:
        rates = {
            str(name): TypeRate(_positive(row["prefill"]), _positive(row["decode"]))
            for name, row in kept["rates"].items()
            if name in PROBED
        }
        foreign = kept["foreign"]
        types = TypeRates(rates, _positive(kept["measured_at"]), None if foreign is None else float(foreign))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return types if rates else None


def _note(cache_dir: Path) -> Path:
    key = json.dumps([_VERSION, LLAMA_BUILD, *machine()])
    return cache_dir / "weighttypes" / (hashlib.sha256(key.encode()).hexdigest() + ".json")


def _positive(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ValueError("no measurement")
    return float(value)
