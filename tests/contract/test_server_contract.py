"""What a server can keep of the engines' contract, asked of llama-server; and what it has beyond others."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from models.engine import Engine, Entry, Failed, Finished, Loaded, Piece, Prepared, Progress, Prompt, Sampling, Stored
from models.remote import RemoteEngine
from tests.contract import test_engine_contract as contract
from tests.contract.test_engine_contract import GREEDY, LONG, MakeEngine, ask, drain
from tests.models.helpers import kinds, one
from tests.models.llama_http import N_CTX, LlamaServer, llama_server
from tests.models.relay import relaying

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[LlamaServer]:
    """One server for all: the packaged one, or the binary that --llama-server names."""
    binary: Path | None = request.config.getoption("--llama-server")
    with llama_server(tmp_path_factory.mktemp("slots"), binary) as running:
        yield running


@pytest.fixture(scope="module")
def make(server: LlamaServer) -> MakeEngine:
    """Makes engines for one server."""
    return server.engine


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(make: MakeEngine) -> AsyncIterator[Engine]:
    """One engine for all tests that need no fresh one."""
    made = make()
    yield made
    await made.close()


# The same promises, asked in the same words; those on token ids and on KV of our own are not a server's to keep.
test_loading = contract.test_loading
test_a_load_that_was_given_up = contract.test_a_load_that_was_given_up
test_closing_an_engine_that_never_ran = contract.test_closing_an_engine_that_never_ran
test_an_abandoned_answer_frees_the_engine = contract.test_an_abandoned_answer_frees_the_engine
test_requests_do_not_mix = contract.test_requests_do_not_mix
test_the_time_to_the_first_text_has_parts = contract.test_the_time_to_the_first_text_has_parts


def going_on(prompt: Prompt, finished: Finished, question: str) -> Prompt:
    """The prompt of the next turn."""
    return replace(prompt, entries=(*prompt.entries, Entry("assistant", finished.text), Entry("user", question)))


async def test_a_request_cancelled_while_it_connects(make: MakeEngine) -> None:
    """It ends as cancelled, and the next one is answered."""
    engine = make()
    events = []
    async for event in engine.generate(ask("loquats"), GREEDY):
        events.append(event)
        if len(events) == 1:
            await engine.cancel()
    assert isinstance(events[-1], Failed)
    assert events[-1].kind == "cancelled"
    assert one(Finished, await drain(engine.generate(ask("loquats"), GREEDY))).text
    await engine.close()


async def test_a_turn(engine: Engine) -> None:
    """The order of events, the counts, and that pieces join to the text."""
    await drain(engine.load())
    events = await drain(engine.generate(ask("apples of another kind"), GREEDY))
    assert kinds(events) == [Progress, Prepared, Piece, Finished, Stored]
    prepared, finished = one(Prepared, events), one(Finished, events)
    stats = finished.stats
    assert prepared.is_counted
    assert stats.prompt_tokens == prepared.resident + prepared.restored + prepared.prefilled
    assert (stats.resident_tokens, stats.prefilled_tokens) == (prepared.resident, prepared.prefilled)
    assert (finished.reason, stats.output_tokens) == ("length", 8)
    assert "".join(event.text for event in events if isinstance(event, Piece)) == finished.text
    assert stats.tpot_s is not None
    assert stats.tpot_s > 0


async def test_twenty_turns_evaluate_their_own_messages_only(engine: Engine) -> None:
    """What the server had read and said is in its cache each time, but for the last token, which it never read."""
    prompt = replace(ask("a long talk"), conversation="twenty")
    n_history = None
    for n in range(20):
        finished = one(Finished, await drain(engine.generate(prompt, GREEDY)))
        stats = finished.stats
        assert stats.resident_tokens is not None
        assert stats.prompt_tokens is not None
        assert stats.output_tokens is not None
        if n_history is not None:
            assert stats.resident_tokens + (stats.restored_tokens or 0) >= n_history - 1, f"turn {n}"
        n_history = stats.prompt_tokens + stats.output_tokens
        prompt = going_on(prompt, finished, f"And what is number {n}?")


async def test_a_cut_answer_goes_on(engine: Engine) -> None:
    """With what it would have said in one go, told from its beginning."""
    prompt = ask("medlars and quinces")
    whole = one(Finished, await drain(engine.generate(prompt, replace(GREEDY, max_tokens=16))))
    cut = one(Finished, await drain(engine.generate(prompt, GREEDY)))
    begun = replace(prompt, entries=(*prompt.entries, Entry("assistant", cut.text)))
    events = await drain(engine.generate(begun, GREEDY))
    assert one(Finished, events).text == whole.text
    assert "".join(event.text for event in events if isinstance(event, Piece)) == whole.text


async def test_cancel_in_the_middle_of_an_answer(engine: Engine) -> None:
    """What was said stays, the reason is 'cancelled', and the next message goes on from there."""
    prompt = ask("cherries again")
    events = []
    async for event in engine.generate(prompt, LONG):
        events.append(event)
        if isinstance(event, Piece):
            await engine.cancel()
    finished = one(Finished, events)
    assert finished.reason == "cancelled"
    assert finished.text == "".join(event.text for event in events if isinstance(event, Piece))
    after = one(Finished, await drain(engine.generate(going_on(prompt, finished, "more"), GREEDY)))
    assert after.reason in ("length", "end")
    assert (after.stats.resident_tokens or 0) > 0


async def test_a_stop_string(engine: Engine) -> None:
    """The text ends before it."""
    prompt = ask("kiwis of old")
    whole = one(Finished, await drain(engine.generate(prompt, GREEDY)))
    stop = whole.text[3:5]
    events = await drain(engine.generate(prompt, replace(GREEDY, stop=(stop,))))
    assert one(Finished, events).text == whole.text[: whole.text.index(stop)]


async def test_too_long_a_prompt(engine: Engine) -> None:
    """It is refused in one sentence with both numbers."""
    *_, failed = await drain(engine.generate(ask("long " * 3000), GREEDY))
    assert isinstance(failed, Failed)
    assert (failed.kind, f"{N_CTX:,}" in failed.message) == ("too_long", True)


async def test_a_full_context_is_told_from_a_limit(engine: Engine) -> None:
    """An answer that fills the context says so."""
    prompt = ask("word " * (N_CTX // 2 - 50))
    events = await drain(engine.generate(prompt, replace(LONG, grammar='root ::= "a"+')))
    assert one(Finished, events).reason == "context"


async def test_a_grammar(engine: Engine) -> None:
    """The answer follows it."""
    sampling = replace(GREEDY, grammar='root ::= "yes" | "no"')
    assert one(Finished, await drain(engine.generate(ask("Is it?"), sampling))).text in ("yes", "no")


async def test_what_the_server_tells_of_itself(engine: Engine) -> None:
    """Context, size and sampling come from it; its tokenizer counts."""
    await drain(engine.load())
    info = engine.info
    assert info is not None
    assert info.server is not None
    assert (info.n_ctx, info.server.kind, info.name) == (N_CTX, "llama-server", "starter at local")
    assert info.sampling == Sampling()
    assert 1 < await engine.count("naïve 漢字 🙂") < 20


async def test_a_conversation_comes_back_from_the_servers_disk(server: LlamaServer) -> None:
    """Another one was in the slot meanwhile: its file is read, and the next answer's count proves it."""
    engine = server.engine()
    prompt = replace(ask("a talk that comes back " * 10), conversation="comes-back")
    first = one(Finished, await drain(engine.generate(prompt, GREEDY)))
    other = replace(Prompt((Entry("user", "Something else altogether " * 20),)), conversation="other")
    await drain(engine.generate(other, GREEDY))
    await engine.close()
    again = server.engine()
    await drain(again.load())
    prepared = await drain(again.prepare(prompt))
    assert kinds(prepared) == [Progress, Prepared, Stored]
    second = one(Finished, await drain(again.generate(going_on(prompt, first, "more"), GREEDY))).stats
    await again.close()
    assert first.stats.prompt_tokens is not None
    assert first.stats.output_tokens is not None
    assert (second.resident_tokens or 0) >= first.stats.prompt_tokens + first.stats.output_tokens - 1
    assert list(server.slots.glob("chatapp-comes-back-*.bin"))


