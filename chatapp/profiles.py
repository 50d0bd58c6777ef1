"""Servers in the settings file: `[engines.NAME]` tables to profiles, and where their keys come from."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chatapp.values import PATH
from models.engine import Prices
from models.remote_errors import RemoteError
from models.remote_profile import RemoteProfile, check, is_name

KEY_S = 60.0
"""How long a command may take to give a key: it may ask the user."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h)?")
_UNITS = {None: 1, "s": 1, "min": 60, "h": 3600}
_HEADER = re.compile(r"[A-Za-z0-9-]{1,60}")


class ProfileError(Exception):
    """A table cannot be used; the message completes "engines.NAME in FILE ..."."""


def parse(name: str, table: Any, environ: Mapping[str, str], base: Path) -> RemoteProfile:
    """Return a profile from its table. Relative paths start from `base`. Raises `ProfileError`."""
    if not is_name(name):
        raise ProfileError("needs another name: small letters, digits, '.', '_' and '-', and not llama or fake")
    if not isinstance(table, dict):
        raise ProfileError(f"must be a table: write [engines.{name}] and below it base_url = ...")
    if "key" in table:
        raise ProfileError("must not hold the key itself: name a variable with key_env, or a command with key_command")
    unknown = sorted(table.keys() - _FIELDS.keys())
    if unknown:
        raise ProfileError(f"has the unknown key {unknown[0]!r}: the keys are {', '.join(_FIELDS)}")
    fields: dict[str, Any] = {}
    for key, value in table.items():
        target, read, expected = _FIELDS[key]
        try:
            fields[target] = read(value, base)
        except (ValueError, TypeError) as exc:
            raise ProfileError(f"has {key} = {value!r}, which must be {expected}") from exc
    if "base_url" not in fields:
        raise ProfileError("has no base_url, such as https://host/v1")
    prices = {key: fields.pop(key) for key in ("input", "output", "cached", "currency") if key in fields}
    if prices:
        prices.setdefault("cached", prices.get("input", 0.0))
        if not {"input", "output"} <= prices.keys():
            raise ProfileError("needs both price_input and price_output, in money for a million tokens")
        fields["prices"] = Prices(**prices)
    headers = {
        header: environ.get(value[4:], "") if value.startswith("env:") else value
        for header, value in fields.get("headers", {}).items()
    }
    fields["headers"] = {header: value for header, value in headers.items() if value}
    sources = [key for key in ("key_env", "key_command", "key_keyring") if key in fields]
    if len(sources) > 1:
        raise ProfileError(f"names several keys: leave one of {', '.join(sources)}")
    if sources:
        fields["key"] = _key(name, sources[0], fields.pop(sources[0]), environ)
    profile = RemoteProfile(name, **fields)
    try:
        check(profile)
    except RemoteError as error:
        raise ProfileError(f"cannot be used: {str(error).removesuffix('.')}") from error
    return profile


def _key(name: str, source: str, value: Any, environ: Mapping[str, str]) -> Callable[[], str]:
    """Return what fetches a key when the server is connected to; it raises `RemoteError`."""

    def from_environment() -> str:
        if not environ.get(value):
            raise RemoteError("key", f"The key of {name} is to be in the variable {value}, which is not set.")
        return environ[value].strip()

    def from_command() -> str:
        try:
            done = subprocess.run(value, capture_output=True, timeout=KEY_S, check=True, stdin=subprocess.DEVNULL)
            key = done.stdout.decode("utf-8").strip().splitlines()[0]
        except (OSError, subprocess.SubprocessError, UnicodeDecodeError, IndexError) as exc:
            raise RemoteError("key", f"The command for the key of {name} ({value[0]}) gives none: try it out.") from exc
        return key

    def from_keyring() -> str:
        service, _, user = value.partition("/")
        try:
            import keyring

            key = keyring.get_password(service, user or name)
        except ImportError as exc:
            raise RemoteError(
                "key", f"The key of {name} is in the keyring, which needs a package: pip install 'chatapp[keyring]'."
            ) from exc
        except Exception as exc:
            raise RemoteError("key", f"The keyring does not open for the key of {name}: unlock it.") from exc
        if not key:
            raise RemoteError("key", f"The keyring has no key {service!r} for {user or name!r}: put it there.")
        return str(key)

    return {"key_env": from_environment, "key_command": from_command, "key_keyring": from_keyring}[source]


def _text(value: Any, _base: Path) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value.strip()


def _whole(value: Any, _base: Path) -> int:
    if type(value) is not int or value < 1:
        raise ValueError
    return value


def _slot(value: Any, _base: Path) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value


def _yes(value: Any, _base: Path) -> bool:
    if type(value) is not bool:
        raise ValueError
    return value


def _price(value: Any, _base: Path) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e6:
        raise ValueError
    return float(value)


def _seconds(value: Any, _base: Path) -> float:
    found = _DURATION.fullmatch(str(value).strip()) if type(value) in (int, float, str) else None
    if found is None or not (seconds := float(found[1]) * _UNITS[found[2]]):
        raise ValueError
    return seconds


def _command(value: Any, _base: Path) -> list[str]:
    words = shlex.split(value) if isinstance(value, str) else value
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise ValueError
    return words


def _headers(value: Any, _base: Path) -> dict[str, str]:
    if not isinstance(value, dict) or not all(
        _HEADER.fullmatch(header) and isinstance(text, str) for header, text in value.items()
    ):
        raise ValueError
    return value


def _path(value: Any, base: Path) -> Path:
    path: Path = PATH.parse(_text(value, base), base)
    return path


_TIME = 'seconds, or a time such as "5 min" or "1 h"'
_FIELDS: dict[str, tuple[str, Callable[[Any, Path], Any], str]] = {
    "base_url": ("base_url", _text, "an address such as https://host/v1"),
    "model": ("model", _text, "the name of a model at the server"),
    "key_env": ("key_env", _text, "the name of a variable"),
    "key_command": ("key_command", _command, "a command, as text or as a list of words"),
    "key_keyring": ("key_keyring", _text, "SERVICE or SERVICE/USER"),
    "headers": ("headers", _headers, "a table of names and texts"),
    "connect_timeout": ("connect_s", _seconds, _TIME),
    "first_token_timeout": ("first_token_s", _seconds, _TIME),
    "token_timeout": ("token_s", _seconds, _TIME),
    "ctx": ("n_ctx", _whole, "a whole number of tokens"),
    "parallel": ("n_parallel", _whole, "a whole number of at least 1"),
    "ca_file": ("ca_file", _path, "a path"),
    "verify": ("verify", _yes, "true or false"),
    "allow_http": ("allow_http", _yes, "true or false"),
    "slot": ("slot", _slot, "the number of a slot"),
    "slots": ("keeps_slots", _yes, "true or false"),
    "resume": ("resumes", _yes, "true or false"),
    "cache_lifetime": ("cache_lifetime_s", _seconds, _TIME),
    "price_input": ("input", _price, "a number: money for a million tokens"),
    "price_output": ("output", _price, "a number: money for a million tokens"),
    "price_cached": ("cached", _price, "a number: money for a million tokens"),
    "currency": ("currency", _text, "a text such as USD"),
}
"""The keys of a table: the field each goes to, how it is read, and what it must be."""
