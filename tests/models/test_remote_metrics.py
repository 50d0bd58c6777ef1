"""Counters of vLLM and SGLang: what they say of one prompt, and when they say nothing; drafts by their tokenizers."""

import asyncio
from typing import Any

import pytest

from models.engine import Prepared, Prompt, Sampling, Stored
from models.remote import RemoteEngine
from models.remote_metrics import Metrics, read_metrics
from tests.models.helpers import kinds
from tests.models.remote_talk import ASK, engine_at, finished
from tests.models.scripted_server import DONE, HANG, Received, Script, Scripted, delta, reply, serving, stream, usage

VLLM = """\
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="a \\"b\\" {c}"} 8.128902e+06
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7643e+09
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 100.0 1764300000
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 64.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 32.0
vllm:external_prefix_cache_queries_total{engine="1",model_name="m"} 68.0
vllm:external_prefix_cache_hits_total{engine="1",model_name="m"} 16.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:cache_config_info{block_size="32",cache_dtype="auto",kv_cache_size_tokens="46592",engine="0"} 1.0
"""
SGLANG = """\
sglang:prompt_tokens_total{model_name="m"} 1000.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 400.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 50.0
sglang:token_usage{model_name="m"} 0.5
sglang:max_total_num_tokens{model_name="m"} 161721.0
"""


def test_a_page_of_vllm() -> None:
    """Engines are added up, and what a store beside them had; how full they are is the mean.

    Quotes in labels, times and other samples do no harm.
    """
    assert read_metrics(VLLM) == Metrics(8_129_002, 112, n_kv=46_592, kv_usage=0.5)


def test_a_page_of_sglang() -> None:
    """What came from memory and from the host counts; there is no counter of it before the first hit."""
    assert read_metrics(SGLANG) == Metrics(1000, 450, n_kv=161_721, kv_usage=0.5)
    assert read_metrics('sglang:prompt_tokens_total{model_name="m"} 7.0') == Metrics(7, 0)


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<html>metrics</html>",
        "llamacpp:prompt_tokens_total 12",
        "vllm:prefix_cache_queries_total NaN",
        "vllm:prefix_cache_queries_total -1",
        "vllm:prefix_cache_queries_total{ 1",
        "vllm:prefix_cache_queries_total 1e300",
    ],
)
def test_a_page_that_counts_nothing_we_know(page: str) -> None:
    """It is none."""
    assert read_metrics(page) is None


class Counting:
    """A server that counts like vLLM and tells no cached tokens; `others` are tokens of somebody else's prompts."""

    def __init__(self, plain: Scripted, owner: str = "vllm") -> None:
        self._plain = plain
        self._owner = owner
        self.n_prompt, self.n_cached = 1000, 300
        self.others = 0
        self.details: dict[str, Any] = {}
        self.has_counters = True
        self.hangs = False
        self.n_read = 0

    def script_for(self, request: Received) -> Script:
        """A prompt has 50 tokens, 32 of them cached."""
        match request.path:
            case "/v1/models":
                return [reply(200, {"data": [{"id": "m", "owned_by": self._owner, "max_model_len": 4096}]})]
            case "/version":
                return [reply(200, {"version": "0.32.0"})]
            case "/tokenize":
                text = request.body.get("prompt")
                # Of vLLM, a field it does not know is no text.
                return [reply(200, {"count": len(text)}) if text else reply(400, {"error": {"message": "no prompt"}})]
            case "/metrics" if self.has_counters:
                self.n_read += 1
                return [HANG] if self.hangs else [reply(200, self._page(), kind="text/plain")]
            case "/v1/chat/completions":
                self.n_prompt += 50 + self.others
                self.n_cached += 32 + self.others
                return stream(delta("Yes."), delta(finish="stop"), usage(50, 1, **self.details), DONE)
        return self._plain.script_for(request)

    def _page(self) -> bytes:
        names = {
            "vllm": ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
            "sglang": ("sglang:prompt_tokens_total", "sglang:cached_tokens_total"),
        }[self._owner]
        values = (self.n_prompt, self.n_cached)
        return "".join(f'{name}{{model_name="m"}} {n}.0\n' for name, n in zip(names, values, strict=True)).encode()


