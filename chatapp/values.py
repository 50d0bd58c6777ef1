"""Kinds of values a setting can have, and how each is read from text and from TOML."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chatapp.sizes import parse_size
from models.presets import PRESETS

_SWITCH = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value; `expected` completes the sentence "it must be ...".

    `parse` takes the text of a variable, what a flag gives, or one of TOML's `types`, and the folder that relative
    paths start from; it raises `ValueError`.
    """

    expected: str
    types: tuple[type, ...]
    parse: Callable[[Any, Path], Any]


def whole(least: int) -> Kind:
    """Whole numbers from `least` on."""

    def parse(value: str | int, _base: Path) -> int:
        number = int(value)
        if number < least:
            raise ValueError
        return number

    return Kind(f"a whole number of at least {least}", (int,), parse)


def choice(*choices: str) -> Kind:
    """One of a few words."""

    def parse(value: str, _base: Path) -> str:
        if value not in choices:
            raise ValueError
        return value

    return Kind(f"{', '.join(choices[:-1])} or {choices[-1]}", (str,), parse)


def _path(value: str | Path, base: Path) -> Path:
    if not str(value) or "\0" in str(value):
        raise ValueError
    try:
        return (base / Path(value).expanduser()).absolute()
    except RuntimeError as exc:  # the home folder of a user who does not exist
        raise ValueError from exc


def _model(value: str | Path, base: Path) -> Path:
    """An absolute path; of what is no file and does not look like one, the name as it is."""
    path = _path(value, base)
    text = str(value)
    looks_like_a_path = path.suffix.lower() == ".gguf" or text.startswith((".", "~")) or Path(text).is_absolute()
    return path if looks_like_a_path or path.is_file() else Path(value)


def _switch(value: str | bool | int, _base: Path) -> bool:
    try:
        return _SWITCH[str(value).lower()]
    except KeyError as exc:
        raise ValueError from exc


def _size(value: str | int, _base: Path) -> int:
    return parse_size(value)


def _engine(value: str, _base: Path) -> str:
    if not re.fullmatch(r"llama|fake(:[1-9][0-9]*)?|(?!llama|fake)[a-z0-9][a-z0-9._-]*(/\S+)?", value):
        raise ValueError
    return value


def _loras(value: Any, base: Path) -> tuple[tuple[Path, float], ...]:
    items = [item for item in value.split(os.pathsep) if item] if isinstance(value, str) else value
    return tuple(_lora(item, base) for item in items)


def _lora(item: Any, base: Path) -> tuple[Path, float]:
    """An adapter and its strength from `"PATH"`, `"PATH=SCALE"` or `{path = ..., scale = ...}`.

    What stands behind the last `=` is a scale only if it is a number: paths may contain the sign.
    """
    scale: Any = 1.0
    path = item
    if isinstance(item, dict):
        if not {"path"} <= item.keys() <= {"path", "scale"}:
            raise ValueError
        path, scale = item["path"], item.get("scale", scale)
    elif isinstance(item, str):
        head, sign, tail = item.rpartition("=")
        if sign and _is_number(tail):
            path, scale = head, float(tail)
    if not isinstance(path, str) or type(scale) not in (int, float) or not math.isfinite(scale):
        raise ValueError
    return _path(path, base), float(scale)


def _presets(value: Any, _base: Path) -> dict[str, str]:
    """Presets by the name of the model, from a table or `NAME=PRESET`, several with commas between."""
    if isinstance(value, str):
        value = {name: preset for name, _, preset in (item.rpartition("=") for item in value.split(",") if item)}
    presets = {str(name).strip(): str(preset).strip() for name, preset in value.items()}
    if not all(name and preset in PRESETS for name, preset in presets.items()):
        raise ValueError
    return presets


def _language(value: str, _base: Path) -> str:
    if not re.fullmatch(r"auto|[a-z]{2,3}(_[A-Z]{2})?", value):
        raise ValueError
    return value


def _theme(value: str, _base: Path) -> str:
    if not value.strip():
        raise ValueError
    return value.strip()


def _keys(value: Any, _base: Path) -> dict[str, str]:
    """Keys by command, from a table (dots in names make tables in it) or `COMMAND=KEY`, several with blanks between."""
    if isinstance(value, str):
        pairs = [item.partition("=") for item in value.split()]
        if not all(name and sign for name, sign, _ in pairs):
            raise ValueError
        return {name: keys for name, _, keys in pairs}
    found: dict[str, str] = {}
    for name, keys in value.items():
        if isinstance(keys, dict):
            found |= {f"{name}.{inner}": text for inner, text in _keys(keys, _base).items()}
        else:
            found[str(name)] = ",".join(map(str, keys)) if isinstance(keys, list) else str(keys)
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


PATH = Kind("a path", (str,), _path)
MODEL = Kind("a path or the name of a model", (str,), _model)
SWITCH = Kind("true or false (or on, off, yes, no, 1, 0)", (bool, str, int), _switch)
SIZE = Kind('a size such as "20GiB", "500 MB" or 0', (str, int), _size)
ENGINE = Kind("llama or the name of a server (fake or fake:N in demonstrations)", (str,), _engine)
PRESETS_OF_MODELS = Kind(
    f"presets by the name of the model, each {', '.join(PRESETS)} (in a file: a table)", (dict,), _presets
)
THEME = Kind('"auto" or the name of a theme', (str,), _theme)
KEYS = Kind("keys by command, such as search=ctrl+k (in a file: a table)", (dict,), _keys)
LANGUAGE = Kind('"auto" or a language such as en, ko or pt_BR', (str,), _language)
LORAS = Kind("adapters, each as PATH or PATH=SCALE (in a file: a list of them)", (list,), _loras)
