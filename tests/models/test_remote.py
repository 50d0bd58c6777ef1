"""Turns at a server that keeps to the interface: text, counts, times, what is asked and how it ends."""

import asyncio
import threading
from dataclasses import replace

import pytest

from models.engine import Entry, Failed, Finished, Loaded, Piece, Prepared, Progress, Prompt, Sampling, Stored
from models.reasoning import answer_of, reasoning_of
from tests.models.helpers import kinds, one
from tests.models.remote_talk import ASK, KEY, engine_at, failed, finished, said, turn
from tests.models.scripted_server import (
    DONE,
    HANG,
    STREAM,
    Received,
    Script,
    answer,
    chunk,
    delta,
    event,
    reply,
    serving,
    stream,
    usage,
)


async def test_a_turn() -> None:
    """The order of events, the text, and that token ids are not made up."""
    async with serving() as server:
        server.chat = [answer("Pears", " are fruit.")]
        events = await turn(server)
        (asked,) = server.asked
    assert kinds(events) == [Progress, Prepared, Piece, Finished, Stored]
    end = finished(events)
    assert (end.text, end.reason, end.run.ids) == ("Pears are fruit.", "end", ())
    assert one(Prepared, events).runs == ()
    assert all(event.token_ids == () for event in events if isinstance(event, Piece))
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Pears?"},
    ]
    assert asked.body["stream_options"] == {"include_usage": True}


async def test_what_nobody_counted_is_unknown() -> None:
    """A server that tells no cached tokens is not taken for one that had none."""
    async with serving() as server:
        server.chat = [answer("Yes.")]
        events = await turn(server)
    stats = finished(events).stats
    assert (stats.prompt_tokens, stats.output_tokens) == (10, 1)
    assert (stats.resident_tokens, stats.restored_tokens, stats.prefilled_tokens) == (None, None, None)
    assert not one(Prepared, events).is_counted


@pytest.mark.parametrize(
    "told",
    [{"prompt_tokens_details": {"cached_tokens": 8}}, {"prompt_cache_hit_tokens": 8}],
    ids=["OpenAI", "DeepSeek"],
)
async def test_cached_tokens_are_resident_at_the_server(told: dict[str, object]) -> None:
    """Told in one of several ways; the rest was evaluated."""
    async with serving() as server:
        server.chat = [stream(delta("Yes."), delta(finish="stop"), usage(10, 1, **told), DONE)]
        stats = finished(await turn(server)).stats
    assert (stats.resident_tokens, stats.restored_tokens, stats.prefilled_tokens) == (8, 0, 2)


async def test_a_server_that_tells_how_far_it_is() -> None:
    """The meter shows what is left to read; the first word is the end of reading, not the first event."""
    steps = [
        event({"choices": [{"delta": {"role": "assistant", "content": None}}], "prompt_progress": step})
        for step in (
            {"total": 100, "cache": 40, "processed": 40, "time_ms": 0},
            {"total": 100, "cache": 40, "processed": 80, "time_ms": 9},
        )
    ]
    async with serving() as server:
        server.chat = [stream(*steps, delta("Yes."), delta(finish="stop"), usage(100, 1), DONE)]
        events = await turn(server)
    assert [found for found in events if isinstance(found, Progress)] == [
        Progress("prefill", 0, 0),
        Progress("prefill", 0, 60),
        Progress("prefill", 40, 60),
    ]
    prepared = one(Prepared, events)
    assert (prepared.resident, prepared.prefilled, prepared.is_counted) == (40, 60, True)


