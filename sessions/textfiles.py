"""Reading files that somebody wants to attach: text of any encoding, within limits, and nothing that could hang.

Raises `BadRequest` (one sentence with the numbers and a way out) for whatever cannot be attached.
"""

from __future__ import annotations

import codecs
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from sessions.errors import BadRequest
from sessions.hygiene import tidy

MAX_BYTES = 8_000_000
MAX_CHARS = 2_000_000
"""Several times what any context holds."""
_LEAST_BYTES_A_TOKEN = 8
"""Texts whose tokens are longer on average are not met; about half of it is usual."""
_HEAD = 65_536
_MAX_CONTROL_SHARE = 0.05
_REPLACEMENT = "\ufffd"
_BOMS = (  # the longer ones first: UTF-32 begins as UTF-16 does
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_NAMES = {"utf-8-sig": "UTF-8", "utf-8": "UTF-8", "utf-16": "UTF-16", "utf-32": "UTF-32", "cp949": "EUC-KR"}
_CONTROLS = bytes(range(0x20)).translate(None, b"\t\n\r\f\x1b\b")


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file's text by the rule of `hygiene`, the encoding it was read in, and how many characters were replaced."""

    text: str
    encoding: str
    n_replaced: int


def read_text(path: Path, *, max_tokens: int | None = None) -> TextFile:
    """Read a regular file, followed through links; its size is looked at first. `max_tokens` is what a context holds.

    Never waits for a pipe or a device.
    """
    shown = _shown(path)
    try:
        found = path.stat()
        _check_kind(shown, found.st_mode)
        _check_size(shown, found.st_size, max_tokens)
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(path, flags), "rb") as file:
            _check_kind(shown, os.fstat(file.fileno()).st_mode)  # another one may have its name by now
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise BadRequest(f"{shown} cannot be read ({reason}): check its name and permissions.") from error
    _check_size(shown, len(data), max_tokens)  # some files, those of /proc for instance, do not tell theirs
    if is_binary(data):
        raise BadRequest(f"{shown} is not a text: only text files can be attached.")
    text, encoding, n_damaged = decode(data)
    text, n_scrubbed = tidy(text)
    if len(text) > MAX_CHARS:
        raise BadRequest(f"{shown} has {len(text):,} characters: {MAX_CHARS:,} is the most, so attach a part of it.")
    if not text.strip():
        raise BadRequest(f"{shown} is empty: there is nothing to attach.")
    return TextFile(text, encoding, n_damaged + n_scrubbed)


def decode(data: bytes) -> tuple[str, str, int]:
    """Return a text, what it was read as, and how many U+FFFD stand for bytes that spell nothing.

    By its byte order mark; else as UTF-8, also if a few bytes are damaged; else as Korean if nearly all of it is that;
    else as Windows-1252, which fits any bytes but five.
    """
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            return _replaced(data, encoding)
    try:
        return data.decode("utf-8"), "UTF-8", 0
    except UnicodeDecodeError:
        pass
    text, name, n_bad = _replaced(data, "utf-8")
    if sum(not char.isascii() for char in text) - n_bad >= n_bad:
        return text, name, n_bad
    if (korean := _korean(data)) is not None:
        return korean, _NAMES["cp949"], 0
    return _replaced(data, "cp1252")


def is_binary(data: bytes) -> bool:
    """True for bytes that are no text: NULs where no byte order mark explains them, or many control characters."""
    if any(data.startswith(bom) for bom, _ in _BOMS):
        return False
    head = data[:_HEAD]
    n_controls = len(head) - len(head.translate(None, _CONTROLS))
    return b"\0" in data or n_controls > _MAX_CONTROL_SHARE * len(head)


def _replaced(data: bytes, encoding: str) -> tuple[str, str, int]:
    text = data.decode(encoding, "replace")
    n_genuine = data.decode(encoding, "ignore").count(_REPLACEMENT) if _REPLACEMENT in text else 0
    return text, _NAMES.get(encoding, "Windows-1252"), text.count(_REPLACEMENT) - n_genuine


def _korean(data: bytes) -> str | None:
    """Return the text of an old Korean file, None if it is none: most of what is not ASCII must be common syllables."""
    try:
        text = data.decode("cp949")
    except UnicodeDecodeError:
        return None
    foreign = [char for char in text if not char.isascii()]
    syllables = "".join(char for char in foreign if "가" <= char <= "힣")
    common = len(syllables.encode("euc_kr", "ignore")) // 2
    return text if common >= 0.8 * len(foreign) else None


def _check_kind(shown: str, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise BadRequest(f"{shown} is a folder: name a file in it.")
    if not stat.S_ISREG(mode):
        raise BadRequest(f"{shown} is a pipe or a device: only files can be attached.")


def _check_size(shown: str, n_bytes: int, max_tokens: int | None) -> None:
    if n_bytes > MAX_BYTES:
        raise BadRequest(
            f"{shown} has {n_bytes / 1e6:,.1f} MB: {MAX_BYTES / 1e6:,.0f} MB is the most, so attach a part of it."
        )
    if max_tokens is not None and n_bytes // _LEAST_BYTES_A_TOKEN > max_tokens:
        about = n_bytes // (_LEAST_BYTES_A_TOKEN // 2)
        raise BadRequest(
            f"{shown} has {n_bytes / 1e6:,.1f} MB, about {about:,} tokens, and the context holds {max_tokens:,}: "
            "attach a part of it."
        )


def _shown(path: Path) -> str:
    name = "".join(char if char.isprintable() else _REPLACEMENT for char in str(path))
    return name if len(name) <= 100 else "…" + name[-99:]
