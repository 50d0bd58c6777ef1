"""Every key of the window, in the order the help shows them."""

from __future__ import annotations

KEYS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Writing",
        (
            ("Enter", "send the message"),
            ("Shift+Enter, Alt+Enter, Ctrl+J", "new line"),
            ("Escape", "stop the answer; its text so far is kept"),
            ("Page Up, Page Down", "scroll the conversation"),
        ),
    ),
    (
        "Conversations",
        (
            ("Ctrl+N", "new conversation"),
            ("Ctrl+B", "show or hide the list"),
            ("Enter (in the list)", "open the conversation"),
            ("Delete (in the list)", "move it to the trash"),
            ("U (in the list)", "take the last one back from the trash"),
            ("F2", "rename"),
            ("F4", "mark as done, or reopen"),
        ),
    ),
    (
        "Window",
        (
            ("Tab, Shift+Tab", "next, previous part of the window"),
            ("Home, End (in the text)", "first message; newest text, and follow it"),
            ("Ctrl+Home, Ctrl+End", "the same from everywhere"),
            ("F3", "meters as a panel or as one line"),
            ("F1", "this help"),
            ("Ctrl+P", "all commands, themes too"),
            ("Ctrl+C", "copy the selection; twice without one quits"),
            ("Ctrl+Q", "quit"),
        ),
    ),
)