async def test_timings_of_the_server_count_before_ours() -> None:
    """llama-server's own clock measures what the network does not touch."""
    timings = {"cache_n": 28, "prompt_n": 8, "prompt_ms": 120.0, "predicted_n": 5, "predicted_ms": 200.0}
    async with serving() as server:
        server.chat = [stream(delta("Yes."), delta(finish="length"), event({"choices": [], "timings": timings}), DONE)]
        stats = finished(await turn(server)).stats
    assert (stats.prompt_tokens, stats.resident_tokens, stats.prefilled_tokens) == (36, 28, 8)
    assert (stats.prefill_s, stats.tpot_s, stats.output_tokens) == (0.12, 0.05, 5)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_in_a_field_of_its_own(field: str) -> None:
    """It becomes the block that answers begin with wherever they come from."""
    thoughts = [delta(**{field: "Let me"}), delta(**{field: " think."})]
    async with serving() as server:
        server.chat = [stream(*thoughts, delta("Two"), delta(" pears."), delta(finish="stop"), usage(), DONE)]
        text = finished(await turn(server)).text
    assert (reasoning_of(text), answer_of(text)) == ("Let me think.", "Two pears.")


async def test_a_character_in_two_escapes() -> None:
    """JSON may cut a character in two halves, one an event; half a character is no text."""
    halves = [
        b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"\\ude42b"}}]}\n\n',
    ]
    async with serving() as server:
        server.chat = [stream(*halves, delta("\ud83d."), delta(finish="stop"), DONE)]
        text = finished(await turn(server)).text
    assert text == "a🙂b\ufffd."


@pytest.mark.parametrize(
    ("finish", "n_prompt", "reason"),
    [("stop", 10, "end"), ("length", 10, "length"), ("length", 98, "context"), ("eos_token", 10, "end")],
)
async def test_how_an_answer_ends(finish: str, n_prompt: int, reason: str) -> None:
    """A full context has the same mark as a limit of tokens: the counts tell them apart."""
    async with serving() as server:
        server.routes["/v1/models"] = [reply(200, {"data": [{"id": "m", "max_model_len": 100}]})]
        server.chat = [stream(delta("Yes."), delta(finish=finish), usage(n_prompt, 2), DONE)]
        assert finished(await turn(server)).reason == reason


