"""Reads every stored segment and says what is wrong: with the files, with the index, or between them."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from models.kvfolder import KvFolder, StoredFile
from models.kvformat import (
    PARTS,
    Head,
    Part,
    SegmentDamaged,
    SegmentForeign,
    check_segment,
    key_id,
    read_head,
    root_key,
)
from models.kvindex import IndexDamaged, KvIndex, Outline
from models.kvreconcile import open_index, reconcile

# BLAKE3 and reading release the interpreter lock; more threads than two only fight for memory.
_READERS = 2
# Small enough to stay in the processor's cache between being read and being hashed.
_BUFFER_BYTES = 1 << 20

Kind = Literal["damaged", "unreadable", "missing", "unindexed", "bad row"]
"""A file that is not what it should be; one that cannot be opened; a row without its file; a good file without a
row; a row that contradicts its file or itself."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: which file or row, and how."""

    kind: Kind
    where: str
    detail: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Files by what was found, rows by what is wrong with them; what was read (bytes) and how long it took.

    `n_foreign` files belong to another data directory: they cannot be checked, and are not touched.
    """

    n_ok: int = 0
    n_foreign: int = 0
    n_bytes: int = 0
    seconds: float = 0.0
    faults: tuple[Fault, ...] = ()
    n_repaired: int = 0

    def count(self, kind: Kind) -> int:
        """How many faults are of a kind."""
        return sum(1 for fault in self.faults if fault.kind == kind)

    @property
    def is_fine(self) -> bool:
        """True if nothing is wrong, or nothing any more."""
        return self.n_repaired == len(self.faults)


def verify(
    root: Path,
    mac_key: bytes | None,
    *,
    repair: bool,
    progress: Callable[[int, int], None],
    clock: Callable[[], float] = time.time,
) -> VerifyReport:
    """Check every file of this MAC key's owner, and every row. Nothing changes on disk unless `repair`.

    Repairing sets damaged files aside, takes good ones into the index and forgets what it promises in vain; a file
    that cannot be opened is left as it is. `progress` receives (bytes done, bytes total). Engines may run meanwhile.
    Raises OSError when the index cannot be used.
    """
    begun = time.perf_counter()
    folder = KvFolder(root)
    if not root.is_dir():
        return VerifyReport()
    is_renewed = repair and _renewed(folder, clock())
    with closing(KvIndex(folder.index_path, read_only=not repair)) as index:
        check = _Check(folder, index, mac_key)
        n_bytes = check.read_files(progress)
        check.compare_rows()
        suspects = check.confirmed()
        n_bad = index.n_damaged_rows()
        n_repaired = 0
        if repair and (suspects or n_bad):
            n_repaired = sum(check.repair(suspect) for suspect in suspects) + n_bad
            with folder.locked():
                reconcile(folder, index, clock())
    n_repaired += is_renewed
    faults = [Fault(suspect.kind, str(suspect.file.path), suspect.detail) for suspect in suspects]
    faults += [Fault("bad row", str(folder.index_path), "a row of the index is no row of ours")] * n_bad
    faults += [Fault("bad row", str(folder.index_path), "the index was damaged, and was made anew")] * is_renewed
    return VerifyReport(
        n_ok=check.seen["ok"],
        n_foreign=check.seen["foreign"],
        n_bytes=n_bytes,
        seconds=time.perf_counter() - begun,
        faults=tuple(faults),
        n_repaired=n_repaired,
    )


def _renewed(folder: KvFolder, now: float) -> bool:
    """Make the index anew from the files if its database is damaged; True if it was."""
    if not folder.index_path.is_file():
        return False
    with folder.locked():
        try:
            with closing(KvIndex(folder.index_path)) as index:
                index.check()
                return False
        except IndexDamaged:
            open_index(folder, now, is_checked=True).close()
            return True


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A fault, and what it takes to look again and to repair it; `head` is there if the file itself is good."""

    kind: Kind
    file: StoredFile
    detail: str
    head: Head | None = None


