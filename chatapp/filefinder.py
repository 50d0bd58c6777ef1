"""Finds files below a folder by a few letters of their path, for completion; bounded, whatever the folder holds."""

from __future__ import annotations

import fnmatch
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_FILES = 20_000
MAX_S = 1.0
"""Longest walk; what was found by then is offered."""
FRESH_S = 10.0
"""A walk is good for so long."""
MAX_FILE_BYTES = 8_000_000

SKIPPED_FOLDERS = frozenset(
    ["node_modules", "__pycache__", "venv", "site-packages", "dist", "build", "target", "vendor", "bower_components"]
)
BINARY_ENDINGS = frozenset(
    [
        "7z",
        "a",
        "avi",
        "bin",
        "bmp",
        "bz2",
        "class",
        "db",
        "dll",
        "dmg",
        "doc",
        "docx",
        "dylib",
        "eot",
        "exe",
        "flac",
        "gguf",
        "gif",
        "gz",
        "ico",
        "iso",
        "jar",
        "jpeg",
        "jpg",
        "lock",
        "mkv",
        "mov",
        "mp3",
        "mp4",
        "npy",
        "npz",
        "o",
        "obj",
        "ods",
        "odt",
        "ogg",
        "onnx",
        "otf",
        "parquet",
        "pdf",
        "pickle",
        "pkl",
        "png",
        "ppt",
        "pptx",
        "pyc",
        "pyd",
        "pyo",
        "rar",
        "safetensors",
        "so",
        "sqlite",
        "sqlite3",
        "tar",
        "tgz",
        "tif",
        "tiff",
        "ttf",
        "wasm",
        "wav",
        "webm",
        "webp",
        "whl",
        "woff",
        "woff2",
        "xls",
        "xlsx",
        "xz",
        "zip",
        "zst",
    ]
)


@dataclass(frozen=True, slots=True)
class _Rules:
    """The patterns of one `.gitignore`, simply: names and paths with `*`, folders with `/`, `!` not."""

    base: str
    patterns: tuple[str, ...]

    def ignores(self, path: str, name: str, *, is_folder: bool) -> bool:
        inside = path[len(self.base) :]
        for pattern in self.patterns:
            if pattern.endswith("/") and not is_folder:
                continue
            body = pattern.strip("/")
            has_place = "/" in pattern.rstrip("/")
            if fnmatch.fnmatchcase(inside if has_place else name, body):
                return True
        return False


class FileFinder:
    """Files below `root`. Called in a thread; one call at a time."""

    def __init__(self, root: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.root = root
        self._monotonic = monotonic
        self._paths: list[str] = []
        self._walked_at: float | None = None

    def find(self, query: str, limit: int = 8) -> list[str]:
        """Return the paths that fit best, with `/` and from the root; of `/x`, `~/x` and `../x`, the names there."""
        if query.startswith(("/", "~", "..")):
            return self._in_folder(query, limit)
        now = self._monotonic()
        if self._walked_at is None or now - self._walked_at > FRESH_S:
            self._paths = list(self._walk(now + MAX_S))
            self._walked_at = now
        scored = [
            (score, path.startswith("."), len(path), path)
            for path in self._paths
            if (score := fit(query, path)) is not None
        ]
        return [found[-1] for found in sorted(scored)[:limit]]

    def _in_folder(self, query: str, limit: int) -> list[str]:
        if query in ("~", ".."):
            return [query + "/"]
        folder, _, begin = query.rpartition("/")
        found = []
        try:
            for entry in _entries(str(self.root / Path(folder + "/").expanduser())):
                shown = entry.name + ("/" if entry.is_dir() else "")
                is_hidden = entry.name.startswith(".") and not begin.startswith(".")
                if entry.name.lower().startswith(begin.lower()) and not is_hidden and not _is_binary(entry.name):
                    found.append(f"{folder}/{shown}")
        except (OSError, RuntimeError):  # no such folder, no home
            return []
        return sorted(found)[:limit]

    def _walk(self, until: float) -> Iterator[str]:
        """Yield files, the nearest folders first; links to folders are not followed."""
        waiting: list[tuple[str, tuple[_Rules, ...]]] = [("", ())]
        n_files = 0
        while waiting:
            base, rules = waiting.pop(0)
            if self._monotonic() > until:
                return
            try:
                entries = sorted(_entries(str(self.root / base)), key=lambda entry: entry.name)
            except OSError:
                continue
            rules = (*rules, *_rules_in(self.root / base, base, entries))
            for entry in entries:
                path = base + entry.name
                try:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    is_offered = not is_folder and self._is_offered(entry)
                except OSError:
                    continue
                if entry.name == ".git" or any(rule.ignores(path, entry.name, is_folder=is_folder) for rule in rules):
                    continue
                if is_folder and entry.name not in SKIPPED_FOLDERS and not entry.name.startswith("."):
                    waiting.append((path + "/", rules))
                elif is_offered:
                    yield path
                    n_files += 1
                    if n_files >= MAX_FILES:
                        return

    @staticmethod
    def _is_offered(entry: os.DirEntry[str]) -> bool:
        if _is_binary(entry.name) or not entry.name.isprintable():
            return False
        return entry.is_file() and 0 < entry.stat().st_size <= MAX_FILE_BYTES


def fit(query: str, path: str) -> int | None:
    """Return how badly a path fits, 0 best; None if it has not all letters of the query in their order."""
    wanted, text = query.lower(), path.lower()
    if not wanted:
        return text.count("/")
    name = text.rpartition("/")[2]
    if name.startswith(wanted):
        return 0
    at = text.find(wanted)
    if at >= 0:
        return 1 if wanted in name else 2
    gaps, at = 0, -1
    for letter in wanted:
        found = text.find(letter, at + 1)
        if found < 0:
            return None
        gaps += found - at - 1 if at >= 0 else 0
        at = found
    return 3 + gaps


def _is_binary(name: str) -> bool:
    return name.rpartition(".")[2].lower() in BINARY_ENDINGS and "." in name


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _rules_in(folder: Path, base: str, entries: list[os.DirEntry[str]]) -> Iterator[_Rules]:
    if not any(entry.name == ".gitignore" and entry.is_file(follow_symlinks=False) for entry in entries):
        return
    try:
        lines = (folder / ".gitignore").read_bytes()[:65_536].decode("utf-8", "replace").splitlines()
    except OSError:
        return
    patterns = tuple(line.strip() for line in lines if line.strip() and line[0] not in "#!")
    yield _Rules(base, patterns)