async def test_an_answer_in_one_body() -> None:
    """A server that does not stream is understood all the same."""
    body = {"choices": [{"message": {"content": "Yes."}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}
    async with serving() as server:
        server.chat = [[reply(200, body)]]
        assert finished(await turn(server)).text == "Yes."


async def test_what_is_usual_is_not_sent() -> None:
    """A server that knows nothing but the plain interface is told only what the user chose."""
    async with serving() as server:
        server.chat = [answer("Yes.")]
        engine = engine_at(server)
        loaded = [found async for found in engine.load()][-1]
        assert isinstance(loaded, Loaded)
        for sampling in (loaded.info.sampling, replace(loaded.info.sampling, temperature=0, seed=7, stop=("x",))):
            _ = [found async for found in engine.generate(ASK, sampling)]
        await engine.close()
        plain, chosen = (request.body for request in server.asked)
    assert plain.keys() == {"model", "messages", "stream", "stream_options"}
    assert {key: chosen[key] for key in chosen.keys() - plain.keys()} == {"temperature": 0, "seed": 7, "stop": ["x"]}


async def test_a_refused_parameter_is_named() -> None:
    """The answer is made without it, says so, and the next request does not try again."""
    refused = reply(400, {"error": {"message": "Unrecognized request argument supplied: top_k", "code": None}})
    async with serving() as server:
        server.chat = [[refused], answer("Yes.")]
        engine = engine_at(server)
        for _ in range(2):
            events = [found async for found in engine.generate(ASK, Sampling(top_k=5))]
            assert finished(events).text == "Yes."
            assert one(Stored, events).note == "box refuses top_k: the answer was made without"
        await engine.close()
        assert ["top_k" in request.body for request in server.asked] == [True, False, False]


async def test_a_parameter_with_another_name() -> None:
    """The limit of tokens has two names; a server that wants the other one gets it, and nothing has to be said."""
    said_no = {"error": {"message": "Use 'max_completion_tokens' instead.", "param": "max_tokens"}}
    async with serving() as server:
        server.chat = [[reply(400, said_no)], answer("Yes.")]
        events = await turn(server, sampling=Sampling(temperature=1, top_k=0, top_p=1, min_p=0, max_tokens=9))
        assert server.asked[-1].body["max_completion_tokens"] == 9
        assert "max_tokens" not in server.asked[-1].body
    assert one(Stored, events).note is None


async def test_a_busy_server_is_asked_again() -> None:
    """After as many seconds as it says, which is told; the answer is then made once."""
    busy = reply(429, {"error": "slow down"}, {"Retry-After": "0.01"})
    async with serving() as server:
        server.chat = [[busy], answer("Yes.")]
        events = await turn(server)
        assert len(server.asked) == 2
    assert finished(events).text == "Yes."
    assert Progress("wait", 0, 1) in events


async def test_a_server_that_loads_its_model() -> None:
    """It is asked again until it is ready, after the time that it names."""
    async with serving() as server:
        n_asked = 0

        def script(request: object) -> list[bytes | str]:
            nonlocal n_asked
            n_asked += 1
            if n_asked == 1:
                return [reply(503, {"error": {"message": "Loading model"}}, {"Retry-After": "0"})]
            return list(server.script_for(request))  # type: ignore[arg-type]

        async with serving(script_for=script) as loading:
            engine = engine_at(loading)
            events = [found async for found in engine.load()]
            await engine.close()
    assert isinstance(events[-1], Loaded)
    assert n_asked > 1
    assert not any(isinstance(found, Progress) and found.phase == "wait" for found in events)


async def test_cancel_in_the_middle() -> None:
    """What was said stays, and the server sees the connection close."""
    async with serving() as server:
        server.chat = [[STREAM, chunk(delta("Some")), HANG]]
        engine = engine_at(server)
        events = []
        async for found in engine.generate(ASK, Sampling()):
            events.append(found)
            if isinstance(found, Piece):
                await engine.cancel()
        await asyncio.wait_for(server.hung_up.wait(), 10)
        await engine.close()
    assert (finished(events).reason, finished(events).text) == ("cancelled", "Some")
    assert isinstance(events[-1], Stored)


async def test_cancel_before_the_first_word() -> None:
    """There is no answer then, and no failure either."""
    async with serving() as server:
        server.chat = [[HANG]]
        engine = engine_at(server)
        _ = [found async for found in engine.load()]
        events = []
        async for found in engine.generate(ASK, Sampling()):
            events.append(found)
            if isinstance(found, Progress):
                await engine.cancel()
        await engine.close()
    assert kinds(events) == [Progress, Finished, Stored]
    assert finished(events).reason == "cancelled"


async def test_an_abandoned_answer_closes_its_connection() -> None:
    """A caller that goes away does not leave the server at work."""
    async with serving() as server:
        server.chat = [[STREAM, chunk(delta("Some")), HANG], answer("Yes.")]
        engine = engine_at(server)
        events = engine.generate(ASK, Sampling())
        async for found in events:
            if isinstance(found, Piece):
                break
        await events.aclose()  # type: ignore[attr-defined]
        await asyncio.wait_for(server.hung_up.wait(), 10)
        assert said([found async for found in engine.generate(ASK, Sampling())]) == "Yes."
        await engine.close()


async def test_as_many_at_a_time_as_the_profile_says() -> None:
    """More requests wait in line, and all are answered."""
    async with serving() as server:
        server.chat = [answer("Yes.")]
        engine = engine_at(server, n_parallel=8)

        async def ask() -> str:
            return said([found async for found in engine.generate(ASK, Sampling())])

        assert await asyncio.gather(*(ask() for _ in range(20))) == ["Yes."] * 20
        await engine.close()
        assert server.n_connections <= 9


async def test_an_answer_cannot_go_on_everywhere() -> None:
    """Where the interface has no way for it, it is refused in a sentence instead of answered anew."""
    begun = Prompt((*ASK.entries, Entry("assistant", "Pears are")))
    async with serving() as server:
        server.chat = [answer(" fruit.")]
        assert "cannot go on" in failed(await turn(server, begun)).message
        server.routes["/v1/models"] = [reply(200, {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 100}]})]
        events = await turn(server, begun)
        assert server.asked[-1].body["continue_final_message"] is True
    assert finished(events).text == "Pears are fruit."


