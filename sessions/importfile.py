"""The file that is imported: what kind it is, and its JSON, plain or inside a zip archive; limits come before reading.

Nothing is extracted: members of an archive are read in place, and their names are never used as paths.
"""

from __future__ import annotations

import io
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

from sessions.errors import BadRequest

MAX_BYTES = 512 << 20
"""Longest file; in an archive, all members that are read."""
MAX_RATIO = 250
"""Most that a member may unpack to; JSON of conversations reaches about 20."""
MAX_INDEX_BYTES = 8 << 20
"""Longest list of members in an archive: room for some 80,000."""
MAX_MEMBERS = 1000
"""Of one archive, that hold conversations."""

Kind: TypeAlias = Literal["json", "sqlite", "text"]
_MEMBER = re.compile(r"(?:^|/)conversations(?:-\d{1,6})?\.json$")


class ImportFile:
    """A file that was found fit to be read. Raises `BadRequest` with what is wrong with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.reporting():
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise BadRequest(f"{path} is no file: name the export itself.")
            with path.open("rb") as file:
                start = file.read(4096)
            self.is_zip = start[:4] in (b"PK\x03\x04", b"PK\x05\x06")
            if not self.is_zip and status.st_size > MAX_BYTES:
                raise BadRequest(f"{path} has more than {MAX_BYTES >> 20} MiB, which is the most that is read.")
            if not start.strip():
                raise BadRequest(f"{path} is empty.")
        self.kind: Kind = "json" if self.is_zip else _kind(start)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Turn whatever the disk or an archive does into `BadRequest`."""
        try:
            yield
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise BadRequest(f"{self.path} cannot be read ({reason}): check its name and permissions.") from error
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
            raise BadRequest(f"{self.path} is damaged, or no archive that can be read: download it again.") from error

    def members(self) -> list[str]:
        """Return the names of what holds conversations: those in the archive, or the file itself."""
        if not self.is_zip:
            return [""]
        with self.reporting(), _Careful(self.path) as file, zipfile.ZipFile(file) as archive:
            found = [info for info in archive.infolist() if _holds_conversations(info)]
            if not found:
                raise BadRequest(f"{self.path} holds no conversations.json: is it an export of conversations?")
            if len(found) > MAX_MEMBERS or sum(info.file_size for info in found) > MAX_BYTES:
                raise BadRequest(
                    f"{self.path} unpacks to more than {MAX_BYTES >> 20} MiB, which is the most that is read."
                )
            for info in found:
                if info.file_size > MAX_RATIO * max(info.compress_size, 1):
                    raise BadRequest(f"{self.path} unpacks to more than {MAX_RATIO} times its size: it is not read.")
                if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise BadRequest(f"{self.path} is encrypted, or packed in an unusual way: unpack it first.")
            return sorted(info.filename for info in found)

    @contextmanager
    def open(self, member: str) -> Iterator[BinaryIO]:
        """Open one of `members` to be read from its start."""
        with self.reporting():
            if not self.is_zip:
                with self.path.open("rb") as plain:
                    yield plain
                return
            with _Careful(self.path) as file, zipfile.ZipFile(file) as archive, archive.open(member) as packed:
                yield packed  # type: ignore[misc]  # an IO of bytes, of which `read` is used

    def text(self) -> str:
        """Return a text file. Raises `BadRequest` unless it is UTF-8."""
        with self.reporting():
            data = self.path.read_bytes()
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadRequest("It is not UTF-8: save it as UTF-8 first.") from error


def _kind(start: bytes) -> Kind:
    if start.startswith(b"SQLite format 3\0"):
        return "sqlite"
    return "json" if start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"[", b"{") else "text"


def _holds_conversations(info: zipfile.ZipInfo) -> bool:
    return bool(_MEMBER.search(info.filename)) and not info.filename.startswith("__MACOSX/")


class _Careful(io.FileIO):
    """A file of which no piece longer than `MAX_INDEX_BYTES` is read: zipfile takes the list of members in one."""

    def __init__(self, path: Path) -> None:
        super().__init__(os.fspath(path), "rb")

    def read(self, size: int | None = -1, /) -> Any:
        if size is None or size < 0 or size > MAX_INDEX_BYTES:
            size = MAX_INDEX_BYTES + 1
        piece = super().read(size)
        if piece is not None and len(piece) > MAX_INDEX_BYTES:
            raise BadRequest(f"{self.name} lists too many members: it is not read.")
        return piece