async def ask(engine: RemoteEngine, prompt: Prompt = ASK) -> tuple[int | None, int | None, int | None]:
    """Resident, restored and evaluated tokens of a turn."""
    stats = finished([event async for event in engine.generate(prompt, Sampling())]).stats
    return stats.resident_tokens, stats.restored_tokens, stats.prefilled_tokens


@pytest.mark.parametrize("owner", ["vllm", "sglang"])
async def test_a_prompt_that_was_alone(owner: str) -> None:
    """The counters grew by its tokens and no others, so what they say of the cache is said of it; turn after turn."""
    async with serving() as plain:
        counting = Counting(plain, owner)
        async with serving(script_for=counting.script_for) as server:
            engine = engine_at(server)
            assert [await ask(engine) for _ in range(3)] == [(32, 0, 18)] * 3
            await engine.close()


async def test_a_prompt_among_others() -> None:
    """Somebody else was served in between: it is unknown, and known again when nobody is."""
    async with serving() as plain:
        counting = Counting(plain)
        async with serving(script_for=counting.script_for) as server:
            engine = engine_at(server)
            told = []
            for counting.others in (7, 0):
                told.append(await ask(engine))
            await engine.close()
    assert told == [(None, None, None), (32, 0, 18)]


async def test_a_conversation_that_is_opened() -> None:
    """What others were served before it is no matter: the counters are read then, and no prompt is sent."""
    async with serving() as plain:
        counting = Counting(plain)
        async with serving(script_for=counting.script_for) as server:
            engine = engine_at(server)
            assert await ask(engine) == (32, 0, 18)
            counting.n_prompt += 5000
            assert kinds([event async for event in engine.prepare(ASK)]) == [Prepared, Stored]
            assert len(server.asked) == 1
            assert await ask(engine) == (32, 0, 18)
            await engine.close()


async def test_a_server_that_tells_by_itself() -> None:
    """Its word counts, and the counters are not read for it."""
    async with serving() as plain:
        counting = Counting(plain)
        counting.details = {"prompt_tokens_details": {"cached_tokens": 16}}
        async with serving(script_for=counting.script_for) as server:
            engine = engine_at(server)
            assert await ask(engine) == (16, 0, 34)
            await engine.close()
    assert counting.n_read == 1


async def test_a_server_without_counters() -> None:
    """It is asked once, at connecting, and what was cached stays unknown."""
    async with serving() as plain:
        counting = Counting(plain)
        counting.has_counters = False
        async with serving(script_for=counting.script_for) as server:
            engine = engine_at(server)
            assert await ask(engine) == (None, None, None)
            await engine.close()
            assert [request.path for request in server.received].count("/metrics") == 1


async def test_counters_that_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is complete without them."""
    async with serving() as plain:
        counting = Counting(plain)
        async with serving(script_for=counting.script_for) as server:
            engine = engine_at(server)
            _ = [event async for event in engine.load()]
            monkeypatch.setattr("models.remote_metrics.READ_S", 0.05)
            counting.hangs = True
            async with asyncio.timeout(8):
                assert await ask(engine) == (None, None, None)
            await engine.close()


async def test_prompts_side_by_side() -> None:
    """They cannot be told apart: unknown, and the counters are not read once for each of them."""
    async with serving() as plain:
        counting = Counting(plain)
        async with serving(script_for=counting.script_for) as server:
            engine = engine_at(server, n_parallel=4)
            _ = [event async for event in engine.load()]
            told = await asyncio.gather(*(ask(engine) for _ in range(4)))
            await engine.close()
    assert told == [(None, None, None)] * 4
    assert counting.n_read == 2


async def test_a_draft_is_counted_by_the_servers_tokenizer() -> None:
    """Exactly, without what begins a text there; the server is asked which field it takes."""
    async with serving() as plain:
        counting = Counting(plain)
        async with serving(script_for=counting.script_for) as server:
            engine = engine_at(server)
            assert await engine.count("naïve 漢字") == 8
            await engine.close()
            asked = [request.body for request in server.received if request.path == "/tokenize"][-1]
    assert asked == {"model": "m", "prompt": "naïve 漢字", "add_special_tokens": False}
