"""The key that clients show: from a file or a variable, else a random one."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from sessions.files import make_private_file, make_private_folder

SHORTEST = 16
_LONGEST = 512


class SecretError(Exception):
    """The key cannot be used; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A key. `is_new`: it was made up now, and nobody knows it yet; `is_readable`: others may read its file."""

    key: str
    is_new: bool = False
    is_readable: bool = False


def random_secret() -> Secret:
    """Return a key of 256 bits. It begins with a word, so that no command line takes it for an option."""
    return Secret(f"chatapp-{secrets.token_urlsafe(32)}", is_new=True)


def secret_of(text: str, where: str) -> Secret:
    """Return the key that `where` gives. Raises `SecretError`, which says nothing of the key."""
    key = text.strip()
    if not SHORTEST <= len(key) <= _LONGEST or not key.isascii() or not key.isprintable() or " " in key:
        raise SecretError(
            f"The key in {where} has to be one line of {SHORTEST} to {_LONGEST} letters, digits and signs: "
            "`openssl rand -hex 32` prints one."
        )
    return Secret(key)


def secret_in(path: Path) -> Secret:
    """Return the key in a file; a file that is not there is made, with a random key. Raises `SecretError`."""
    try:
        if not path.exists():
            return _made(path)
        with path.open("rb") as file:
            text = file.read(_LONGEST * 4).decode("ascii", "replace")
        mode = path.stat().st_mode
    except OSError as error:
        raise SecretError(f"{path} cannot be read or made ({error.strerror}): name another --api-key-file.") from error
    return Secret(secret_of(text, str(path)).key, is_readable=bool(mode & 0o044))


def _made(path: Path) -> Secret:
    secret = random_secret()
    make_private_folder(path.parent)
    make_private_file(path)
    path.write_text(secret.key + "\n", encoding="ascii")
    return secret
