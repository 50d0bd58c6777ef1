"""The two themes of the window."""

from __future__ import annotations

from textual.theme import Theme

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
    error="#e07a75",
    dark=True,
    variables={
        "border": "#33404d",
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
    primary="#2f5f8f",
    secondary="#3d7050",
    accent="#9a5b00",
    foreground="#22282f",
    background="#fbfaf7",
    surface="#f3f1ec",
    panel="#e9e6df",
    success="#3d7050",
    warning="#9a5b00",
    error="#a8322d",
    dark=False,
    variables={
        "border": "#b9b4a8",
        "block-cursor-background": "#cfdcea",
        "block-cursor-foreground": "#101418",
        "block-cursor-text-style": "bold",
        "footer-key-foreground": "#9a5b00",
        "footer-background": "#f3f1ec",
        "input-selection-background": "#2f5f8f 25%",
    },
)
