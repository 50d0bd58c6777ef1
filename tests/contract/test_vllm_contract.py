"""What a server can keep of the engines' contract, asked of vLLM: only where `--vllm` names one, as `make` does."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
import pytest_asyncio

from models.engine import Engine, Entry, Failed, Finished, Piece, Prepared, Progress, Prompt, Sampling, Stored
from models.errors import EngineError
from models.remote import RemoteEngine
from tests.contract import test_engine_contract as contract
from tests.contract import test_server_contract as servers
from tests.contract.test_engine_contract import GREEDY, LONG, MakeEngine, ask, drain
from tests.contract.test_server_contract import going_on
from tests.models.helpers import kinds, one
from tests.models.vllm_http import BLOCK, VllmServer, vllm_server

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[VllmServer]:
    """One server for all; it does not tell cached tokens, as is vLLM's default."""
    where: str | None = request.config.getoption("--vllm")
    if not where:
        pytest.skip("make test-vllm asks vLLM")
    with vllm_server(where, tmp_path_factory.mktemp("vllm") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def make(server: VllmServer) -> MakeEngine:
    """Makes engines for one server."""
    return server.engine


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(make: MakeEngine) -> AsyncIterator[Engine]:
    """One engine for all tests that need no fresh one."""
    made = make()
    yield made
    await made.close()


# The same promises, asked in the same words.
test_loading = contract.test_loading
test_a_load_that_was_given_up = contract.test_a_load_that_was_given_up
test_closing_an_engine_that_never_ran = contract.test_closing_an_engine_that_never_ran
test_an_abandoned_answer_frees_the_engine = contract.test_an_abandoned_answer_frees_the_engine
test_requests_do_not_mix = contract.test_requests_do_not_mix
test_a_request_cancelled_while_it_connects = servers.test_a_request_cancelled_while_it_connects
test_a_stop_string = servers.test_a_stop_string


async def test_a_turn(engine: Engine) -> None:
    """The order of events, the counts, and that pieces join to the text."""
    await drain(engine.load())
    events = await drain(engine.generate(ask("apples of another kind"), GREEDY))
    assert kinds(events) == [Progress, Prepared, Piece, Finished, Stored]
    assert not one(Prepared, events).is_counted
    finished = one(Finished, events)
    assert (finished.reason, finished.stats.output_tokens) == ("length", 8)
    assert (finished.stats.prompt_tokens or 0) > 8
    assert "".join(event.text for event in events if isinstance(event, Piece)) == finished.text
    assert finished.stats.tpot_s is not None
    assert one(Stored, events).note is None


async def test_what_the_server_tells_of_itself(make: MakeEngine) -> None:
    """Its kind, context and version; its tokenizer counts a draft, without what begins a text."""
    engine = make()
    assert isinstance(engine, RemoteEngine)
    await drain(engine.load())
    facts, info = engine.facts, engine.info
    assert facts is not None
    assert info is not None
    assert (facts.kind, facts.tokenize, bool(facts.version)) == ("vllm", "prompt", True)
    assert info.n_ctx == facts.n_ctx
    assert facts.metrics is not None
    assert (facts.metrics.n_kv or 0) > 0
    assert 1 < await engine.count("naïve 漢字 🙂") < 20
    assert await engine.count("a b") == await engine.count("a b a b") - await engine.count(" a b")
    await engine.close()


async def test_twenty_turns_read_their_own_messages_and_a_block(make: MakeEngine) -> None:
    """The whole blocks of what was said before are in its cache each time: its counters prove it, turn by turn."""
    engine = make()
    prompt = ask("a long talk " * 20)
    n_history = None
    for n in range(20):
        finished = one(Finished, await drain(engine.generate(prompt, GREEDY)))
        stats = finished.stats
        assert stats.prompt_tokens is not None
        assert stats.output_tokens is not None
        assert stats.resident_tokens is not None, f"turn {n}"
        if n_history is not None:
            assert stats.resident_tokens >= n_history - stats.output_tokens - 2 * BLOCK, f"turn {n}"
        n_history = stats.prompt_tokens + stats.output_tokens
        prompt = going_on(prompt, finished, f"And what is number {n}?")
    await engine.close()


async def test_somebody_else_at_the_server(make: MakeEngine) -> None:
    """What was cached is unknown then, and not what others had."""
    engine, other = make(), make()
    await drain(engine.generate(ask("papayas"), GREEDY))
    await drain(other.generate(ask("guavas"), GREEDY))
    assert one(Finished, await drain(engine.generate(ask("papayas"), GREEDY))).stats.resident_tokens is None
    assert one(Finished, await drain(engine.generate(ask("papayas"), GREEDY))).stats.resident_tokens is not None
    await engine.close()
    await other.close()


async def test_a_cut_answer_goes_on(engine: Engine) -> None:
    """It is told from its beginning, and what follows is the continuation."""
    prompt = ask("medlars and quinces")
    cut = one(Finished, await drain(engine.generate(prompt, GREEDY)))
    begun = replace(prompt, entries=(*prompt.entries, Entry("assistant", cut.text)))
    events = await drain(engine.generate(begun, GREEDY))
    assert one(Finished, events).text.startswith(cut.text)
    assert len(one(Finished, events).text) > len(cut.text)


async def test_cancel_in_the_middle_of_an_answer(engine: Engine) -> None:
    """What was said stays, the reason is 'cancelled', and the next message is answered."""
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


async def test_too_long_a_prompt(engine: Engine) -> None:
    """It is refused in one sentence with the size of the context."""
    await drain(engine.load())
    assert engine.info is not None
    *_, failed = await drain(engine.generate(ask("long " * (engine.info.n_ctx + 500)), GREEDY))
    assert isinstance(failed, Failed)
    assert (failed.kind, str(engine.info.n_ctx) in failed.message) == ("too_long", True)


async def test_a_full_context_is_told_from_a_limit(engine: Engine) -> None:
    """An answer that fills the context says so."""
    await drain(engine.load())
    assert engine.info is not None
    n_room = engine.info.n_ctx - await engine.count("word " * 100) - 400
    prompt = ask("word " * (n_room // 2 + 50))
    stats = one(Finished, await drain(engine.generate(prompt, GREEDY))).stats
    assert stats.prompt_tokens is not None
    # As many tokens as are left are asked for, since where it would have ended by itself is the model's affair.
    left = Sampling(temperature=0, max_tokens=engine.info.n_ctx - stats.prompt_tokens)
    finished = one(Finished, await drain(engine.generate(prompt, left)))
    n_tokens = stats.prompt_tokens + (finished.stats.output_tokens or 0)
    assert finished.reason == ("context" if n_tokens == engine.info.n_ctx else "end")


async def test_a_grammar_is_not_dropped_in_silence(engine: Engine) -> None:
    """It would be ignored, so it is refused."""
    *_, failed = await drain(engine.generate(ask("Is it?"), replace(GREEDY, grammar='root ::= "yes"')))
    assert isinstance(failed, Failed)
    assert failed.kind == "grammar"


async def test_a_wrong_key(server: VllmServer) -> None:
    """It is one sentence, and shows no key."""
    if server.key is None:
        pytest.skip("that server has no key")
    engine = server.engine(key=lambda: "sk-not-this-one")
    *_, failed = await drain(engine.load())
    assert isinstance(failed, Failed)
    assert (failed.kind, "sk-not" in failed.message) == ("key", False)
    with pytest.raises(EngineError):
        await engine.count("text")
    await engine.close()


async def test_another_model(server: VllmServer) -> None:
    """One that it has not is told at connecting."""
    engine = server.engine(model="nobody/nothing")
    *_, failed = await drain(engine.load())
    await engine.close()
    assert isinstance(failed, Failed)
    assert failed.kind == "no_model"


async def test_a_server_that_is_killed_in_the_middle(server: VllmServer) -> None:
    """What was said was told before; the failure is one sentence. It is the last test: the server is gone."""
    if server.process is None:
        pytest.skip("that server is not ours to kill")
    engine = server.engine()
    events = []
    async for event in engine.generate(Prompt((Entry("user", "Count to a thousand, word by word."),)), LONG):
        events.append(event)
        if isinstance(event, Piece) and server.process.poll() is None:
            server.kill()
    await engine.close()
    assert isinstance(events[-1], Failed)
    assert (events[-1].kind, "broke off" in events[-1].message) == ("cut", True)
    assert any(isinstance(event, Piece) for event in events)
