"""Brings the index of KV segments and the files in line; the store's lock must be held."""

from __future__ import annotations

import contextlib
import stat
from dataclasses import dataclass
from pathlib import Path

from models.kvfolder import KvFolder, StoredFile
from models.kvformat import Part, SegmentDamaged, read_head
from models.kvindex import IndexDamaged, KvIndex, discard_index


@dataclass(frozen=True, slots=True)
class Reconciled:
    """Files taken into the index, rows whose file is gone, files set aside because they are no segments."""

    adopted: int
    vanished: int
    damaged: int


def open_index(folder: KvFolder, now: float, *, is_checked: bool = False) -> KvIndex:
    """Open the index; one that is new, or damaged, is filled from the files. The store's lock must be held.

    Not all damage shows when it is opened: `is_checked` reads all of it. Raises OSError.
    """
    index = KvIndex(folder.index_path)
    try:
        if is_checked:
            index.check()
        if index.is_new:
            reconcile(folder, index, now)
    except IndexDamaged:
        index.close()
        discard_index(folder.index_path)
        index = KvIndex(folder.index_path)
        reconcile(folder, index, now)
    except OSError:
        index.close()
        raise
    return index


def reconcile(folder: KvFolder, index: KvIndex, now: float) -> Reconciled:
    """Take files without a row into the index, drop sizes of files that are gone, delete what killed writers left.

    Reads headers, not payloads: what is taken in here is verified when it is used. Raises OSError of the index.
    """
    index.drop_damaged_rows()
    known: dict[Path, tuple[bytes, Part]] = {}
    for row in index.outlines():
        if row.rows_bytes:
            known[folder.segment_path(row.fingerprint, row.key, "rows")] = row.key, "rows"
        if row.state_bytes:
            known[folder.segment_path(row.fingerprint, row.key, "state")] = row.key, "state"
    seen: set[Path] = set()
    adopted = damaged = 0
    for fingerprint in folder.generations():
        for file in folder.files(fingerprint):
            if file.path in known:
                seen.add(file.path)
            elif _adopt(folder, index, file, now):
                adopted += 1
            else:
                damaged += 1
        for path in folder.remnants(fingerprint):
            with contextlib.suppress(OSError):
                path.unlink()
    vanished = [lost for path, lost in known.items() if path not in seen]
    index.lose(vanished, "vanished")
    index.mark("reconciled", now)
    return Reconciled(adopted, len(vanished), damaged)


def _adopt(folder: KvFolder, index: KvIndex, file: StoredFile, now: float) -> bool:
    try:
        status = file.path.lstat()
        place = folder.segment_path(file.fingerprint, file.key, file.part)
        if not stat.S_ISREG(status.st_mode) or file.path != place:
            raise SegmentDamaged("not a file, or not at its place")
        head = read_head(file.path)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # unreadable now, perhaps not tomorrow
    except SegmentDamaged:
        folder.set_aside(file.path)
        return False
    if (head.segment.fingerprint, head.segment.key, head.part) != (file.fingerprint, file.key, file.part):
        folder.set_aside(file.path)
        return False
    index.add(head.segment, head.owner, head.part, head.file_bytes, min(status.st_mtime, now))
    return True
