"""The output of a batch: appended row by row, whole after a kill at any moment, and continued by the next run.

A record is one line of JSON. It says by its key which row it answers: `"key"` in records of ours, `"id"` in those of
OpenAI's form, behind `ID_PREFIX`; with an `"error"` that is not null its row failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from sessions.batch_done import DoneRows
from sessions.batch_rows import KEY_BYTES
from sessions.errors import SessionError
from sessions.files import sync_folder
from sessions.locks import OsLock

ID_PREFIX = "batch_req_"
_BEGINNING = b'{"id": '
_KEY = re.compile(f"[0-9a-f]{{{2 * KEY_BYTES}}}")


class OutputUnusable(SessionError):
    """The output cannot be written, or is no output of a batch."""


class Results:
    """An output file that this process alone appends to. Raises `OutputUnusable`, in one sentence.

    Each record is handed to the system whole when it is appended, so that only a power cut can take it, and `sync`
    ends even that. What a killed run left unfinished at the end is cut off when the file is opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.done = DoneRows()
        self.last: dict[str, Any] | None = None
        """The newest record of earlier runs; it begins at `last_offset` (bytes)."""
        self.last_offset = -1
        self.n_records = self._size = 0
        self._is_synced = True
        self._temporary = self.path.with_name(f".{self.path.name}.tmp")
        self._lock = OsLock(self.path.with_name(f".{self.path.name}.lock"))
        with self._failing():
            if not self._lock.take():
                raise OutputUnusable(f"Another batch is writing {path}: let it end, or choose another output.")
        try:
            with self._failing():
                self._temporary.unlink(missing_ok=True)  # a run was killed while it put the file in order
                is_new = not self.path.exists()
                self._file: BinaryIO = self.path.open("ab+", buffering=0)
                if is_new:
                    sync_folder(self.path.parent)  # the name is safe from now on; what is in it, with each `sync`
        except BaseException:
            self._lock.release()
            raise
        try:
            with self._failing():
                self._read()
        except BaseException:
            self.close()
            raise

    # --- earlier runs ---

    def _read(self) -> None:
        """Find what is answered already, and end the file with a whole record."""
        with self.path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n") and not _is_json(line):
                    self._cut(line)
                    break
                self._take(line)
                self._size += len(line)
                if not line.endswith(b"\n"):
                    self._file.write(b"\n")
                    self._size += 1
                    break
        self.done.close()

    def _cut(self, torn: bytes) -> None:
        """Cut off the last line that a kill or a power cut left; what is none of ours is left alone."""
        begun = torn.rstrip(b"\0")
        if begun[: len(_BEGINNING)] != _BEGINNING[: len(begun)]:
            raise self._foreign(self.n_records + 1)
        self._file.truncate(self._size)

    def _take(self, line: bytes) -> None:
        record = _record(line)
        if record is None:
            raise self._foreign(self.n_records + 1)
        self.n_records += 1
        self.done.add(_key_of(record), self._size, failed=record["error"] is not None)
        self.last, self.last_offset = record, self._size

    def _foreign(self, number: int) -> OutputUnusable:
        return OutputUnusable(
            f"Line {number} of {self.path} is no result of a batch: choose another output, or move that file away."
        )

    # --- this run ---

    def append(self, record: bytes) -> int:
        """Add a record, without its line's end; return where it begins (bytes)."""
        offset, line = self._size, record + b"\n"
        with self._failing():
            written = self._file.write(line)
            while written < len(line):  # a full disk takes a part, and then fails
                written += self._file.write(line[written:])
        self._size += len(line)
        self.n_records += 1
        self._is_synced = False
        return offset

    def sync(self) -> None:
        """Let what was appended survive a power cut; may be called from another thread."""
        if not self._is_synced:
            self._is_synced = True
            with self._failing():
                os.fsync(self._file.fileno())

    def arrange(self, offsets: Iterable[int]) -> None:
        """Let the file hold these records, in this order, and no others. Stopped anywhere, it is as it was or done."""
        wanted = array("Q", offsets)
        if len(wanted) == self.n_records and all(a < b for a, b in pairwise(wanted)):
            return
        temporary = self._temporary
        with self._failing():
            with self.path.open("rb") as source, temporary.open("wb") as target:
                temporary.chmod(self.path.stat().st_mode & 0o777)
                for offset in wanted:
                    source.seek(offset)
                    target.write(source.readline())
                target.flush()
                os.fsync(target.fileno())
            self._file.close()  # Windows replaces no open file
            temporary.replace(self.path)
            sync_folder(self.path.parent)
            self._file = self.path.open("ab+", buffering=0)
        self.n_records, self._size, self._is_synced = len(wanted), self.path.stat().st_size, True

    def close(self) -> None:
        """Sync, and let other runs have the file."""
        try:
            self.sync()
        finally:
            self._file.close()
            self._lock.release()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise OutputUnusable(
                f"{self.path} cannot be written ({reason}): results written before are safe, and the same command "
                "goes on behind them."
            ) from error


def _is_json(line: bytes) -> bool:
    """True for a whole record, or what is whole and no record: only a line that breaks off was ours to write."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _record(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line; None if it is none of ours."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_ours = isinstance(record, dict) and "error" in record and _KEY.fullmatch(_key_of(record))
    return record if is_ours else None


def _key_of(record: dict[str, Any]) -> str:
    key = record.get("key")
    return key if isinstance(key, str) else str(record.get("id")).removeprefix(ID_PREFIX)
