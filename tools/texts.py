"""Brings the texts of other languages up to date: `python -m tools.texts [--check]`.

Collects what `tr`, `tr_n` and `tr_later` are given in `chatapp/`, adds what is new to each language's file
(`chatapp/locale/LANGUAGE/LC_MESSAGES/chatapp.po`), drops what is gone and compiles it. `--check` changes nothing, names
what is missing or cannot be right, and exits 1. A new language is a folder with an empty file of that name.
"""

from __future__ import annotations

import ast
import io
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

SOURCES = Path("chatapp")
LOCALE = SOURCES / "locale"
CALLS = {"tr": 1, "tr_later": 1, "tr_n": 2}
"""What takes texts, and how many."""
_FIELD = re.compile(r"\{[^{}]*\}")


def main(arguments: list[str]) -> int:
    """Update or check all languages; return the exit status."""
    template = collected(SOURCES)
    found = False
    for path in sorted(LOCALE.glob("*/LC_MESSAGES/chatapp.po")):
        if "--check" not in arguments:
            update(path, template)
        for problem in problems(path, template):
            found = True
            print(f"{path}: {problem}", file=sys.stderr)
    return int(found)


def collected(sources: Path) -> Catalog:
    """Return all texts of the interface."""
    template = Catalog(project="chatapp", charset="utf-8")
    for path in sorted(sources.rglob("*.py")):
        # The tree, not the words: a call may stand inside an f-string.
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
                texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
                if len(texts) == CALLS[node.func.id]:
                    template.add(texts[0] if len(texts) == 1 else tuple(texts))
    return template


def update(path: Path, template: Catalog) -> None:
    """Bring the file of one language up to date, and what is compiled of it."""
    catalog = _read(path)
    catalog.update(template, no_fuzzy_matching=True)
    catalog.obsolete.clear()
    catalog.fuzzy = False
    catalog.header_comment = "# Interface texts of chatapp: python -m tools.texts brings this file up to date."
    written = io.BytesIO()
    write_po(written, catalog, no_location=True, omit_header=False, sort_output=True, width=120)
    path.write_bytes(_steady(written.getvalue()))
    path.with_suffix(".mo").write_bytes(compiled(_read(path)))


def problems(path: Path, template: Catalog) -> Iterator[str]:
    """Yield what is wrong with the file of one language."""
    catalog = _read(path)
    wanted = {message.id for message in template if message.id}
    there = {message.id for message in catalog if message.id}
    yield from (f"not translated: {text!r}" for text in sorted(map(str, wanted - there)))
    yield from (f"not used any more: {text!r}" for text in sorted(map(str, there - wanted)))
    for message in catalog:
        if message.id in wanted:
            yield from _wrong(message)
    if not path.with_suffix(".mo").is_file() or path.with_suffix(".mo").read_bytes() != compiled(catalog):
        yield "the compiled file is another: run python -m tools.texts"


def _wrong(message: Message) -> Iterator[str]:
    texts = [message.string] if isinstance(message.string, str) else list(message.string or ())
    if not texts or not all(texts):
        yield f"not translated: {message.id!r}"
        return
    asked = [message.id] if isinstance(message.id, str) else list(message.id)
    wanted = _fields(asked[-1:])
    for text in texts:
        if _fields([text]) != wanted and not (len(asked) > 1 and _fields([text]) <= wanted):
            yield f"other fields in braces than in {asked[-1]!r}: {text!r}"


def _fields(texts: Iterable[str]) -> set[str]:
    return {field for text in texts for field in _FIELD.findall(text)}


def compiled(catalog: Catalog) -> bytes:
    """Return the texts as `gettext` reads them."""
    out = io.BytesIO()
    write_mo(out, catalog)
    return out.getvalue()


def _read(path: Path) -> Catalog:
    with path.open("rb") as file:
        catalog = read_po(file, locale=path.parent.parent.name, charset="utf-8")
    # Where the file names no time it would be the present one, and what is compiled another each minute.
    catalog.creation_date = catalog.revision_date = datetime(2000, 1, 1, tzinfo=UTC)
    return catalog


def _steady(text: bytes) -> bytes:
    """Leave out when and by what the file was written: it would change with each run."""
    fields = (
        b"Project-Id-Version|Report-Msgid-Bugs-To|POT-Creation-Date|PO-Revision-Date|"
        b"Generated-By|Last-Translator|Language-Team"
    )
    return re.sub(rb'"(' + fields + rb"): [^\n]*\n", b"", text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