async def test_a_grammar_is_not_dropped_in_silence() -> None:
    """A server that would ignore it is not asked."""
    async with serving() as server:
        server.chat = [answer("Yes.")]
        found = failed(await turn(server, sampling=Sampling(grammar='root ::= "x"')))
        assert server.asked == []
    assert found.kind == "grammar"


@pytest.mark.parametrize(
    ("models", "model", "words"),
    [
        ([{"id": "a"}, {"id": "b"}], None, "a, b"),
        ([{"id": "a"}], "c", "has no model 'c'"),
        ([], None, "no list of models"),
    ],
)
async def test_which_model(models: list[dict[str, str]], model: str | None, words: str) -> None:
    """Servers answer for any name, so it is checked; and one of several is never chosen by itself."""
    async with serving() as server:
        server.routes["/v1/models"] = [reply(200, {"data": models})]
        found = failed(await turn(server, model=model))
    assert (found.kind, words in found.message) == ("no_model", True)


async def test_a_context_that_nobody_tells() -> None:
    """It is assumed, and said to be; the profile decides."""
    async with serving() as server:
        for n_ctx in (None, 8192):
            engine = engine_at(server, n_ctx=n_ctx)
            info = one(Loaded, [found async for found in engine.load()]).info
            await engine.close()
            assert info.n_ctx == (n_ctx or 131_072)
            assert bool(info.notes) == (n_ctx is None)


async def test_counting_without_a_tokenizer() -> None:
    """Rather too many than too few."""
    async with serving() as server:
        engine = engine_at(server)
        assert await engine.count("abcdef漢") == 3
        await engine.close()


async def test_a_key_that_was_mended() -> None:
    """It is fetched anew when a load is tried again, and sent."""
    keys = iter(["sk-wrong", "sk-right"])
    async with serving() as server:
        server.chat = [answer("Yes.")]
        engine = engine_at(server, key=lambda: next(keys))
        server.routes["/v1/models"] = [reply(401, {"error": "no"})]
        assert failed([found async for found in engine.load()]).kind == "key"
        del server.routes["/v1/models"]
        assert said([found async for found in engine.generate(ASK, Sampling())]) == "Yes."
        await engine.close()
        assert server.asked[0].headers["authorization"] == "Bearer sk-right"


async def test_a_key_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keyring that waits for somebody is not waited for without end."""
    monkeypatch.setattr("models.remote._KEY_S", 0.0)
    is_over = threading.Event()
    async with serving() as server:
        engine = engine_at(server, key=lambda: str(is_over.wait()))
        found = failed([event async for event in engine.load()])
        is_over.set()
        await engine.close()
    assert (found.kind, "does not come" in found.message) == ("key", True)


async def test_a_slot_that_is_saved_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its own time, however long other answers may take, and then nothing was written."""
    monkeypatch.setattr("models.remote_slots.SLOT_S", 0.05)
    settings = {"default_generation_settings": {"n_ctx": 100}, "total_slots": 1}
    async with serving() as plain:

        def script(request: Received) -> Script:
            if request.path == "/props":
                return [reply(200, settings)]
            if request.path.startswith("/slots/0"):
                is_save = request.path.endswith("=save") and "chatapp" in request.body["filename"]
                return [HANG] if is_save else [reply(400, {"error": {"message": "Invalid filename"}})]
            return answer("Yes.") if request.path.endswith("/completions") else plain.script_for(request)

        async with serving(script_for=script) as server, asyncio.timeout(8):
            events = await turn(server, replace(ASK, conversation="pears"))
            await server.hung_up.wait()
    assert finished(events).text == "Yes."
    assert one(Stored, events).kv_bytes_written == 0


async def test_an_engine_that_is_closed() -> None:
    """It says so instead of connecting again."""
    async with serving() as server:
        engine = engine_at(server)
        await engine.close()
        assert [found async for found in engine.load()] == [Failed("died", "The engine is closed.")]