class _Check:
    """One run over files and rows; rows are read again before anything is called a fault."""

    def __init__(self, folder: KvFolder, index: KvIndex, mac_key: bytes | None) -> None:
        self._folder = folder
        self._index = index
        self._mac_key = mac_key
        self._owner = key_id(mac_key) if mac_key else b""
        self._rows = self._read_rows()
        self._thread = threading.local()
        self._suspects: list[_Suspect] = []
        self.seen: Counter[str] = Counter()

    def _read_rows(self) -> dict[bytes, Outline]:
        return {row.key: row for row in self._index.outlines()}

    def read_files(self, progress: Callable[[int, int], None]) -> int:
        """Judge every file; returns the bytes of all."""
        files = [file for key in self._folder.generations() for file in self._folder.files(key)]
        sizes = [_size(file.path) for file in files]
        done, total = 0, sum(sizes)
        pool = ThreadPoolExecutor(_READERS, "kv-verify")
        try:
            for verdict, size in zip(pool.map(self._judge, files), sizes, strict=True):
                if isinstance(verdict, _Suspect):
                    self._suspects.append(verdict)
                else:
                    self.seen[verdict] += 1
                done += size
                progress(done, total)
        finally:
            pool.shutdown(cancel_futures=True)
        return total

    def _judge(self, file: StoredFile) -> _Verdict:
        row = self._rows.get(file.key)
        try:
            if not stat.S_ISREG(file.path.lstat().st_mode):
                return _Suspect("damaged", file, "it is not a file")
            if file.path != self._folder.segment_path(file.fingerprint, file.key, file.part):
                return _Suspect("damaged", file, "it lies in a folder where nobody looks for it")
            return self._read(file)
        except FileNotFoundError:
            return "gone"
        except SegmentDamaged as exc:
            return _Suspect("damaged", file, str(exc)) if row is None or row.owner == self._owner else "foreign"
        except OSError as exc:
            return _Suspect("unreadable", file, exc.strerror or str(exc))

    def _read(self, file: StoredFile) -> _Verdict:
        try:
            if self._mac_key is None:
                return self._judge_foreign(file)
            head = check_segment(file.path, self._mac_key, self._buffer())
        except SegmentForeign:
            return self._judge_foreign(file)
        if (head.segment.fingerprint, head.segment.key, head.part) != (file.fingerprint, file.key, file.part):
            return _Suspect("damaged", file, "it belongs to another place")
        return self._compare(file, head)

    def _judge_foreign(self, file: StoredFile) -> _Verdict:
        """A file that names another owner; one of ours if what leads to it is ours."""
        head = read_head(file.path)
        segment = head.segment
        is_ours = any(
            row.owner == self._owner for row in map(self._rows.get, (file.key, segment.parent)) if row is not None
        )
        if is_ours or (segment.start == 0 and segment.parent != root_key(file.fingerprint, head.owner)):
            return _Suspect("damaged", file, "its header names another owner")
        return "foreign"

    def _compare(self, file: StoredFile, head: Head) -> _Verdict:
        """A good file with its row."""
        row = self._rows.get(file.key)
        if row is None or not _bytes_of(row, file.part):
            return _Suspect("unindexed", file, "the index does not know it", head)
        segment = head.segment
        said = (row.parent, row.fingerprint, row.owner, row.n_tokens, _bytes_of(row, file.part))
        if said != (segment.parent, segment.fingerprint, head.owner, len(segment.tokens), head.file_bytes):
            return _Suspect("bad row", file, "the index says something else of it", head)
        return "ok"

    def _buffer(self) -> memoryview:
        """Each thread's own."""
        if not hasattr(self._thread, "buffer"):
            self._thread.buffer = memoryview(bytearray(_BUFFER_BYTES))
        buffer: memoryview = self._thread.buffer
        return buffer

    def compare_rows(self) -> None:
        """Check each of our rows by itself, and that it has its files."""
        for row in self._rows.values():
            if row.owner != self._owner:
                continue
            files = [self._file_of(row, part) for part in PARTS if _bytes_of(row, part)]
            if not self._is_sound(row.key):
                self._suspects.append(_Suspect("bad row", self._file_of(row, "rows"), "its tokens are not its key's"))
                continue
            self._suspects += [
                _Suspect("missing", file, "the index promises it") for file in files if not os.path.lexists(file.path)
            ]

    def _file_of(self, row: Outline, part: Part) -> StoredFile:
        return StoredFile(self._folder.segment_path(row.fingerprint, row.key, part), row.fingerprint, row.key, part)

    def _is_sound(self, key: bytes) -> bool:
        try:
            row = self._index.get(key)
        except OSError:
            return False
        return row is None or row.segment.key == key

    def confirmed(self) -> list[_Suspect]:
        """The suspects that engines at work in the meantime do not explain.

        Looked at again under the lock: who deletes takes rows away first, then files. Without a lock file nobody does.
        """
        if not self._suspects:
            return []
        with contextlib.ExitStack() as held:
            if self._folder.lock_path.exists():
                with contextlib.suppress(PermissionError):  # a folder that is read-only for us
                    held.enter_context(self._folder.locked())
            self._rows = self._read_rows()
            return [suspect for suspect in self._suspects if self._is_still(suspect)]

    def _is_still(self, suspect: _Suspect) -> bool:
        file = suspect.file
        if suspect.kind == "missing":
            row = self._rows.get(file.key)
            return row is not None and _bytes_of(row, file.part) > 0 and not os.path.lexists(file.path)
        if suspect.head:
            is_there = os.path.lexists(file.path)
            if is_there and self._compare(file, suspect.head) == "ok":
                self.seen["ok"] += 1
                return False
            return is_there
        return suspect.kind == "bad row" or os.path.lexists(file.path)

    def repair(self, suspect: _Suspect) -> bool:
        """Do what can be done, except what `reconcile` does for all afterwards; True if it is in order then."""
        file = suspect.file
        if suspect.kind == "bad row":
            self._index.remove([file.key])
        elif suspect.kind == "damaged":
            with self._folder.locked():
                verdict = self._judge(file)
                if isinstance(verdict, _Suspect) and verdict.kind == "damaged":
                    row = self._rows.get(file.key)
                    if row and file == self._file_of(row, file.part):
                        self._index.lose([(file.key, file.part)], "damaged")
                    self._folder.set_aside(file.path)
                    return not os.path.lexists(file.path)
        return suspect.kind != "unreadable"


def _bytes_of(row: Outline, part: Part) -> int:
    return row.rows_bytes if part == "rows" else row.state_bytes


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        found = path.lstat()
        return found.st_size if stat.S_ISREG(found.st_mode) else 0
    return 0


_Verdict = Literal["ok", "foreign", "gone"] | _Suspect
