"""The window's own themes, and which one it begins with."""

from __future__ import annotations

from collections.abc import Collection

from textual.theme import Theme

from chatapp.texts import tr
from chatapp.tui.surroundings import Surroundings
from models.cachefile import write_atomically

DARK = Theme(
    name="chatapp-dark",
    primary="#7aa2c9",
    secondary="#8fb39a",
    accent="#e0a458",
    foreground="#d7dce2",
    background="#101418",
    surface="#161b21",
    panel="#1d242c",
    success="#8fb39a",
    warning="#e0a458",
    error="#ea8a85",
    dark=True,
    variables={
        "border": "#3d4b59",
        "block-cursor-background": "#2b3a4a",
        "block-cursor-foreground": "#ffffff",
        "block-cursor-text-style": "bold",
        "footer-key-foreground": "#e0a458",
        "footer-background": "#161b21",
        "input-selection-background": "#7aa2c9 35%",
    },
)

LIGHT = Theme(
    name="chatapp-light",
    primary="#2b5886",
    secondary="#2f6243",
    accent="#805000",
    foreground="#1e242b",
    background="#fbfaf7",
    surface="#f3f1ec",
    panel="#e9e6df",
    success="#2f6243",
    warning="#805000",
    error="#a02b26",
    dark=False,
    variables={
        "border": "#a9a396",
        "block-cursor-background": "#cfdcea",
        "block-cursor-foreground": "#101418",
        "block-cursor-text-style": "bold",
        "footer-key-foreground": "#805000",
        "footer-background": "#f3f1ec",
        "input-selection-background": "#2b5886 25%",
    },
)

CONTRAST_DARK = Theme(
    name="chatapp-contrast-dark",
    primary="#8fd0ff",
    secondary="#9ff0b5",
    accent="#ffd24d",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#141414",
    success="#9ff0b5",
    warning="#ffd24d",
    error="#ffa8a3",
    dark=True,
    variables={
        "border": "#a8a8a8",
        "block-cursor-background": "#ffffff",
        "block-cursor-foreground": "#000000",
        "block-cursor-text-style": "bold",
        "footer-key-foreground": "#ffd24d",
        "footer-background": "#000000",
        "input-selection-background": "#8fd0ff 45%",
    },
)

CONTRAST_LIGHT = Theme(
    name="chatapp-contrast-light",
    primary="#003f7f",
    secondary="#0a4a20",
    accent="#5c3500",
    foreground="#000000",
    background="#ffffff",
    surface="#ffffff",
    panel="#f2f2f2",
    success="#0a4a20",
    warning="#5c3500",
    error="#7f0d08",
    dark=False,
    variables={
        "border": "#595959",
        "block-cursor-background": "#000000",
        "block-cursor-foreground": "#ffffff",
        "block-cursor-text-style": "bold",
        "footer-key-foreground": "#5c3500",
        "footer-background": "#ffffff",
        "input-selection-background": "#003f7f 25%",
    },
)

OWN = (DARK, LIGHT, CONTRAST_DARK, CONTRAST_LIGHT)

AUTO = "auto"
FILE = "theme"
_PREFIX = "chatapp-"


class Themes:
    """Knows what the settings want, what the terminal is, and what was chosen in the window before."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._wanted = surroundings.theme
        self._is_light = surroundings.terminal.background == "light"
        self._file = surroundings.folder / FILE if surroundings.folder else None
        self._shown = ""
        self.problems: tuple[str, ...] = ()

    def first(self, available: Collection[str]) -> str:
        """Return the theme to begin with: the setting, else the last choice, else by the terminal's background."""
        self._shown = self._named(self._wanted, available) or self._chosen(available) or self._usual()
        return self._shown

    def keep(self, name: str) -> str | None:
        """Remember a theme that was chosen in the window; returns a sentence where the settings will overrule it."""
        if name == self._shown:
            return None
        self._shown = name
        if self._file:
            write_atomically(self._file, name.encode())
        if self._wanted == AUTO or self.problems:
            return None
        sentence = tr("The setting theme = {theme!r} still rules the next start: take it out to keep this theme.")
        return sentence.format(theme=self._wanted)

    def _named(self, wanted: str, available: Collection[str]) -> str | None:
        if wanted == AUTO:
            return None
        for name in (_PREFIX + wanted, wanted):
            if name in available:
                return name
        own = ", ".join(theme.name.removeprefix(_PREFIX) for theme in OWN)
        problem = tr("theme: there is no {theme!r}: take auto, {own}, or a name from the palette's list.")
        self.problems = (problem.format(theme=wanted[:40], own=own),)
        return None

    def _chosen(self, available: Collection[str]) -> str | None:
        if self._file is None:
            return None
        try:
            name = self._file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return name if name in available else None

    def _usual(self) -> str:
        return (LIGHT if self._is_light else DARK).name
