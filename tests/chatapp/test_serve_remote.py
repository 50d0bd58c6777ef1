"""`chatapp serve` with another server behind it: its text, its counts, its failures, and who hangs up on whom."""

import asyncio
import json
import sys
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from tests.chatapp.served import Client, events, served, text_of
from tests.chatapp.test_cli_engines import running
from tests.chatapp.test_cli_serve import KEY, ask, ready
from tests.chatapp.test_cli_serve import serving as serving_command
from tests.models.remote_talk import KEY as BOX_KEY
from tests.models.remote_talk import engine_at
from tests.models.scripted_server import (
    CUT,
    DONE,
    HANG,
    STREAM,
    Scripted,
    answer,
    chunk,
    delta,
    reply,
    serving,
    stream,
    usage,
)

CACHED = {"prompt_tokens_details": {"cached_tokens": 6}}


def question(text: str = "Which?", **more: Any) -> dict[str, Any]:
    """The body of a request with one message."""
    return {"model": "m at box", "messages": [{"role": "user", "content": text}], **more}


async def test_an_answer_goes_through() -> None:
    """Text, reasoning and counts are the server's; the client's messages, sampling and nobody's key reach it."""
    async with serving() as box:
        box.chat = [
            stream(delta(reasoning_content="Hm."), delta("Pears."), delta(finish="stop"), usage(10, 2, **CACHED), DONE)
        ]
        async with served(engine_at(box)) as client:
            status, body = await client.post(question("Which?", temperature=0.25))
        (asked,) = box.asked
    assert status == 200
    assert body["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Pears.",
        "refusal": None,
        "reasoning_content": "Hm.",
    }
    assert (body["model"], body["usage"]["prompt_tokens"]) == ("m at box", 10)
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 6}
    assert asked.body["messages"] == [{"role": "user", "content": "Which?"}]
    assert asked.body["temperature"] == 0.25
    assert asked.headers["authorization"] == f"Bearer {BOX_KEY}"


async def test_what_the_server_does_not_count_is_left_out() -> None:
    """No cached tokens are made up."""
    async with serving() as box:
        box.chat = [answer("Pears.")]
        async with served(engine_at(box)) as client:
            frames = await client.stream(question(stream_options={"include_usage": True}))
    chunks = events(frames)
    assert text_of(chunks) == "Pears."
    assert "prompt_tokens_details" not in chunks[-1]["usage"]
    assert chunks[-1]["usage"]["completion_tokens"] == 1


async def test_as_many_at_once_as_the_server_serves() -> None:
    """Those that are under way do not wait for each other."""
    async with serving() as box:
        box.chat = [[STREAM, chunk(delta("Some")), HANG], answer("Pears.")]
        async with served(engine_at(box, n_parallel=2)) as client:
            first = asyncio.create_task(client.post(question("one")))
            while not box.asked:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0)
            status, body = await client.post(question("two"))
            first.cancel()
            await asyncio.wait({first})
            await asyncio.wait_for(box.hung_up.wait(), 10)
    assert (status, body["choices"][0]["message"]["content"]) == (200, "Pears.")


async def test_a_client_that_goes_away_hangs_up_there_too() -> None:
    """The server behind does not go on for nobody."""
    async with serving() as box:
        box.chat = [[STREAM, chunk(delta("Some")), HANG]]
        async with served(engine_at(box)) as client:
            await _leave_in_the_middle(client)
            await asyncio.wait_for(box.hung_up.wait(), 10)


async def _leave_in_the_middle(client: Client) -> None:
    body = question(stream=True)
    async with client.http.post(f"{client.base}/v1/chat/completions", json=body) as response:
        while b"Some" not in await response.content.readline():
            pass


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        ([reply(500, {"error": {"message": f"out of memory, key {BOX_KEY}"}})], 500, "engine_server"),
        ([reply(401, {"error": f"bad key {BOX_KEY}"})], 500, "engine_key"),
        ([reply(400, {"error": {"message": "This model's maximum context length is 10"}})], 400, "context_length"),
        ([reply(429, {"error": "Quota"}, {"Retry-After": "99"})], 503, "engine_busy"),
        ([CUT], 500, "engine_cut"),
    ],
    ids=["500", "401", "too long", "busy", "cut"],
)
async def test_a_failure_there(said: list[bytes | str], status: int, code: str) -> None:
    """It is told with a status, in a sentence that names the server and no key."""
    async with serving() as box:
        box.chat = [said]
        async with served(engine_at(box)) as client:
            found, body = await client.post(question())
    assert (found, body["error"]["code"].startswith(code)) == (status, True)
    assert "box" in body["error"]["message"]
    assert BOX_KEY not in json.dumps(body)


async def test_a_failure_in_the_middle_there() -> None:
    """What was said was sent; the stream ends with an error and without [DONE]."""
    async with serving() as box:
        box.chat = [[STREAM, chunk(delta("Some")), CUT]]
        async with served(engine_at(box)) as client:
            *_, said, last = await client.stream(question())
    assert "Some" in said
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_cut"


@pytest.mark.skipif(sys.platform == "win32", reason="the other end is started as the tests of the command do")
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`chatapp serve --engine NAME` connects, serves that model, and keeps the two keys apart."""
    config = tmp_path / "config.toml"
    monkeypatch.setenv("CHATAPP_CONFIG", str(config))
    monkeypatch.setenv("BOX_KEY", BOX_KEY)
    with running() as box:
        _settings(config, box)
        with serving_command(tmp_path, "--engine", "box") as (process, address):
            told = ready(process)
            assert ask(address, KEY) == "Pears it is."
            with pytest.raises(urllib.error.HTTPError, match="401"):
                ask(address, BOX_KEY)
        assert {request.headers["authorization"] for request in box.received} == {f"Bearer {BOX_KEY}"}
    assert not any(BOX_KEY in line for line in told)


def _settings(config: Path, box: Scripted) -> None:
    config.write_text(f'[engines.box]\nbase_url = "{box.url}"\nkey_env = "BOX_KEY"\n')