async def test_what_is_not_to_be_kept_leaves_no_file(server: LlamaServer) -> None:
    """Nor does a conversation without a name."""
    engine = server.engine()
    before = set(server.slots.iterdir())
    await drain(engine.generate(replace(ask("secret"), conversation="secret", store_kv=False), GREEDY))
    await drain(engine.generate(ask("nameless"), GREEDY))
    await engine.close()
    assert set(server.slots.iterdir()) == before


async def test_a_wrong_key(server: LlamaServer) -> None:
    """It is one sentence, and shows no key."""
    engine = server.engine(key=lambda: "sk-not-this-one")
    *_, failed = await drain(engine.load())
    await engine.close()
    assert isinstance(failed, Failed)
    assert (failed.kind, "sk-not" in failed.message) == ("key", False)


async def test_a_server_that_is_killed_in_the_middle(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """What was said was told before; the failure is one sentence."""
    with llama_server(tmp_path / "slots", request.config.getoption("--llama-server")) as server:
        engine: RemoteEngine = server.engine()
        events = []
        async for event in engine.generate(ask("a story"), LONG):
            events.append(event)
            if isinstance(event, Piece):
                server.process.kill()
        await engine.close()
    assert isinstance(events[-1], Failed)
    assert (events[-1].kind, "broke off" in events[-1].message) == ("cut", True)
    assert any(isinstance(event, Piece) for event in events)


async def test_a_dropped_stream_is_taken_up_again(server: LlamaServer) -> None:
    """Where the server repeats what was missed, the answer is whole although the connection broke."""
    engine = server.engine(resumes=True)
    assert isinstance((await drain(engine.load()))[-1], Loaded)
    facts = engine.facts
    assert facts is not None
    if not facts.resumes:
        pytest.skip("this llama-server cannot do that")
    whole = one(Finished, await drain(engine.generate(ask("a river"), replace(GREEDY, max_tokens=48)))).text
    async with relaying(server.port) as relay:
        broken = server.engine(resumes=True, base_url=f"http://127.0.0.1:{relay.port}")
        events = await drain(broken.generate(ask("a river"), replace(GREEDY, max_tokens=48)))
        await broken.close()
        assert relay.n_cut == 1
    assert one(Finished, events).text == whole
    await engine.close()
