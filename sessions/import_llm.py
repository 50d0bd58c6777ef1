"""The log of Simon Willison's `llm`: `logs.db`, with the tables `conversations` and `responses`.

Its schema is documented at https://llm.datasette.io/en/stable/logging.html.
"""

from __future__ import annotations

from collections.abc import Iterator

from sessions.fieldvalues import seconds, text
from sessions.foreignsqlite import ForeignDatabase, has
from sessions.planting import Foreign, Turn

_FRAGMENTS = """SELECT f.content FROM [{table}] p JOIN [fragments] f ON f.id = p.fragment_id
    WHERE p.response_id = ? ORDER BY p.[order]"""


def is_log(database: ForeignDatabase) -> bool:
    """True for a database with this program's tables."""
    return has(database, "conversations", ("id", "name")) and has(
        database, "responses", ("id", "prompt", "system", "response", "conversation_id", "datetime_utc")
    )


def read(database: ForeignDatabase) -> Iterator[Foreign]:
    """Yield the conversations of a log, in its order."""
    tables = {
        table
        for table in ("prompt_fragments", "system_fragments")
        if has(database, table, ("response_id", "fragment_id", "order")) and has(database, "fragments", ("content",))
    }
    for key, name in database.rows("SELECT id, name FROM [conversations] ORDER BY rowid"):
        turns = list(_turns(database, key, tables))
        times = [turn.at for turn in turns if turn.at is not None]
        yield Foreign(
            key=str(key),
            title=text(name),
            turns=turns,
            created_at=min(times, default=None),
            updated_at=max(times, default=None),
        )


def _turns(database: ForeignDatabase, conversation: object, tables: set[str]) -> Iterator[Turn]:
    rows = database.rows(
        """SELECT id, prompt, system, response, datetime_utc FROM [responses]
            WHERE conversation_id = ? ORDER BY datetime_utc, id""",
        [conversation],
    )
    last: str | None = None
    known = ""
    for number, (key, prompt, system, response, moment) in enumerate(rows):
        at = seconds(moment)
        # As llm puts them together.
        asked = "\n".join([*_fragments(database, "prompt_fragments", key, tables), *filter(None, [text(prompt)])])
        parts = [*_fragments(database, "system_fragments", key, tables), text(system)]
        instructions = "\n\n".join(part.strip() for part in parts if part.strip())
        if instructions and instructions != known:  # llm stores it with each response
            yield Turn(f"{number} system", last, "system", instructions, at)
            last, known = f"{number} system", instructions
        yield Turn(f"{number} prompt", last, "user", asked, at)
        yield Turn(f"{number} response", f"{number} prompt", "assistant", text(response), at)
        last = f"{number} response"


def _fragments(database: ForeignDatabase, table: str, response: object, tables: set[str]) -> list[str]:
    if table not in tables:
        return []
    return [text(content) for (content,) in database.rows(_FRAGMENTS.format(table=table), [response])]
