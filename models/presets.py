"""Where the sampling of an answer comes from: usual values, the model's file, a named preset, what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from models.engine import ModelInfo, Sampling

PRESETS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "precise": {"temperature": 0.2, "top_k": 40, "top_p": 0.9, "min_p": 0.1, "repeat_penalty": 1.0},
        "balanced": {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.0},
        "creative": {"temperature": 1.1, "top_k": 0, "top_p": 1.0, "min_p": 0.05, "repeat_penalty": 1.0},
    }
)
"""Fields of `Sampling` by the name of the preset."""


@dataclass(frozen=True, slots=True)
class SamplingChoice:
    """What was asked for: a preset, and fields of `Sampling` that win over it. By default nothing."""

    preset: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)

    def over(self, recommended: Sampling) -> Sampling:
        """The sampling that follows for a model with this recommendation."""
        preset = PRESETS[self.preset] if self.preset else {}
        return replace(recommended, **{**preset, **self.given})


def recommended(info: ModelInfo, presets: Mapping[str, str]) -> Sampling:
    """What a model is sampled with unless something else is asked for: the user's preset for it, else its own values.

    `presets` are by the name of the model, or of its file without `.gguf`; case does not matter.
    """
    names = {info.name.casefold(), PurePath(info.path).stem.casefold()}
    preset = next((preset for name, preset in presets.items() if name.casefold() in names), None)
    return SamplingChoice(preset).over(info.sampling)
