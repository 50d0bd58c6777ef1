"""`--json-schema` and `--grammar`: what an answer has to look like, read before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import click

from chatapp.safe import decode_input
from models.errors import GrammarError
from models.grammar import MAX_GRAMMAR_BYTES, check_grammar
from models.schema import read_schema


def read_constraint(schema: str | None, grammar: str | None) -> str | None:
    """Return the grammar of a JSON schema (a file's name, or JSON that begins with a brace) or of a GBNF file.

    Raises `UsageError` in one sentence.
    """
    if schema is not None and grammar is not None:
        raise click.UsageError("--json-schema and --grammar do not go together: give one of them.")
    try:
        if schema is not None:
            return read_schema(schema if schema.lstrip().startswith("{") else _content("--json-schema", Path(schema)))
        if grammar is not None:
            text = _content("--grammar", Path(grammar))
            check_grammar(text)
            return text
    except GrammarError as error:
        raise click.UsageError(str(error)) from error
    return None


def _content(flag: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_GRAMMAR_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such name is possible"
        raise click.UsageError(f"{flag}: {str(path)[:200]!r} cannot be read: {reason}.") from error
    text, n_damaged = decode_input(data)
    # A file that is too long is cut in the middle of a character perhaps: that is said by whoever reads it.
    if n_damaged and len(data) <= MAX_GRAMMAR_BYTES:
        raise click.UsageError(f"{flag}: {str(path)[:200]!r} is not UTF-8 text.")
    return text if len(data) <= MAX_GRAMMAR_BYTES else text + " " * MAX_GRAMMAR_BYTES
