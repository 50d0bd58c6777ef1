import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from models.fake import FakeEngine
from tests.chatapp.served import KEY, Client, question, served, until


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A client of a server that echoes."""
    async with served(FakeEngine(lambda text: f"You said {text}.")) as running:
        yield running


@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_that_goes_away_stops_its_answer(streams: bool) -> None:
    """The engine is free for the next one at once."""
    async with served(FakeEngine(hang_at=3)) as client:
        asking = asyncio.create_task(client.post(question(stream=streams)))
        await until(lambda: client.engine.prompts)
        asking.cancel()
        await asyncio.wait({asking})
        await until(client.engine._cancelled.is_set)
        client.engine.hang_at = None
        assert (await client.post(question()))[0] == 200


async def test_a_client_that_waits_may_go_away_too() -> None:
    """It is not asked then, and who waits behind it moves up."""
    async with served(FakeEngine(hang_at=0)) as client:
        first = asyncio.create_task(client.post(question("one")))
        await until(lambda: client.engine.prompts)
        second = asyncio.create_task(client.post(question("two")))
        await until(lambda: len(client.line._waiting) == 1)
        third = asyncio.create_task(client.post(question("three")))
        await until(lambda: len(client.line._waiting) == 2)
        second.cancel()
        await until(lambda: len(client.line._waiting) == 1)
        client.engine.hang_at = None
        await client.engine.cancel()
        assert ((await first)[0], (await third)[0]) == (503, 200)
        assert [prompt.entries[-1].text for prompt in client.engine.prompts] == ["one", "three"]


async def test_a_full_line_is_told_when_to_come_back() -> None:
    """So many wait and no more; who waits is answered all the same."""
    async with served(FakeEngine(hang_at=0), most_waiting=1) as client:
        first = asyncio.create_task(client.post(question("one")))
        await until(lambda: client.engine.prompts)
        second = asyncio.create_task(client.post(question("two")))
        await until(lambda: len(client.line._waiting) == 1)
        async with client.http.post(f"{client.base}/v1/chat/completions", json=question("three")) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "5")
            assert (await response.json())["error"]["code"] == "queue_full"
        client.engine.hang_at = None
        first.cancel()
        assert (await second)[0] == 200


async def test_a_silent_stream_shows_signs_of_life() -> None:
    """Comments come as long as nothing else does, and clients do not see them."""
    async with (
        served(FakeEngine(hang_at=2), sign_s=0.01) as client,
        client.http.post(f"{client.base}/v1/chat/completions", json=question(stream=True)) as response,
    ):
        seen = b""
        while seen.count(b": waiting\n\n") < 3:
            seen += await response.content.readany()
        assert response.status == 200


async def test_who_waits_in_line_hears_something_too() -> None:
    """The stream begins before its turn has come, and an error is then its last event."""
    async with served(FakeEngine(hang_at=0, n_ctx=100), sign_s=0.01) as client:
        first = asyncio.create_task(client.post(question("one")))
        await until(lambda: client.engine.prompts)
        body = question("x" * 200, stream=True)
        async with client.http.post(f"{client.base}/v1/chat/completions", json=body) as response:
            assert response.status == 200
            client.engine.hang_at = None
            first.cancel()
            frames = (await response.text()).split("\n\n")[:-1]
        assert json.loads(frames[-1].removeprefix("data: "))["error"]["code"] == "context_length_exceeded"
        assert "data: [DONE]" not in frames


async def test_the_end_of_the_server_is_told() -> None:
    """Who is answered gets an error as the last event, who waits and who comes now a status."""
    async with served(FakeEngine(hang_at=5)) as client:
        url = f"{client.base}/v1/chat/completions"
        async with client.http.post(url, json=question(stream=True)) as response:
            waiting = asyncio.create_task(client.post(question("two")))
            await until(lambda: len(client.line._waiting) == 1)
            hurry = asyncio.Event()
            closing = asyncio.create_task(client.line.close(60.0, hurry))
            assert (await waiting)[0] == 503
            assert await client.refusal(question()) == (503, "stopping", None)
            hurry.set()
            await closing
            frames = (await response.text()).split("\n\n")[:-1]
        assert json.loads(frames[-1].removeprefix("data: "))["error"]["code"] == "stopping"
        assert "data: [DONE]" not in frames


async def test_answers_that_run_may_end(client: Client) -> None:
    """Within the time they have, nothing is cut."""
    gate = asyncio.Event()

    async def wait(_: float) -> None:
        await gate.wait()

    client.engine._sleep = wait
    asking = asyncio.create_task(client.post(question("hi")))
    await until(lambda: client.engine.prompts)
    closing = asyncio.create_task(client.line.close(60.0, asyncio.Event()))
    gate.set()
    status, answer = await asking
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "You said hi.")
    await closing


async def test_a_slow_reader_keeps_nobody_waiting() -> None:
    """The engine goes on with the next one while a client does not read."""
    async with (
        served(FakeEngine(lambda text: "x" * 30_000 if text == "long" else "short")) as client,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as other,
        other.post(f"{client.base}/v1/chat/completions", json=question("long", stream=True)) as response,
    ):
        assert response.status == 200
        assert (await client.post(question("next")))[0] == 200
