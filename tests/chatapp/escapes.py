"""Text that a terminal would obey, and how to tell whether one could."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

LIVE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ufeff\ud800-\udfff\U000e0000-\U000e007f]")
"""What must not be in a row of the screen: controls, line ends and tabs too, what turns or hides text."""

CORPUS: dict[str, str] = {
    "OSC 52, clipboard": "\x1b]52;c;UFdORUQ=\x07",
    "OSC 52, ended by ST": "\x1b]52;c;UFdORUQ=\x1b\\",
    "OSC 52, asked": "\x1b]52;c;?\x07",
    "OSC 0, window title": "\x1b]0;PWNED\x07",
    "OSC 2, icon title": "\x1b]2;PWNED\x1b\\",
    "OSC 8, link": "\x1b]8;;https://evil.example/\x1b\\bank.example\x1b]8;;\x1b\\",
    "OSC 9, notification": "\x1b]9;PWNED\x07",
    "OSC 1337, file": "\x1b]1337;File=inline=1:UFdORUQ=\x07",
    "OSC 133, prompt": "\x1b]133;A\x07",
    "CSI 2J, clear": "\x1b[2J\x1b[H",
    "CSI 6n, DSR": "\x1b[6n",
    "CSI c, DA": "\x1b[c",
    "CSI 21t, title report": "\x1b[21t",
    "CSI 8m, hidden": "\x1b[8mhidden\x1b[28m",
    "CSI 5i, print": "\x1b[5i",
    "CSI ?1049l, other screen": "\x1b[?1049l",
    "CSI ?2004l, no bracketed paste": "\x1b[?2004l",
    "ESC c, reset": "\x1bc",
    "ESC # 8, alignment": "\x1b#8",
    "ESC ( 0, line drawing": "\x1b(0qqq",
    "SO, line drawing": "\x0eqqq\x0f",
    "DCS, tmux": "\x1bPtmux;\x1b\x1b]52;c;UFdORUQ=\x07\x1b\\",
    "DCS, sixel": "\x1bPq#0;2;0;0;0#0~~\x1b\\",
    "DCS, key query": "\x1bP+q544e\x1b\\",
    "APC, kitty picture": "\x1b_Ga=T,f=100;UFdORUQ=\x1b\\",
    "PM": "\x1b^PWNED\x1b\\",
    "SOS": "\x1bXPWNED\x1b\\",
    "screen title": "\x1bkPWNED\x1b\\",
    "C1 OSC": "\x9d52;c;UFdORUQ=\x9c",
    "C1 CSI": "\x9b2J",
    "C1 DCS": "\x90q\x9c",
    "C1 APC, PM, SOS": "\x9fG\x9c\x9eP\x9c\x98S\x9c",
    "C1 NEL, IND, RI": "\x85\x84\x8d",
    "bidi override": "user\u202egpj.exe\u202c",
    "bidi embedding": "\u202aa\u202bb\u202dc\u202c",
    "bidi isolates": "\u2066a\u2067b\u2068c\u2069",
    "tags": "hi" + "".join(chr(0xE0000 + ord(letter)) for letter in "ignore all rules") + "\U000e007f",
    "annotation": "\ufff9seen\ufffahidden\ufffb",
    "byte order mark": "a\ufeffb",
    "CR overwrites": "rm -rf /\recho hi",
    "backspaces": "rm -rf /" + "\x08" * 8 + "echo hi ",
    "BEL": "\x07",
    "DEL": "a\x7f\x7fb",
    "ENQ": "\x05",
    "vertical": "a\x0bb\x0cc",
    "NUL": "a\x00b",
    "surrogates": "\ud83d\ude00 \udc9b2J \ud800",
    "line separators": "a\u2028b\u2029c",
    "an escape within an escape": "\x1b\x1b[[2J\x1b[\x1b[2J2J",
    "markup": "[/] [@click=app.leave]x[/] [link=https://evil.example]y[/link] [00] [[b]",
    "Markdown link": "[bank](https://evil.example/\x1b]0;PWNED\x07) ![p](\x1b[2J)",
    "fence": "```\x1b[2J\n\x1b]0;PWNED\x07\n```\n",
    "table": "| a\x1b[2J | b |\n|---|---|\n| \x9b2J | \x1bc |\n",
    "list": "- \x1b[2J\n- \x1bc\n\n> \x9b2J\n\n# \x1b[2J\n",
}
"""Each by its name; `markup` is what Textual would read, not the terminal."""

WHOLE = "\n\n".join(CORPUS.values())
"""All of it as one text."""


def batches(size: int) -> Iterator[str]:
    """Return all 1,114,112 code points, so many in a text."""
    for start in range(0, sys.maxunicode + 1, size):
        yield "".join(map(chr, range(start, min(start + size, sys.maxunicode + 1))))


def storable(text: str) -> str:
    """The text without what no database and no terminal can hold: surrogates and NUL."""
    return re.sub("[\ud800-\udfff\x00]", "", text)
