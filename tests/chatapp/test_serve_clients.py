import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from chatapp.config import SERVE_KEY
from models.fake import FakeEngine
from tests.chatapp.served import KEY, Client, served, until
from tests.models.helpers import starter

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the server is ended by a signal")


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A client of a server that echoes."""
    async with served(FakeEngine(lambda text: f"You said {text}.")) as running:
        yield running


@pytest.fixture
async def official(client: Client) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's own client, told nothing but the address and the key."""
    async with openai.AsyncOpenAI(base_url=f"{client.base}/v1", api_key=KEY, max_retries=0) as found:
        yield found


def asked(text: str) -> list[ChatCompletionMessageParam]:
    """One message of a user's."""
    return [{"role": "user", "content": text}]


async def test_the_official_client_reads_answers(official: openai.AsyncOpenAI) -> None:
    """Whole ones, streams with their usage, and the list of models."""
    assert [model.id async for model in official.models.list()] == ["fake"]
    whole = await official.chat.completions.create(model="fake", messages=asked("hi"))
    assert whole.choices[0].message.content == "You said hi."
    assert whole.usage
    assert whole.usage.prompt_tokens_details
    stream = await official.chat.completions.create(
        model="fake", messages=asked("hi"), stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "You said hi."
    assert chunks[-2].choices[0].finish_reason == "stop"
    usage = chunks[-1].usage
    assert usage
    assert usage.prompt_tokens_details
    assert usage.prompt_tokens_details.cached_tokens == whole.usage.prompt_tokens - 1
    assert chunks[-1].model_extra
    assert chunks[-1].model_extra["timings"]["prompt_n"] == 1


async def test_the_official_client_reads_refusals(client: Client, official: openai.AsyncOpenAI) -> None:
    """Each is the error of its own that OpenAI's service would raise, with the field that it is about."""
    with pytest.raises(openai.NotFoundError, match="not served here"):
        await official.chat.completions.create(model="other", messages=asked("hi"))
    with pytest.raises(openai.BadRequestError) as bad:
        await official.chat.completions.create(model="fake", messages=asked("hi"), n=2)
    assert (bad.value.param, bad.value.code) == ("n", "unsupported_parameter")
    with pytest.raises(openai.AuthenticationError):
        await official.with_options(api_key="other").models.list()
    client.engine.fail_at = 3
    stream = await official.chat.completions.create(model="fake", messages=asked("hi"), stream=True)
    with pytest.raises(openai.APIError, match="as its script says"):
        [chunk async for chunk in stream]


async def test_the_official_client_stops_an_answer(client: Client, official: openai.AsyncOpenAI) -> None:
    """Closing its stream is enough."""
    client.engine.hang_at = 4
    stream = await official.chat.completions.create(model="fake", messages=asked("hi"), stream=True)
    await anext(aiter(stream))
    await stream.close()
    await until(client.engine._cancelled.is_set)


async def test_the_llm_command_talks_to_it(client: Client, tmp_path: Path) -> None:
    """Another program that many have: a model in its settings, and a conversation that goes on."""
    model = {"model_id": "here", "model_name": "fake", "api_base": f"{client.base}/v1", "api_key_name": "here"}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([model]))  # JSON is YAML
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": "", "PYTHONWARNINGS": "ignore"}

    async def llm(*arguments: str) -> str:
        command = [sys.executable, "-m", "llm", "-m", "here", "--key", KEY, *arguments]
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode().strip()

    assert await llm("one") == "You said one."
    assert await llm("--no-stream", "-s", "Be brief.", "two") == "You said two."
    assert await llm("-c", "three") == "You said three."
    last = client.engine.prompts[-1].entries
    assert [(entry.role, entry.text) for entry in last] == [
        ("system", "Be brief."),
        ("user", "two"),
        ("assistant", "You said two."),
        ("user", "three"),
    ]
    assert last[2].run is not None  # it was recognised


@contextmanager
def serving(folder: Path) -> Iterator[OpenAI]:
    """Run the command over the starter model for the block; yields OpenAI's client of it."""
    folders = ["--data-dir", str(folder / "data"), "--cache-dir", str(folder / "cache")]
    options = ["--port", "0", "--ctx", "4096", "--flash-attention", "off", "--threads", "2"]
    command = [sys.executable, "-P", "-m", "chatapp", "--model", str(starter()), "serve", *folders, *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {SERVE_KEY: KEY}
    ) as process:
        try:
            assert process.stdout
            assert process.stderr
            address = process.stdout.readline().strip()
            assert "Ready" in process.stderr.readline()
            with OpenAI(base_url=address, api_key=KEY) as official:
                yield official
            process.terminate()
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()


def test_a_real_prefix_survives_a_restart(tmp_path: Path) -> None:
    """Behind 2,000 tokens that another run was asked with, only the question's own tokens are evaluated."""
    words = ("river", "stone", "light", "garden", "window", "paper", "market", "station", "morning", "winter")
    system = "You answer in one word. " + " ".join(words[n * n % 97 % 10] for n in range(2000))

    def ask(official: OpenAI, question: str) -> tuple[int, int, dict[str, Any]]:
        answer = official.chat.completions.create(
            model=next(iter(official.models.list())).id,
            messages=[{"role": "system", "content": system}, {"role": "user", "content": question}],
            max_tokens=4,
        )
        assert answer.usage
        assert answer.usage.prompt_tokens_details
        assert answer.model_extra
        cached = answer.usage.prompt_tokens_details.cached_tokens or 0
        return answer.usage.prompt_tokens, cached, answer.model_extra["timings"]

    with serving(tmp_path) as official:
        n_prompt, n_cached, _ = ask(official, "What is a river?")
        assert (n_prompt > 2000, n_cached) == (True, 0)
    with serving(tmp_path) as official:
        n_prompt, n_cached, timings = ask(official, "Where is the market?")
        n_own = n_prompt - n_cached
        assert (n_cached > 2000, n_own < 20) == (True, True)
        assert (timings["restored_n"], timings["prompt_n"]) == (n_cached, n_own)
        assert ask(official, "Where is the market?")[1] == n_prompt - 1
