"""Fetches model files from a Hugging Face hub into the own folder, resumed where it broke off, and checked."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock, Timeout

from models.errors import ModelError
from models.modelfiles import Entry, entry_at

NOT_INSTALLED = (
    "Fetching models needs the package huggingface_hub (below version 2): install it with pip into the environment "
    "chatapp is in."
)

_UNFINISHED = ".unfinished"
_PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0", "F16", "BF16")
_REPOSITORY = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}", re.ASCII)
_SHARD = re.compile(r"(.+)-[0-9]{5}-of-[0-9]{5}\.gguf", re.IGNORECASE)
_CHUNK = 4 << 20
_N_NAMED = 12

Told = Callable[[str, int, int], None]
"""Is told the name of a file, bytes that are here, bytes in all."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository: its path there, bytes, and SHA-256 in hex if the hub tells it."""

    path: str
    size_bytes: int
    sha256: str | None

    @property
    def name(self) -> str:
        """Without the folders."""
        return PurePosixPath(self.path).name


def split_wanted(wanted: str) -> tuple[str, str | None]:
    """Return repository and quantization or file of `REPO[:QUANT or file]`; raises `ModelError` in one sentence."""
    repository, _, what = wanted.partition(":")
    if not _REPOSITORY.fullmatch(repository):
        raise ModelError(f"{wanted!r} is no repository of a hub: it is written OWNER/NAME or OWNER/NAME:QUANT.")
    return repository, what or None


