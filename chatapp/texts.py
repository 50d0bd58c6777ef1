"""Interface texts in the reader's language: the English text is the key, `locale/` has a file for each other language.

`tr` is called where a text is shown. A text that is only named there, a constant say, is marked by `tr_later` and given
to `tr` when it is shown. What is put into a text stands in braces, and is filled in behind:
`tr("{n} tokens").format(n=n)`.
"""

from __future__ import annotations

import gettext
from pathlib import Path

FOLDER = Path(__file__).with_name("locale")
DOMAIN = "chatapp"
ENGLISH = "en"


class _Reader:
    """Owner of the language, the one of the process: widgets everywhere ask for their texts."""

    def __init__(self) -> None:
        self.texts: gettext.NullTranslations = gettext.NullTranslations()
        self.language = ENGLISH


_READER = _Reader()


def languages() -> tuple[str, ...]:
    """Return the languages there are texts in, English first."""
    return (ENGLISH, *sorted(path.parent.parent.name for path in FOLDER.glob(f"*/LC_MESSAGES/{DOMAIN}.mo")))


def use(language: str) -> None:
    """Show texts in this language from now on (`ko`, `pt_BR`), in English where there are none."""
    _READER.texts = gettext.translation(DOMAIN, FOLDER, [language, language.split("_")[0]], fallback=True)
    is_there = isinstance(_READER.texts, gettext.GNUTranslations)
    _READER.language = language if is_there else ENGLISH


def language() -> str:
    """Return the language that texts are shown in."""
    return _READER.language


def tr(text: str) -> str:
    """Return a text in the reader's language."""
    return _READER.texts.gettext(text) if text else text


def tr_n(one: str, many: str, n: int) -> str:
    """Return the text for a number of things; `{n}` in it is to be filled in."""
    return _READER.texts.ngettext(one, many, n)


def tr_later(text: str) -> str:
    """Mark a text that is given to `tr` when it is shown."""
    return text
