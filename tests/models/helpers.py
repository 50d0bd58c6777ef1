"""What the tests of engines and of stored KV share."""

import shutil
import struct
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from models.catalog import starter_model
from models.engine import Entry, Event, Failed, Finished, Loaded, Piece, Prepared, Progress, Prompt, Stored
from models.fingerprint import Fingerprint
from models.kvformat import PARTS
from models.loading import LocalSettings
from models.local import LocalEngine

E = TypeVar("E", Loaded, Progress, Prepared, Piece, Finished, Stored, Failed)

N_CTX = 1024
KV_BYTES_PER_TOKEN = 23_040

FINGERPRINT = Fingerprint(
    weights="ab" * 32,
    loras="",
    kv_format=2,
    llama_build="test build",
    architecture="llama",
    layers=30,
    kv_heads=3,
    head_width=64,
    type_k="f16",
    type_v="f16",
    flash_attention=False,
    rope_base=10_000.0,
    rope_scale=0.0,
    rope_scaling="",
    yarn="",
    sliding_window=0,
    full_window_cache=True,
    rotation=True,
    tokenizer="gpt2 smollm 49152",
    gpu_layers=0,
)

FIELD_NAMES = {
    "weights": "weights",
    "loras": "LoRA files and scales",
    "kv_format": "KV file format",
    "llama_build": "llama.cpp build",
    "architecture": "architecture",
    "layers": "layers",
    "kv_heads": "KV heads",
    "head_width": "head width",
    "type_k": "KV type of K",
    "type_v": "KV type of V",
    "flash_attention": "flash attention",
    "rope_base": "RoPE base",
    "rope_scale": "RoPE scale",
    "rope_scaling": "RoPE scaling",
    "yarn": "YaRN",
    "sliding_window": "sliding window",
    "full_window_cache": "sliding window mode",
    "rotation": "KV rotation",
    "tokenizer": "tokenizer",
    "gpu_layers": "GPU layers",
}
"""What a user reads for each field of a fingerprint."""


def starter() -> Path:
    """The starter model; without it, the test is skipped."""
    path = starter_model()
    if path is None:
        pytest.skip("the starter model is not installed")
    return path


def local_settings(root: Path, *, n_ctx: int = N_CTX) -> LocalSettings:
    """One thread, flash attention off, nothing guessed: nothing is measured, every run computes the same bits."""
    return LocalSettings(
        starter(),
        cache_dir=root / "cache",
        data_dir=root / "data",
        n_ctx=n_ctx,
        threads=1,
        flash_attention="off",
        speculation="off",
    )


def free(engine: LocalEngine) -> None:
    """Close an engine and give back the memory of its context and weights, which ends with the process otherwise."""
    engine.close()
    engine._context.close()
    engine._model.close()


def copy_notes(source: Path, root: Path) -> Path:
    """Give a fresh root what was learned about the model file, but no KV; returns the root."""
    for name in ("weights", "templates"):
        if (source / "cache" / name).exists():
            shutil.copytree(source / "cache" / name, root / "cache" / name)
    return root


def kinds(events: Iterable[Event]) -> list[type]:
    """The types of events, runs of one type counted once."""
    found: list[type] = []
    for event in events:
        if not found or found[-1] is not type(event):
            found.append(type(event))
    return found


def one(kind: type[E], events: Iterable[Event]) -> E:
    """The only event of a kind."""
    (found,) = [event for event in events if isinstance(event, kind)]
    return found


def n_ahead(prepared: Prepared) -> int:
    """Tokens of the newest message that a local engine evaluates before it is written: its opening glue."""
    return prepared.runs[-1].body_start


def n_new(prepared: Prepared) -> int:
    """Tokens that no engine can have evaluated before: the message without its opening, and the answer's opening."""
    return len(prepared.runs[-1].ids) - n_ahead(prepared) + len(prepared.opening)


def after(prompt: Prompt, events: Iterable[Event], question: str) -> Prompt:
    """The prompt of the next turn: what a finished one left in the KV cache, and a new question."""
    events = list(events)
    prepared, finished = one(Prepared, events), one(Finished, events)
    said = [replace(entry, run=run) for entry, run in zip(prompt.entries, prepared.runs, strict=True)]
    answer = Entry("assistant", finished.text, finished.run)
    return Prompt((*said, answer, Entry("user", question)), store_kv=prompt.store_kv)


def segment_files(kv: Path) -> list[Path]:
    """The segment files of a KV folder, of all generations and both parts, in order; those set aside not counted."""
    return sorted(path for part in PARTS for path in kv.glob(f"{'[0-9a-f]' * 64}/??/[!.]*.{part}"))


def damage(path: Path, at: int = -1) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def rows_of(tokens: Iterable[int], start: int = 0) -> bytes:
    """Bytes that stand for the KV rows of `tokens[start:]`: each depends on all tokens before it, as real ones do."""
    state, rows = 7, b""
    for position, token in enumerate(tokens):
        state = (state * 1_000_003 + token + 1) % (1 << 61)
        if position >= start:
            rows += struct.pack("<Q", state)
    return rows


def other_in(field: str) -> Fingerprint:
    """The fingerprint with another value in one field."""
    value = getattr(FINGERPRINT, field)
    others: dict[type, Any] = {str: f"other than {value}", int: 12_345, float: 0.25, bool: value is False}
    return replace(FINGERPRINT, **{field: others[type(value)]})


def changed(fingerprint: Fingerprint = FINGERPRINT, **fields: Any) -> Fingerprint:
    """A fingerprint with other fields."""
    return replace(fingerprint, **fields)