def choose(files: Sequence[RemoteFile], what: str | None) -> list[RemoteFile]:
    """Return the files of the one model that is meant, in order. Raises `ModelError` in one sentence."""
    models: dict[str, list[RemoteFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        is_plain = "\\" not in file.path and ".." not in PurePosixPath(file.path).parts
        if is_plain and file.path.lower().endswith(".gguf") and "mmproj" not in file.name.lower():
            shard = _SHARD.fullmatch(file.path)
            models.setdefault(shard[1] if shard else file.path[: -len(".gguf")], []).append(file)
    if not models:
        raise ModelError("This repository has no GGUF file: choose one whose name ends in GGUF.")
    matches = [name for name in models if what is None or _is_meant(name, models[name], what)]
    for preferred in _PREFERRED if what is None and len(matches) > 1 else ():
        better = [name for name in matches if _is_meant(name, models[name], preferred)]
        matches = better or matches
        if better:
            break
    if len(matches) == 1:
        return models[matches[0]]
    names = ", ".join(list(matches or models)[:_N_NAMED])
    meant = f"{len(matches)} models are meant" if matches else f"No model there is {what!r}"
    raise ModelError(f"{meant}: give one of {names} behind the colon.")


def pull(folder: Path, wanted: str, *, endpoint: str | None, offline: bool, told: Told) -> Entry:
    """Fetch a model into the folder and return it; what was begun before is gone on with.

    A file appears in the folder once all of it is here and has the checksum the hub gives. `endpoint` None is the
    library's own. Raises `ModelError` in one sentence.
    """
    repository, what = split_wanted(wanted)
    if offline:
        raise ModelError("HF_HUB_OFFLINE is set: unset it to fetch a model, or add a file with `chatapp models add`.")
    try:
        # Here alone: nothing else needs it, and its import takes longer than a whole start.
        import httpx
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as exc:
        raise ModelError(NOT_INSTALLED) from exc
    unfinished = folder / _UNFINISHED / repository.replace("/", "--")
    try:
        info = HfApi(endpoint=endpoint).model_info(repository, files_metadata=True)
        commit = str(info.sha)
        files = choose([_remote(sibling) for sibling in info.siblings or ()], what)
        for file in files:
            if os.path.lexists(folder / file.name):
                raise ModelError(f"{file.name} is already there: `chatapp models remove` removes it.")
        unfinished.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(unfinished / "lock", timeout=0):
            parts = [_fetch(file, repository, commit, unfinished, endpoint, told) for file in files]
            for file, part in zip(files, parts, strict=True):
                part.replace(folder / file.name)
    except Timeout as exc:
        raise ModelError(f"{repository} is being fetched by another chatapp: wait for it.") from exc
    except HfHubHTTPError as exc:
        raise ModelError(_refused(exc, repository)) from exc
    except httpx.HTTPError as exc:
        raise ModelError(f"{_host(endpoint)} cannot be reached: pull again when it can, to go on from here.") from exc
    except OSError as exc:
        reason = exc.strerror or str(exc).partition("\n")[0].rstrip(".")
        raise ModelError(f"{repository} could not be fetched: {reason}.") from exc
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ModelError(f"{_host(endpoint)} gave an answer that is not a hub's: is its address right?") from exc
    shutil.rmtree(unfinished, ignore_errors=True)
    found = entry_at(folder / files[0].name)
    return Entry(found.name, "own", found.files)


def _fetch(file: RemoteFile, repository: str, commit: str, unfinished: Path, endpoint: str | None, told: Told) -> Path:
    """Fetch the rest of a file and check it; returns where it is.

    With the function beneath the library's own download, which keeps nothing of what was broken off.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented there

    if file.size_bytes > constants.MAX_HTTP_DOWNLOAD_SIZE:
        raise ModelError(f"{file.name} is larger than a hub gives in one piece: choose a smaller or a split one.")
    # Named by content: what was begun of an earlier revision is not gone on with.
    content = f"{file.sha256 or commit}/{file.path}"
    part = unfinished / (hashlib.sha256(content.encode()).hexdigest() + ".part")
    with part.open("ab") as target:
        here = target.tell()
        if here > file.size_bytes:
            target.truncate(0)
            here = 0
        http_get(
            hf_hub_url(repository, file.path, revision=commit, endpoint=endpoint),
            target,
            resume_size=here,
            headers=build_hf_headers(),
            expected_size=file.size_bytes,
            tqdm_class=_progress(file, told),
        )
    _check(part, file, told)
    return part


def _is_meant(stem: str, files: Sequence[RemoteFile], what: str) -> bool:
    """By its file, or by a quantization that stands as a word in its name or in its folder's."""
    if any(what in (file.path, file.name) for file in files) or what == PurePosixPath(stem).name:
        return True
    return re.search(rf"(?<![a-z0-9]){re.escape(what.lower())}(?![a-z0-9_])", stem.lower()) is not None


def _remote(sibling: Any) -> RemoteFile:
    lfs = sibling.lfs
    return RemoteFile(str(sibling.rfilename), int(sibling.size), str(lfs.sha256) if lfs else None)


def _progress(file: RemoteFile, told: Told) -> Any:
    """The class of a progress bar, as the library wants one, that shows nothing itself."""
    from tqdm import tqdm

    class Progress(tqdm):  # type: ignore[misc]  # it has no types
        def __init__(self, *args: Any, **options: Any) -> None:
            self._here = int(options.get("initial") or 0)
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self._here += int(n or 0)
            told(file.name, self._here, file.size_bytes)

    return Progress


def _check(path: Path, file: RemoteFile, told: Told) -> None:
    """Compare size and checksum; a file that differs is deleted, so that the next try begins anew."""
    hasher = hashlib.sha256()
    done = 0
    with path.open("rb") as reader:
        while chunk := reader.read(_CHUNK):
            hasher.update(chunk)
            done += len(chunk)
            told(f"checking {file.name}", done, file.size_bytes)
    if done != file.size_bytes or (file.sha256 and hasher.hexdigest() != file.sha256):
        path.unlink()
        raise ModelError(f"{file.name} arrived damaged (its checksum is not the hub's): pull it again.")


def _refused(error: Any, repository: str) -> str:
    code = error.response.status_code if error.response is not None else None
    if code in (401, 403):
        return f"{repository} does not exist, or is not for everybody: accept its terms there, and set HF_TOKEN."
    if code == 404:
        return f"There is no {repository} on this hub, or not this file of it."
    return f"{repository} could not be fetched: the hub answered with the error {code}."


def _host(endpoint: str | None) -> str:
    return endpoint or "The hub"
