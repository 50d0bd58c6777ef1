"""Another type of a model's weights, before and after the work: which types there are, names, room, files."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from models.errors import ModelError

BITS: Mapping[str, float] = {
    "Q2_K": 3.2,
    "Q3_K_S": 3.5,
    "Q3_K_M": 3.9,
    "Q3_K_L": 4.3,
    "IQ4_XS": 4.3,
    "IQ4_NL": 4.5,
    "Q4_0": 4.6,
    "Q4_K_S": 4.6,
    "Q4_K_M": 4.9,
    "Q4_1": 5.0,
    "Q5_0": 5.5,
    "Q5_K_S": 5.5,
    "Q5_K_M": 5.7,
    "Q5_1": 6.0,
    "Q6_K": 6.6,
    "Q8_0": 8.5,
    "BF16": 16.0,
    "F16": 16.0,
}
"""Types that need nothing but the model, and about how many bits a weight takes in each."""
_RESERVE = 1.15
"""Rows that do not fit a type's blocks are in a larger one."""
_PART = "chatapp-part"
_NO_NAME = re.compile(r"[\x00-\x1f\x7f/\\:*?\"<>|]+")
"""What names of Ollama's models have (`hf.co/owner/model:tag`) and those of files cannot have everywhere."""


def expected_bytes(n_params: int, type_name: str) -> int:
    """How large a model will about be in a type; what is to be free before it is begun."""
    return int(n_params * BITS[type_name] / 8 * _RESERVE)


def converted_name(name: str, quantization: str | None, type_name: str) -> str:
    """The name of a model in another type, fit for a file in one folder.

    The type takes the place of the one at the name's end, if it is there.
    """
    own = re.compile(rf"[-._]{re.escape(quantization or type_name)}$", re.IGNORECASE)
    # The catalog leaves out what begins with a dot.
    stem = own.sub("", _NO_NAME.sub("-", name)).lstrip(".")
    return f"{stem}-{type_name}"


@contextmanager
def unfinished(target: Path, n_bytes: int) -> Iterator[Path]:
    """A place beside the target for a file that is not whole yet; whatever is there at the end is deleted.

    What a killed process has left there is deleted first. Raises `ModelError` if the target exists, its folder cannot
    be written, or has not so many bytes free.
    """
    if os.path.lexists(target):
        raise ModelError(f"{target} is already there: remove it first, or give another place with --output.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sweep(target.parent)
        free = shutil.disk_usage(target.parent).free
        if free < n_bytes:
            raise ModelError(
                f"{target.parent} has {free / 1e9:.1f} GB free and the file needs about {n_bytes / 1e9:.1f} GB: "
                "make room, or give another place with --output."
            )
        part = target.with_name(f".{target.name}.{os.getpid()}.{_PART}")
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as exc:
        raise ModelError(f"{target.parent} cannot be written: {exc.strerror or exc}.") from exc
    try:
        yield part
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def finish(part: Path, target: Path) -> None:
    """Put a whole file in its place. Raises `ModelError` if it cannot be, or if another one is there by now."""
    try:
        # A link fails where something is; a rename would replace it.
        os.link(part, target)
    except FileExistsError as exc:
        raise ModelError(f"{target} is there by now: nothing was replaced.") from exc
    except OSError:  # a file system without links
        if os.path.lexists(target):
            raise ModelError(f"{target} is there by now: nothing was replaced.") from None
        try:
            part.replace(target)
        except OSError as exc:
            raise ModelError(f"{target} cannot be written: {exc.strerror or exc}.") from exc


def _sweep(folder: Path) -> None:
    for path in folder.glob(f".*.{_PART}"):
        owner = path.name.split(".")[-2]
        if owner.isdigit() and not _is_alive(int(owner)):
            with contextlib.suppress(OSError):
                path.unlink()


def _is_alive(pid: int) -> bool:
    """True also where that cannot be asked without harm."""
    if os.name == "nt":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
