"""What a server's counters say of one prompt, where its answer does not tell what was cached: exact, or unknown."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, replace

from models.engine import TurnStats
from models.remote_client import RemoteClient
from models.remote_errors import RemoteError
from models.remote_profile import RemoteProfile

READ_S = 1.0
"""How long counters may take: an answer is complete without them."""
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_KV_LABEL = re.compile(r'\bkv_cache_size_tokens="(\d{1,15})"')
_PROMPT = ("vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total")
"""Tokens of prompts so far: vLLM counts them when it looks for them in its cache, SGLang at the end of an answer."""
_CACHED = ("vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_hits_total", "sglang:cached_tokens_total")
"""Those of them that were there: in its own memory, and in that of a store beside it."""
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_KV_INFO, _KV_SIZE = "vllm:cache_config_info", "sglang:max_total_num_tokens"


@dataclass(frozen=True, slots=True)
class Metrics:
    """A page of counters, those of all engines behind it added up.

    `n_prompt` are tokens of prompts since the server began, `n_cached` those of them that it had in its cache.
    `n_kv` is how many tokens its KV cache holds, `kv_usage` how full that is (0 to 1, of several engines the mean);
    None where it does not tell.
    """

    n_prompt: int
    n_cached: int
    n_kv: int | None = None
    kv_usage: float | None = None


def read_metrics(page: str) -> Metrics | None:
    """Return what a page in Prometheus' text format tells; None if it has no counter of prompts."""
    sums: dict[str, float] = {}
    counts: Counter[str] = Counter()
    n_kv = None
    for line in page.splitlines():
        if not line.startswith(("vllm:", "sglang:")) or not (found := _SAMPLE.fullmatch(line)):
            continue
        name, labels, number = found.groups()
        if name == _KV_INFO and labels and (size := _KV_LABEL.search(labels)):
            n_kv = (n_kv or 0) + int(size[1])
        try:
            value = float(number)
        except ValueError:
            continue
        if 0 <= value < 1 << 53:
            sums[name] = sums.get(name, 0.0) + value
            counts[name] += 1
    n_prompt = next((sums[name] for name in _PROMPT if name in sums), None)
    if n_prompt is None:
        return None
    n_cached = sum(sums.get(name, 0.0) for name in _CACHED)  # SGLang shows none before the first hit
    usage = next((sums[name] / counts[name] for name in _USAGE if name in sums), None)
    if n_kv is None and _KV_SIZE in sums:
        n_kv = int(sums[_KV_SIZE])
    return Metrics(int(n_prompt), int(n_cached), n_kv, None if usage is None or usage > 1 else usage)


async def fetch_metrics(client: RemoteClient, profile: RemoteProfile) -> Metrics | None:
    """Return what a server counts now; None where it does not tell, or not at once."""
    try:
        async with asyncio.timeout(READ_S):
            status, _, page = await client.fetch(f"{profile.root}/metrics", read_s=READ_S)
    except (RemoteError, TimeoutError):
        return None
    return read_metrics(page) if status == 200 and isinstance(page, str) else None


def with_cached(stats: TurnStats, n_cached: int) -> TurnStats:
    """Return a turn's stats with what the server had of its prompt: the rest was evaluated."""
    assert stats.prompt_tokens is not None, "what is cached is a part of a known number"
    n_read = stats.prompt_tokens - n_cached
    return replace(stats, resident_tokens=n_cached, restored_tokens=0, prefilled_tokens=n_read)


class Counters:
    """Finds out from two pages, one before and one after an answer, what of its prompt was in the server's cache.

    The counters are of all who use the server. They are believed only if they grew by exactly the prompt's tokens in
    between, so that nobody else can have been served. The page before is the one behind the answer before: reading it
    holds up no prompt.
    """

    def __init__(self, client: RemoteClient, profile: RemoteProfile, before: Metrics) -> None:
        self._client = client
        self._profile = profile
        self._before: Metrics | None = before

    async def note(self) -> None:
        """Read the page that counts as the one before the next prompt."""
        self._before = await fetch_metrics(self._client, self._profile)

    async def cached(self, n_prompt: int | None) -> int | None:
        """Return how many of the last prompt's tokens were cached; None if that cannot be told apart from others'."""
        before = self._before
        await self.note()
        if before is None or self._before is None or n_prompt is None:
            return None
        n_cached = self._before.n_cached - before.n_cached
        is_alone = self._before.n_prompt - before.n_prompt == n_prompt and 0 <= n_cached <= n_prompt
        return n_cached if is_alone else None

    def lose(self) -> None:
        """Several prompts were under way at once: none of them can be told from the others."""
        self._before = None
