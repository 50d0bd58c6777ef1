from collections.abc import AsyncIterator
from dataclasses import fields

import pytest

from models.fake import FakeDisk, FakeEngine
from tests.chatapp.served import Client, events, question, served, text_of, until

THINKING = "<think>\nLet me see.\n</think>\n\nFour."


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A client of a server that echoes."""
    async with served(FakeEngine(lambda text: f"You said {text}.")) as running:
        yield running


async def test_an_answer_as_a_whole(client: Client) -> None:
    """Text, end and counts are where OpenAI's API has them, and what the model's path is nowhere."""
    status, answer = await client.post(question("hi"))
    assert status == 200
    assert (answer["object"], answer["model"], answer["created"]) == ("chat.completion", "fake", 1_000)
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "You said hi.", "refusal": None}
    assert choice["finish_reason"] == "stop"
    n_prompt, n_output = len("hi") + 4, len("You said hi.")  # two tokens open the message, one ends it, one answers
    assert answer["usage"] == {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_output,
        "total_tokens": n_prompt + n_output,
        "completion_tokens_details": {"reasoning_tokens": 0},
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert (answer["timings"]["prompt_n"], answer["timings"]["predicted_n"]) == (n_prompt, n_output)


async def test_an_answer_in_chunks(client: Client) -> None:
    """A chunk says who speaks, others what, one why it ends; then comes [DONE]. The cost is on the end."""
    chunks = events(await client.stream(question("hi")))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(chunks) == "You said hi."
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-2:]] == [None, "stop"]
    assert chunks[-1]["timings"]["predicted_n"] == len("You said hi.")
    assert ({chunk["id"] for chunk in chunks}, {"usage" in chunk for chunk in chunks}) == ({chunks[0]["id"]}, {False})


async def test_the_usage_comes_in_a_chunk_of_its_own(client: Client) -> None:
    """Who asks for it gets it behind the end, with no choice in it."""
    body = question("hi", stream_options={"include_usage": True})
    *_, end, last = events(await client.stream(body))
    assert (end["choices"][0]["finish_reason"], last["choices"]) == ("stop", [])
    assert last["usage"]["completion_tokens"] == len("You said hi.")
    assert last["timings"]["cache_n"] == last["usage"]["prompt_tokens_details"]["cached_tokens"]


async def test_a_limit_is_a_length(client: Client) -> None:
    """An answer that was cut says so, and one that met its stop does not."""
    _, cut = await client.post(question("hi", max_completion_tokens=3))
    _, stopped = await client.post(question("hi", stop=["said"]))
    assert [(a["choices"][0]["message"]["content"], a["choices"][0]["finish_reason"]) for a in (cut, stopped)] == [
        ("You", "length"),
        ("You ", "stop"),
    ]


async def test_reasoning_is_told_apart() -> None:
    """It is in a field of its own, and later prompts are without it: clients do not send it back."""
    async with served(FakeEngine(lambda _: THINKING)) as client:
        _, answer = await client.post(question())
        message = answer["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == ("Four.", "Let me see.")
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
        chunks = events(await client.stream(question()))
        assert (text_of(chunks), text_of(chunks, "reasoning_content").strip()) == ("Four.", "Let me see.")
        assert [prompt.reasoning for prompt in client.engine.prompts] == ["strip", "strip"]
        _, plain = await client.post(question(reasoning_effort="none"))
        assert "reasoning_content" not in plain["choices"][0]["message"]


async def test_a_conversation_that_grows_is_not_read_again(client: Client) -> None:
    """All but the last token of what was there is reused, turn after turn, also where a client trims the answers."""
    client.engine._reply = lambda text: f" On {text}:\n\n\n"
    messages: list[dict[str, str]] = [{"role": "system", "content": "Be brief."}]
    n_there = 0
    for turn in range(20):
        messages.append({"role": "user", "content": f"question {turn}"})
        _, answer = await client.post({"messages": messages})
        usage = answer["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= max(0, n_there - 1)
        n_there = usage["total_tokens"]
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"].strip()})


async def test_a_prefix_survives_a_restart() -> None:
    """Another server over the same disk evaluates what differs, and says how much came from disk."""
    disk = FakeDisk()
    system = {"role": "system", "content": "x" * 2000}
    usages = []
    for text in ("first", "other"):
        async with served(FakeEngine(disk=disk)) as client:
            _, answer = await client.post({"messages": [system, {"role": "user", "content": text}]})
            usages.append((answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["timings"]["restored_n"]))
            await until(lambda: len(disk) > 0)
    n_shared = 2000 + 4  # two tokens open the system prompt, one ends it, one opens what follows
    assert usages == [(0, 0), (n_shared, n_shared)]


async def test_sampling_reaches_the_engine(client: Client) -> None:
    """What a request names is used, what it does not is the model's own."""
    await client.post(question(temperature=0, top_k=5, seed=7, max_tokens=9, stop="x"))
    await client.post(question())
    given, usual = client.engine.samplings
    assert (given.temperature, given.top_k, given.seed, given.max_tokens, given.stop) == (0.0, 5, 7, 9, ("x",))
    assert client.server.served
    assert {f.name: getattr(usual, f.name) for f in fields(usual)} == {
        f.name: getattr(client.server.served.sampling, f.name) for f in fields(usual)
    }


async def test_the_model_is_listed(client: Client) -> None:
    """There is one, and it can be asked for by its name."""
    _, listed = await client.get("/v1/models")
    status, one = await client.get("/v1/models/fake")
    assert (listed["object"], [model["id"] for model in listed["data"]], status) == ("list", ["fake"], 200)
    assert (one, one["owned_by"], one["max_model_len"]) == (listed["data"][0], "chatapp", 32_768)
    assert (await client.get("/v1/models/other/one"))[0] == 404
