"""What decoding cannot be faster than: the bytes of weights that a token reads, and how fast this machine reads."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from models.cachefile import write_atomically
from models.fit import available_memory
from models.gguf_header import Header, Value
from models.tuning import machine

_BUFFER_BYTES = 256 << 20
"""Larger than the caches of most processors, so that it is the memory that is read."""
_LEAST_BUFFER_BYTES = 16 << 20
_ROUNDS = 3
_DEADLINE_S = 0.4
_FILLING, _ABSENT = 1, 0


def active_bytes(headers: Sequence[Header]) -> int | None:
    """Return the bytes of weights that one decoded token reads, from the headers of all files of a model.

    Of the embedding it reads one row, unless that is the output matrix too; of experts only the ones it is sent to.
    None where the headers do not say.
    """
    if any(header.size_bytes is None for header in headers):
        return None  # a type that is unknown here has no size
    metadata = headers[0].metadata
    architecture = metadata.get("general.architecture")
    if metadata.get(f"{architecture}.nextn_predict_layers"):
        return None  # layers that plain decoding leaves out
    parts = sum((Counter(header.bytes_by_part) for header in headers), Counter())
    n_bytes = parts["rest"] + (parts["output"] or parts["embedding"])
    if not parts["experts"]:
        return n_bytes
    n_experts = _positive(metadata.get(f"{architecture}.expert_count"))
    n_used = _positive(metadata.get(f"{architecture}.expert_used_count"))
    if n_experts is None or n_used is None or n_used > n_experts:
        return None
    return n_bytes + parts["experts"] * n_used // n_experts


def read_speed(n_threads: int, cache_dir: Path) -> float | None:
    """Return the bytes a second that so many threads read from memory together; measured once for a machine.

    That takes at most about half a second. None where it cannot be measured.
    """
    key = json.dumps([1, n_threads, *machine()])
    note = cache_dir / "bandwidth" / (hashlib.sha256(key.encode()).hexdigest() + ".json")
    try:
        known = json.loads(note.read_text())["bytes_per_s"]
        if isinstance(known, float) and math.isfinite(known) and known > 0:
            return known
    except (OSError, ValueError, KeyError, TypeError):
        pass
    speed = _measure(n_threads)
    if speed is not None:
        write_atomically(note, json.dumps({"bytes_per_s": speed}).encode())
    return speed


def _measure(n_threads: int) -> float | None:
    """The best of a few rounds: interference only ever adds time.

    The C library looks for a byte that is not there: it reads each one in order with the widest instructions, and
    outside the interpreter's lock.
    """
    find = _finder()
    n_bytes = min(_BUFFER_BYTES, available_memory() // 8)
    if find is None or n_bytes < _LEAST_BUFFER_BYTES:
        return None
    deadline = time.monotonic() + _DEADLINE_S
    buffer = (ctypes.c_char * n_bytes)()
    address = ctypes.addressof(buffer)
    # Pages that were never written are all one and the same, which a cache holds.
    ctypes.memset(address, _FILLING, n_bytes)
    best = 0.0
    for _ in range(_ROUNDS):
        best = max(best, _round(find, address, n_bytes, n_threads))
        if time.monotonic() > deadline:
            break
    return best or None


def _round(find: ctypes._NamedFuncPointer, address: int, n_bytes: int, n_threads: int) -> float:
    """Bytes a second of one pass over the buffer, a part for each thread."""
    part = n_bytes // n_threads
    spans: list[tuple[float, float]] = []
    start = threading.Barrier(n_threads)

    def read(i: int) -> None:
        start.wait()
        begun = time.perf_counter()
        found = find(address + i * part, _ABSENT, part)
        assert found is None, "the buffer holds nothing but the filling"
        spans.append((begun, time.perf_counter()))

    threads = [threading.Thread(target=read, args=(i,)) for i in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = max(end for _, end in spans) - min(begun for begun, _ in spans)
    return part * n_threads / took if took > 0 else 0.0


def _finder() -> ctypes._NamedFuncPointer | None:
    """The C library's `memchr`."""
    try:
        find = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None).memchr
    except (OSError, AttributeError):
        return None
    find.restype, find.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    return find


def _positive(value: Value | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
