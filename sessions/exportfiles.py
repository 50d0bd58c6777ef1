"""Files that an export makes: names that are safe everywhere, whole or not there at all, nothing ever overwritten."""

from __future__ import annotations

import os
import secrets
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from sessions.errors import BadRequest, StoreError
from sessions.files import make_private_folder, sync_folder

MAX_NAME_CHARS = 80
MAX_NAME_BYTES = 200
"""Of 255 that file systems take: a number and the ending come behind."""
MAX_TRIES = 10_000

_KEPT = frozenset(" -_.,()'&+")
_PORTS = (f"{port}{n}" for port in ("com", "lpt") for n in "0123456789¹²³")
_RESERVED = frozenset(["con", "prn", "aux", "nul", "conin$", "conout$", *_PORTS])
"""What Windows takes for a device, whatever the ending."""


def safe_stem(title: str) -> str:
    """Return a title as the name of a file, without its ending: the only way from text to a name.

    Letters, marks and digits of any script stay; separators, control characters, marks of direction and everything
    else become a space. Never empty, hidden, an option, reserved or longer than `MAX_NAME_BYTES`.
    """
    text = unicodedata.normalize("NFC", title[: MAX_NAME_CHARS * 8])
    kept = "".join(char if char in _KEPT or unicodedata.category(char)[0] in "LMN" else " " for char in text)
    stem = " ".join(kept.split())[:MAX_NAME_CHARS]
    while len(stem.encode("utf-8")) > MAX_NAME_BYTES:
        stem = stem[:-1]
    stem = stem.strip(" .-")
    if stem.partition(".")[0].rstrip().lower() in _RESERVED:
        stem = f"_{stem}"
    return stem or "conversation"


def write_file(path: Path, chunks: Iterable[str]) -> Path:
    """Write a new file, readable by its owner only. Raises `BadRequest` if there is one, `StoreError`."""
    if os.path.lexists(path):
        raise BadRequest(f"{path} is there already: choose another name, or a folder.")
    return _write(path.parent, [path.name], chunks)


def write_into(folder: Path, title: str, suffix: str, chunks: Iterable[str]) -> Path:
    """Write a new file into a folder, under a name that is free, and return its path. Raises `StoreError`."""
    stem = safe_stem(title)
    names = [f"{stem}{suffix}", *(f"{stem} {n}{suffix}" for n in range(2, MAX_TRIES))]
    return _write(folder, names, chunks)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents. Raises `StoreError`."""
    try:
        make_private_folder(folder)
    except OSError as error:
        raise _refusal(folder, error) from error


def _write(folder: Path, names: Iterable[str], chunks: Iterable[str]) -> Path:
    temporary = folder / f".chatapp-{secrets.token_hex(8)}.tmp"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(temporary, flags, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", newline="\n") as file:
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())
            path = _place(temporary, folder, names)
            sync_folder(folder)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _refusal(folder, error) from error
    return path


def _place(temporary: Path, folder: Path, names: Iterable[str]) -> Path:
    """Give a file the first name that is free."""
    for name in names:
        path = folder / name
        try:
            _link(temporary, path)
        except FileExistsError:
            continue
        return path
    raise BadRequest(f"{folder} has too many files of the same name: choose another folder.")


def _link(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # this file system has no links: take the name first, then put the file there
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600))
        try:
            temporary.replace(path)
        except OSError:
            path.unlink(missing_ok=True)
            raise


def _refusal(folder: Path, error: OSError) -> StoreError:
    reason = (error.strerror or str(error)).lower()
    # The name of the temporary file says nothing to anybody.
    return StoreError(f"{folder} cannot be written to ({reason}): choose another place.")
