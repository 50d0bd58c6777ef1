"""What is stored: figures of the whole KV folder, of each model, of each conversation. Changes nothing."""

from __future__ import annotations

import contextlib
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.fingerprint import LLAMA_BUILD
from models.kvbudget import ancestry, is_stale, limits_for
from models.kvfolder import KvFolder
from models.kvindex import KvIndex, Outline
from models.kvsettings import KvSettings
from models.kvstore import today

Tips = Mapping[str, Sequence[tuple[str, str]]]
"""Fingerprints and chain ends (hex) of conversations, by conversation."""


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One generation: KV of one model under one group of settings.

    `n_tokens` are distinct stored tokens; `state_bytes` is the part of `n_bytes` that restore points of a recurrent
    memory take. `last_used` in epoch seconds, None without segments. `is_usable` False: made by another build of
    llama.cpp. `self_test` None: not tested yet. Name, path and settings come from a file that anybody could write.
    """

    fingerprint: str
    name: str
    path: str
    settings: str
    n_bytes: int
    state_bytes: int
    n_tokens: int
    n_segments: int
    last_used: float | None
    is_usable: bool
    self_test: bool | None


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """What is stored of one conversation; `shared_bytes` are those that another one reaches as well."""

    session_id: str
    n_bytes: int
    shared_bytes: int
    n_tokens: int
    last_used: float | None


@dataclass(frozen=True, slots=True)
class StoredKv:
    """Distinct tokens on disk and the bytes they take."""

    n_tokens: int = 0
    n_bytes: int = 0


@dataclass(frozen=True, slots=True)
class KvStatus:
    """Bytes and counts of all stored KV, its limits, and what was written; `daily_limit_bytes` None: no limit."""

    total_bytes: int
    n_segments: int
    budget_bytes: int
    free_floor_bytes: int
    written_today_bytes: int
    written_total_bytes: int
    daily_limit_bytes: int | None
    damaged_bytes: int
    models: tuple[ModelStatus, ...]
    sessions: tuple[SessionStatus, ...]


def status(
    root: Path, *, clock: Callable[[], float], settings: KvSettings, tips: Tips | None = None, build: str = LLAMA_BUILD
) -> KvStatus:
    """Figures of a KV folder, which need not exist; models and sessions by size, largest first. Raises OSError."""
    folder = KvFolder(root)
    with closing(KvIndex(folder.index_path, read_only=True)) as index:
        rows = index.outlines()
        total = sum(row.bytes for row in rows)
        limits = limits_for(settings, KvFolder(_nearest(root)), total)
        return KvStatus(
            total_bytes=total,
            n_segments=sum(1 for row in rows if row.bytes),
            budget_bytes=limits.budget_bytes,
            free_floor_bytes=limits.free_floor_bytes,
            written_today_bytes=index.written(today(clock())),
            written_total_bytes=index.written(),
            daily_limit_bytes=limits.daily_bytes,
            damaged_bytes=_damaged_bytes(folder),
            models=_models(folder, rows, build),
            sessions=_sessions(rows, tips or {}),
        )


def stored_by_flash_attention(root: Path, weights: str, kv_type: str, build: str) -> dict[bool, StoredKv]:
    """What is stored of one model under each flash attention mode, in this KV type and by this build of llama.cpp.

    `weights` is the content hash of the model's files. Empty where nothing is, or nothing can be read.
    """
    folder, found = KvFolder(root), dict[bool, StoredKv]()
    try:
        with closing(KvIndex(folder.index_path, read_only=True)) as index:
            rows = [row for row in index.outlines() if row.bytes]
    except OSError:
        return {}
    for fingerprint in folder.generations():
        fields = _table(folder.about(fingerprint).get("fields"))
        flash = fields.get("flash_attention")
        wanted = (weights, kv_type, build)
        if (fields.get("weights"), fields.get("type_k"), fields.get("llama_build")) != wanted:
            continue
        if not isinstance(flash, bool):
            continue
        own = [row for row in rows if row.fingerprint == fingerprint]
        before = found.get(flash, StoredKv())
        found[flash] = StoredKv(
            before.n_tokens + sum(row.n_tokens for row in own), before.n_bytes + sum(row.bytes for row in own)
        )
    return found


def _models(folder: KvFolder, rows: Iterable[Outline], build: str) -> tuple[ModelStatus, ...]:
    by_generation: dict[bytes, list[Outline]] = {key: [] for key in folder.generations()}
    for row in rows:
        by_generation.setdefault(row.fingerprint, []).append(row)
    found = [_model(folder, key, stored, build) for key, stored in by_generation.items()]
    return tuple(sorted(found, key=lambda model: (-model.n_bytes, model.fingerprint)))


def _model(folder: KvFolder, fingerprint: bytes, rows: Iterable[Outline], build: str) -> ModelStatus:
    about = folder.about(fingerprint)
    model, fields = _table(about.get("model")), _table(about.get("fields"))
    stored = [row for row in rows if row.bytes]
    passed = _table(folder.notes(fingerprint).get("self_test")).get("passed")
    return ModelStatus(
        fingerprint=fingerprint.hex(),
        name=str(model.get("name", "")),
        path=str(model.get("path", "")),
        settings=in_words(fields),
        n_bytes=sum(row.bytes for row in stored),
        state_bytes=sum(row.state_bytes for row in stored),
        n_tokens=sum(row.n_tokens for row in stored),
        n_segments=len(stored),
        last_used=max((row.last_used for row in stored), default=None),
        is_usable=not is_stale(folder, fingerprint, build),
        self_test=passed if isinstance(passed, bool) else None,
    )


def in_words(fields: Mapping[str, Any]) -> str:
    """The settings among a fingerprint's fields, those a user can choose: "flash attention off, KV f16"."""
    if not fields:
        return ""
    words = [f"flash attention {'on' if fields.get('flash_attention') else 'off'}"]
    k, v = str(fields.get("type_k", "?")), str(fields.get("type_v", "?"))
    words.append(f"KV {k}" if k == v else f"K {k}, V {v}")
    if fields.get("gpu_layers"):
        words.append(f"GPU layers {fields['gpu_layers']}")
    if loras := str(fields.get("loras") or "").split():
        words.append("1 LoRA" if len(loras) == 1 else f"{len(loras)} LoRAs")
    return ", ".join(words)


def _sessions(rows: Iterable[Outline], tips: Tips) -> tuple[SessionStatus, ...]:
    by_key = {row.key: row for row in rows}
    chains = {
        session_id: [by_key[key] for key in ancestry(by_key, _keys(ends)) if by_key[key].bytes]
        for session_id, ends in tips.items()
    }
    n_sessions = Counter(row.key for chain in chains.values() for row in chain)
    found = [
        SessionStatus(
            session_id=session_id,
            n_bytes=sum(row.bytes for row in chain),
            shared_bytes=sum(row.bytes for row in chain if n_sessions[row.key] > 1),
            n_tokens=sum(row.n_tokens for row in chain),
            last_used=max((row.last_used for row in chain), default=None),
        )
        for session_id, chain in chains.items()
    ]
    return tuple(sorted(found, key=lambda session: (-session.n_bytes, session.session_id)))


def _keys(ends: Iterable[tuple[str, str]]) -> list[bytes]:
    keys = []
    for _, tip in ends:
        with contextlib.suppress(ValueError):  # of an engine whose keys are no hex numbers
            keys.append(bytes.fromhex(tip))
    return keys


def _damaged_bytes(folder: KvFolder) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for path in folder.damaged_dir.iterdir():
            found = path.lstat()
            total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists: it is on the disk that the folder would be on."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
