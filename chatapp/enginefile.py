"""Adds and removes the tables of servers in the settings file, and leaves everything else in it as it is."""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sessions.files import make_private_folder

_HEADER = re.compile(r"\s*\[{1,2}\s*([^\]]+?)\s*\]{1,2}\s*(#.*)?")


class EngineFileError(Exception):
    """The settings file cannot be changed; the message is one sentence for the user."""


def added(text: str, name: str, fields: Mapping[str, Any]) -> str:
    """Return a settings file with one more server at its end. Raises `EngineFileError` where it has no place there."""
    lines = [f"[engines.{_key(name)}]"]
    lines += [f"{key} = {_value(value)}" for key, value in fields.items()]
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    result = text + gap + "\n".join(lines) + "\n"
    if _parsed(result) is None:  # behind `engines = {...}` no table may follow
        raise EngineFileError(f"The settings file writes its servers in a way of its own: add {name} with an editor.")
    return result


def removed(text: str, name: str) -> str:
    """Return a settings file without a server. Raises `EngineFileError` where that cannot be done line by line."""
    kept: list[str] = []
    is_inside = False
    for line in text.splitlines(keepends=True):
        if header := _HEADER.fullmatch(line.rstrip("\r\n")):
            parts = [part.strip().strip("\"'") for part in header[1].split(".", 2)]
            # A name may hold dots, in quotes: what stands between the first dot and the rest decides.
            is_inside = header[1].replace('"', "").replace("'", "").replace(" ", "") == f"engines.{name}" or (
                parts[:2] == ["engines", name]
            )
        if not is_inside:
            kept.append(line)
    result = "".join(kept)
    wanted = tomllib.loads(text)
    wanted.get("engines", {}).pop(name, None)
    found = _parsed(result)
    for tree in (wanted, found or {}):
        if not tree.get("engines", True):
            del tree["engines"]
    if found != wanted:
        raise EngineFileError(f"The settings file writes {name} in a way of its own: take it out with an editor.")
    return result


def write(path: Path, text: str) -> None:
    """Put a settings file in the place of the old one, readable by its owner. Raises `EngineFileError`."""
    if path.exists() and not path.is_file():
        raise EngineFileError(f"{path} is no file that can be changed: name another with --config.")
    target = path.resolve()  # a link stays a link
    try:
        make_private_folder(target.parent)
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(target)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as exc:
        raise EngineFileError(f"{path} cannot be written ({exc.strerror}): mend that, or edit it yourself.") from exc


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    """A value in TOML: texts, numbers and switches."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    escaped = "".join(
        f"\\u{ord(char):04x}" if ord(char) < 32 or ord(char) == 127 else f"\\{char}" if char in '"\\' else char
        for char in str(value)
    )
    return f'"{escaped}"'
