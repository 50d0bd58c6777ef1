"""What the window is told about the place where it runs: the user's keys and theme, the terminal, a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chatapp.clipboard import Terminal


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`keys` by command and `theme` as the settings say; `folder` keeps what the window remembers (None: nothing)."""

    keys: Mapping[str, str] = field(default_factory=dict)
    theme: str = "auto"
    terminal: Terminal = field(default_factory=Terminal)
    folder: Path | None = None
