"""Decoding with the engine's buffers in huge pages and in small ones, in turns, with flash attention on and off.

`python -m benchmarks.pages [--model PATH] [--repeats 3] [--tokens 64] [--depth 4096]` (3 minutes) prints one JSON
object: tokens a second (medians), and the ratio of huge to small pages (median of the turns), at the beginning of a
context and at `--depth`. Linux with glibc only, and only where /sys/kernel/mm/transparent_hugepage/enabled says
`madvise`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from unittest import mock

from chatapp.benches.decode import tpot_of
from chatapp.benches.scene import GREEDY, STORY, answer, history_of, running
from chatapp.config import FlashAttention, Settings
from models.catalog import starter_model
from models.engine import Entry, Prompt
from models.tuning import cores

_PAGES = {"huge": "glibc.malloc.hugetlb=1", "small": "glibc.malloc.hugetlb=0"}
_MODES: tuple[FlashAttention, ...] = ("on", "off")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--depth", type=int, default=4096)
    parser.add_argument("--model", type=Path, default=starter_model(), help="default: the starter")
    arguments = parser.parse_args()
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        settings = Settings(
            root / "data", root / "cache", arguments.model, n_ctx=8192, threads=cores(), speculation="off"
        )
        for _ in range(arguments.repeats):
            for mode in _MODES:
                for pages, said in _PAGES.items():
                    with mock.patch.dict(os.environ, GLIBC_TUNABLES=said):
                        speeds = asyncio.run(
                            _speeds(replace(settings, flash_attention=mode), arguments.depth, arguments.tokens)
                        )
                    for depth, speed in speeds.items():
                        taken[f"{depth}_flash_attention_{mode}", pages].append(speed)
    figures: dict[str, float] = {}
    for where in dict.fromkeys(where for where, _pages in taken):
        huge, small = taken[where, "huge"], taken[where, "small"]
        figures[f"{where}_huge_tokens_per_s"] = statistics.median(huge)
        figures[f"{where}_small_tokens_per_s"] = statistics.median(small)
        figures[f"{where}_ratio"] = statistics.median(a / b for a, b in zip(huge, small, strict=True))
    print(json.dumps(figures))


async def _speeds(settings: Settings, depth: int, n_tokens: int) -> dict[str, float]:
    """Tokens a second at the beginning and behind `depth` tokens, from one engine."""
    speeds = {}
    async with running(settings) as (engine, info):
        for name, length in (("shallow", 0), ("deep", depth)):
            before = await history_of(engine, info, length)
            prompt = Prompt((*before, Entry("user", STORY)), store_kv=False)
            await answer(engine, prompt, replace(GREEDY, max_tokens=1))
            tpot_s, _n = await tpot_of(engine, prompt, replace(GREEDY, max_tokens=n_tokens))
            speeds[name] = 1 / tpot_s
    return speeds


if __name__ == "__main__":
    main()
