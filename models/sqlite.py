"""SQLite through sqlite-utils: the one importer of it, so that the choice of driver is made in one place.

sqlite-utils takes pysqlite3 where it is installed, whose SQLite has no WAL-reset bug. It also imports numpy if it
can, only to store numpy values, which nobody does here: that import would be a third of the window's start.
"""

from __future__ import annotations

import sys

_HELD_BACK = "numpy"
_is_loaded = _HELD_BACK in sys.modules
if not _is_loaded:
    sys.modules[_HELD_BACK] = None  # type: ignore[assignment]  # makes the import fail, which sqlite-utils allows for
try:
    from sqlite_utils import Database
    from sqlite_utils.utils import sqlite3  # type: ignore[attr-defined]  # its choice of driver
finally:
    if not _is_loaded:
        del sys.modules[_HELD_BACK]

__all__ = ["Database", "sqlite3"]
