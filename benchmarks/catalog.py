"""How long the list of models takes: cold (every header is read) and cached. Prints one JSON object.

    python benchmarks/catalog.py [--files 200] [--tokens 150000]

The files are made here: each has a vocabulary of its own with as many merges, and 300 tensors without data. They were
just written, so reading them costs no disk. Times are the best and the median of the runs, in a process that has
imported everything.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from models.catalog import describe, entries
from models.modelfacts import FactsCache
from models.modelfiles import ModelFolders

_N_TENSORS = 300
_LAYERS = 32
_U32, _STRING, _ARRAY, _I32 = 4, 8, 9, 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure how long the list of models takes.")
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=150_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chatapp-catalog-") as name:
        root = Path(name)
        folders = ModelFolders(own=root / "models")
        folders.own.mkdir()
        rng = random.Random(7)
        words = [
            _string("".join(rng.choices("abcdefghij", k=min(rng.randint(1, 8) + rng.randint(0, 6), 14))))
            for _ in range(2 * options.tokens)
        ]
        for i in range(options.files):
            _write(folders.own / f"model-{i:04}.gguf", words, i)
        n_bytes = sum(path.stat().st_size for path in folders.own.iterdir())

        def listed(cache: str) -> None:
            models = describe(entries(folders), FactsCache(root / cache))
            read = [model for model in models if model.facts and model.facts.n_vocab == options.tokens]
            assert len(read) >= options.files, "each file was read"

        colds = [_seconds(partial(listed, f"cache-{run}")) for run in range(options.runs)]
        cached = [_seconds(partial(listed, "cache-0")) for _ in range(options.runs)]
    print(
        json.dumps(
            {
                "files": options.files,
                "tokens_each": options.tokens,
                "merges_each": options.tokens,
                "header_bytes_each": n_bytes // options.files,
                "cold_s": round(min(colds), 4),
                "cold_median_s": round(statistics.median(colds), 4),
                "cold_ms_a_file": round(1000 * min(colds) / options.files, 2),
                "cached_s": round(min(cached), 4),
                "cached_median_s": round(statistics.median(cached), 4),
            },
            indent=1,
        )
    )


def _write(path: Path, words: list[bytes], seed: int) -> None:
    """A header as converters write it: settings, vocabulary, template, tensors."""
    n = len(words) // 2
    shift = seed * 997 % len(words)
    mine = words[shift:] + words[:shift]
    keys = [
        _key("general.architecture", _STRING, _string("llama")),
        _key("general.name", _STRING, _string(path.stem)),
        _key("general.file_type", _U32, struct.pack("<I", 15)),
        _key("llama.block_count", _U32, struct.pack("<I", _LAYERS)),
        _key("llama.context_length", _U32, struct.pack("<I", 131_072)),
        _key("llama.embedding_length", _U32, struct.pack("<I", 4096)),
        _key("llama.attention.head_count", _U32, struct.pack("<I", 32)),
        _key("llama.attention.head_count_kv", _U32, struct.pack("<I", 8)),
        _key("tokenizer.ggml.model", _STRING, _string("gpt2")),
        _key("tokenizer.ggml.tokens", _ARRAY, struct.pack("<IQ", _STRING, n) + b"".join(mine[:n])),
        _key("tokenizer.ggml.token_type", _ARRAY, struct.pack("<IQ", _I32, n) + bytes(4 * n)),
        _key("tokenizer.ggml.merges", _ARRAY, struct.pack("<IQ", _STRING, n) + b"".join(mine[n:])),
        _key("tokenizer.chat_template", _STRING, _string("<|im_start|>" * 100)),
    ]
    tensors = [_string(f"blk.{i}.weight") + struct.pack("<IQQIQ", 2, 4096, 4096, 12, 0) for i in range(_N_TENSORS)]
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, _N_TENSORS, len(keys)) + b"".join(keys + tensors))


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _string(name) + struct.pack("<I", kind) + value


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _seconds(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
