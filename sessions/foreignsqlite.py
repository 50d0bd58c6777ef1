"""A SQLite file of another program, read and never written: a file from elsewhere may be damaged, or made to harm.

Opened read-only and unchanging, its schema not trusted; only plain tables are read, values are capped, and a query that
takes too long is ended. Raises `BadRequest`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from models.sqlite import sqlite3
from sessions.errors import BadRequest

LONGEST_QUERY_S = 120.0
MAX_VALUE_BYTES = 64 << 20
_STEPS = 100_000
_SQLITE_LIMIT_LENGTH = 0


class ForeignDatabase:
    """The open file. Names of tables and columns come from the code, never from a file."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def columns(self, table: str) -> set[str]:
        """Return the columns of a plain table; none if there is no such table, or it is a view or virtual."""
        found = self.rows("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", [table])
        if not found or not re.match(r"\s*create\s+table\b", str(found[0][0]), re.IGNORECASE):
            return set()
        # A generated column is code of the file's; those are not listed here.
        return {str(row[1]) for row in self.rows(f"PRAGMA table_info([{table}])")}

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with reporting(self._path):
            return list(self._connection.execute(sql, parameters))


@contextmanager
def opened(path: Path, *, monotonic: Callable[[], float] = time.monotonic) -> Iterator[ForeignDatabase]:
    """Open a database file. Raises `BadRequest` also while its program has changes that are not in the file yet."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        raise BadRequest(f"{path} is in use: quit the program it belongs to, and try again.")
    until = monotonic() + LONGEST_QUERY_S
    with reporting(path):
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            connection.set_progress_handler(lambda: int(monotonic() > until), _STEPS)
            if hasattr(connection, "setlimit"):
                connection.setlimit(_SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            for pragma in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON", "mmap_size = 0"):
                connection.execute(f"PRAGMA {pragma}").fetchall()
            problems = connection.execute("PRAGMA quick_check(1)").fetchall()
            if problems != [("ok",)]:
                raise BadRequest(f"{path} is damaged: let the program it belongs to repair it.")
            yield ForeignDatabase(connection, path)


@contextmanager
def reporting(path: Path) -> Iterator[None]:
    """Turn what SQLite says about a file into `BadRequest`."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError) as error:  # SQLite's own messages quote the file
        raise BadRequest(f"{path} cannot be read as a database ({error}).") from error
    except OSError as error:
        raise BadRequest(f"{path} cannot be read ({(error.strerror or str(error)).lower()}).") from error
    except (MemoryError, OverflowError) as error:
        raise BadRequest(f"{path} holds values that are too large.") from error


def has(database: ForeignDatabase, table: str, columns: Collection[str]) -> bool:
    """True if a plain table has these columns."""
    return set(columns) <= database.columns(table)
