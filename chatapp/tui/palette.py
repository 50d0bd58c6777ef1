"""The command palette in the reader's language, Textual's own commands and questions too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from textual.app import SystemCommand
from textual.command import CommandPalette
from textual.theme import ThemeProvider

from chatapp.safe import clean
from chatapp.texts import tr, tr_later

TEXTUALS = (
    tr_later("Theme"),
    tr_later("Change the current theme"),
    tr_later("Quit"),
    tr_later("Quit the application as soon as possible"),
    tr_later("Keys"),
    tr_later("Hide the keys and widget help panel"),
    tr_later("Show help for the focused widget and a summary of available keys"),
    tr_later("Minimize"),
    tr_later("Minimize the widget and restore to normal size"),
    tr_later("Maximize"),
    tr_later("Maximize the focused widget"),
    tr_later("Screenshot"),
    tr_later("Save an SVG 'screenshot' of the current screen"),
)
"""What Textual calls its own commands, and how it explains them."""


def translated(commands: Iterable[SystemCommand]) -> Iterator[SystemCommand]:
    """Yield commands of Textual in the reader's language."""
    for command in commands:
        yield SystemCommand(clean(tr(command.title)), clean(tr(command.help)), command.callback, command.discover)


def command_palette() -> CommandPalette:
    """Return what asks for a command."""
    return CommandPalette(placeholder=tr("Search for commands…"), id="--command-palette")


def theme_palette() -> CommandPalette:
    """Return what asks for a theme."""
    return CommandPalette([ThemeProvider], placeholder=tr("Search for themes…"))
