"""The window's own themes: contrast, and which one it begins with."""

from pathlib import Path

import pytest
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme

from chatapp.clipboard import Terminal
from chatapp.tui.surroundings import Surroundings
from chatapp.tui.theme import CONTRAST_DARK, CONTRAST_LIGHT, DARK, LIGHT, OWN, Themes
from tests.chatapp.tui_window import Window, hears, until

NAMES = {theme.name for theme in OWN} | set(BUILTIN_THEMES)
GROUNDS = ("background", "surface", "panel")
MUTED = 0.7
"""The share of the foreground in what is said in passing."""


def contrast(one: Color, other: Color) -> float:
    """The contrast of two colours by WCAG 2: 1 to 21."""

    def luminance(color: Color) -> float:
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color.normalized]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def pairs(theme: Theme) -> dict[str, float]:
    """The contrast of all text of a theme with what it stands on."""
    colors = {
        name: Color.parse(value)
        for name, value in theme.to_color_system().generate().items()
        if value[:1] == "#" and " " not in value
    }
    found = {}
    for ground in GROUNDS:
        for name in ("foreground", "primary", "accent", "success", "warning", "error"):
            found[f"{name} on {ground}"] = contrast(colors[name], colors[ground])
        muted = colors[ground].blend(colors["foreground"], MUTED)
        found[f"muted on {ground}"] = contrast(muted, colors[ground])
    found["cursor"] = contrast(colors["block-cursor-foreground"], colors["block-cursor-background"])
    found["key"] = contrast(colors["footer-key-foreground"], colors["footer-background"])
    return found


@pytest.mark.parametrize(("theme", "least"), [(DARK, 4.5), (LIGHT, 4.5), (CONTRAST_DARK, 7), (CONTRAST_LIGHT, 7)])
def test_text_can_be_read(theme: Theme, least: float) -> None:
    """WCAG AA for the designed themes, AAA for high contrast."""
    assert {name: round(value, 2) for name, value in pairs(theme).items() if value < least} == {}


@pytest.mark.parametrize("theme", [CONTRAST_DARK, CONTRAST_LIGHT])
def test_borders_of_high_contrast_can_be_seen(theme: Theme) -> None:
    """Three to one is what WCAG asks of what is no text."""
    assert contrast(Color.parse(theme.variables["border"]), Color.parse(theme.background or "")) >= 3


def first(theme: str = "auto", background: str = "", folder: Path | None = None) -> tuple[str, tuple[str, ...]]:
    """The theme a window begins with, and what is told."""
    terminal = Terminal.read({"COLORFGBG": {"light": "0;15", "dark": "15;0", "": ""}[background]}, "linux")
    themes = Themes(Surroundings(theme=theme, terminal=terminal, folder=folder))
    return themes.first(NAMES), themes.problems


def test_auto_follows_the_background() -> None:
    """Dark where the terminal does not tell."""
    assert [first(background=ground)[0] for ground in ("light", "dark", "")] == [LIGHT.name, DARK.name, DARK.name]


def test_the_setting_names_a_theme() -> None:
    """Own themes by the short name too."""
    assert first("light")[0] == first("chatapp-light")[0] == LIGHT.name
    assert first("contrast-dark", "light")[0] == CONTRAST_DARK.name
    assert first("nord")[0] == "nord"


def test_a_name_without_a_theme_is_one_sentence() -> None:
    """The window begins as with auto."""
    name, [problem] = first("drak", "light")
    assert name == LIGHT.name
    assert problem.startswith("theme: there is no 'drak': take auto, dark, light, contrast-dark, contrast-light, ")


async def test_a_theme_of_the_palette_is_kept(tmp_path: Path) -> None:
    """The next window begins with it; a setting wins over it, which is told."""
    folder = tmp_path / "window"
    window = Window(tmp_path / "one", surroundings=Surroundings(folder=folder))
    async with window.app.run_test() as pilot:
        await pilot.pause()
        assert not folder.exists()
        window.app.theme = "nord"
        await until(pilot, (folder / "theme").exists, "the theme is kept")
    assert first("auto", "light", folder)[0] == "nord"
    assert first("light", "", folder)[0] == LIGHT.name
    window = Window(tmp_path / "two", surroundings=Surroundings(theme="light", folder=folder))
    async with window.app.run_test() as pilot:
        window.app.theme = DARK.name
        await hears(pilot, window, "The setting theme = 'light' still rules the next start")
    assert first("auto", "light", folder)[0] == DARK.name


def test_a_kept_theme_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    """As is a file that holds no text."""
    for content in (b"no-such-theme", b"\xff\xfe", b""):
        (tmp_path / "theme").write_bytes(content)
        assert first("auto", "", tmp_path) == (DARK.name, ())
