"""A model that can be chosen in the window."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model on this machine; `detail` is one line on it, `fits` False where it needs more memory than there is.

    `is_usual` is True for the one that is used when none is chosen.
    """

    name: str
    path: Path
    detail: str
    fits: bool
    is_usual: bool = False
