"""What a large KV folder costs: opening it, looking a prefix up, checking all of it. No engine.

`python -m benchmarks.kvfolder [--segments 20000]` prints one JSON object; see docs/performance.md. Times are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from models.fingerprint import LLAMA_BUILD, Fingerprint
from models.kvformat import FORMAT, SegmentId
from models.kvsettings import KvSettings
from models.kvstore import SEGMENT_BYTES, KvStore
from models.kvverify import verify

_KEY = b"k" * 32
_SEGMENT_TOKENS = 180
_CHAIN = 20
_VERIFIED_FILES = 64
_REPEATS = 7
_FINGERPRINT = Fingerprint(
    weights="00" * 32,
    loras="",
    kv_format=FORMAT,
    llama_build=LLAMA_BUILD,
    architecture="none",
    layers=1,
    kv_heads=1,
    head_width=1,
    type_k="f16",
    type_v="f16",
    flash_attention=False,
    rope_base=0.0,
    rope_scale=0.0,
    rope_scaling="",
    yarn="",
    sliding_window=0,
    full_window_cache=True,
    rotation=True,
    tokenizer="",
    gpu_layers=0,
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=20_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chatapp-kvfolder-") as folder:
        print(json.dumps(_opening(Path(folder), options.segments) | _verifying(Path(folder))))


def _opening(folder: Path, n_segments: int) -> dict[str, float]:
    """Seconds to open a store with so many segments, beside an empty one; and to look a chain up in it."""
    full, empty = folder / "full", folder / "empty"
    _open(empty).close()
    store = _open(full)
    chain: list[SegmentId] = []
    for i in range(n_segments):
        chain = [] if i % _CHAIN == 0 else chain
        parent, start = (chain[-1].key, chain[-1].end) if chain else (store.root_key, 0)
        tokens = tuple(range(i * _SEGMENT_TOKENS, (i + 1) * _SEGMENT_TOKENS))
        chain.append(SegmentId(store.digest, parent, start, tokens))
        store.write(chain[-1], b"rows")
    store.close()
    wanted = [token for segment in chain for token in segment.tokens]
    store = _open(full)
    lookup_s = _median(lambda: store.lookup(wanted))
    store.close()
    full_s, empty_s = _median(lambda: _open(full).close()), _median(lambda: _open(empty).close())
    return {"segments": n_segments, "open_s": full_s, "open_empty_s": empty_s, "lookup_s": lookup_s}


def _verifying(folder: Path) -> dict[str, float]:
    """How fast everything is read and checked, from the page cache."""
    root = folder / "large"
    store = _open(root)
    payload = bytearray(SEGMENT_BYTES)
    for i in range(_VERIFIED_FILES):
        store.write(SegmentId(store.digest, store.root_key, 0, (i,)), payload)
    store.close()
    reports = [verify(root, _KEY, repair=False, progress=lambda _done, _total: None) for _ in range(_REPEATS)]
    return {"verify_gb_per_s": statistics.median(report.n_bytes / report.seconds / 1e9 for report in reports)}


def _open(root: Path) -> KvStore:
    settings = KvSettings(budget_bytes=1 << 50, free_floor_bytes=0)
    return KvStore(root, _KEY, _FINGERPRINT, clock=time.time, settings=settings)


def _median(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
