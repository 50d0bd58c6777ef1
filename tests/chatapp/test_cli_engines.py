"""Servers from the command line: added, tried, used, moved to and away from, removed; no key is ever printed."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chatapp.test_cli import Shell
from tests.models.scripted_server import Scripted, answer, reply, serving

KEY = "sk-very-secret-0123456789"


@contextmanager
def running() -> Iterator[Scripted]:
    """A scripted server beside the command."""
    loop = asyncio.new_event_loop()
    ready, over = threading.Event(), asyncio.Event()
    found: list[Scripted] = []

    async def serve() -> None:
        async with serving() as server:
            server.chat = [answer("Pears", " it is.")]
            found.append(server)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait()
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


@pytest.fixture
def server() -> Iterator[Scripted]:
    """A server that answers."""
    with running() as found:
        yield found


@pytest.fixture
def chatapp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The program with a settings file and a key of its own."""
    config = tmp_path / "config.toml"
    config.write_text("# mine\n")
    shell = Shell(tmp_path, monkeypatch)
    monkeypatch.setenv("CHATAPP_CONFIG", str(config))
    monkeypatch.setenv("BOX_KEY", KEY)
    return shell


def test_the_life_of_a_server(chatapp: Shell, server: Scripted, tmp_path: Path) -> None:
    """Added, listed, tried and removed; the file is what it was before."""
    chatapp("engines", "add", "box", server.url, "--model", "m", "--key-env", "BOX_KEY")
    assert KEY not in (tmp_path / "config.toml").read_text()
    (listed,) = json.loads(chatapp("engines", "list", "--json"))
    assert (listed["name"], listed["model"], listed["has_key"]) == ("box", "m", True)
    assert "box" in chatapp("engines", "list")
    figures = json.loads(chatapp("engines", "test", "box", "--json"))
    assert (figures["answer"], figures["cached_tokens"], figures["server"]) == ("Pears it is.", "unknown", "generic")
    assert server.asked[-1].headers["authorization"] == f"Bearer {KEY}"
    chatapp("engines", "remove", "box", "--yes")
    assert (tmp_path / "config.toml").read_text().strip() == "# mine"
    assert chatapp("engines", "list") == ""


def test_what_a_server_tells_of_itself(chatapp: Shell, server: Scripted) -> None:
    """`engines test` names what it is and has: tokenizer, counters, how much KV it holds and how full that is."""
    chatapp("engines", "add", "box", server.url)
    server.routes |= {
        "/v1/models": [reply(200, {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]})],
        "/version": [reply(200, {"version": "0.32.0"})],
        "/tokenize": [reply(200, {"count": 2})],
        "/metrics": [
            reply(
                200,
                b'vllm:prefix_cache_queries_total{engine="0"} 0.0\nvllm:kv_cache_usage_perc{engine="0"} 0.25\n'
                b'vllm:cache_config_info{kv_cache_size_tokens="46592",engine="0"} 1.0\n',
                kind="text/plain",
            )
        ],
    }
    figures = json.loads(chatapp("engines", "test", "box", "--json"))
    assert (figures["server"], figures["context"], figures["tokenizer"]) == ("vllm 0.32.0", 4096, True)
    assert (figures["counters"], figures["kv_tokens"], figures["kv_usage"]) == (True, 46_592, 0.25)
    # The counters stood still while it answered: that was not counted there, so it is not believed.
    assert figures["cached_tokens"] == "unknown"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("add", "llama", "https://host/v1"), "another name"),
        (("add", "box", "http://example.com/v1"), "allow_http"),
        (("add", "box", "nonsense"), "base_url"),
        (("test", "nobody"), "no server 'nobody'"),
        (("remove", "nobody", "--yes"), "no server 'nobody'"),
    ],
)
def test_what_cannot_be(chatapp: Shell, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    """One sentence, and the file is not touched."""
    assert words in chatapp("engines", *arguments, code=1)
    assert (tmp_path / "config.toml").read_text() == "# mine\n"


def test_a_conversation_stays_with_its_server(chatapp: Shell, server: Scripted) -> None:
    """It goes on there whatever the engine is, is not moved in silence, and moving it is a command."""
    chatapp("engines", "add", "box", server.url, "--key-env", "BOX_KEY")
    asked = json.loads(chatapp("run", "--engine", "box", "--json", "Which fruit?"))
    assert (asked["text"], asked["model"], asked["token_ids"]) == ("Pears it is.", "m at box", [])
    session = asked["session"]
    again = json.loads(chatapp("run", "--session", session, "--json", "Sure?"))
    assert again["model"] == "m at box"
    assert [message["content"] for message in server.asked[-1].body["messages"]] == [
        "Which fruit?",
        "Pears it is.",
        "Sure?",
    ]
    assert "belongs to m at box" in chatapp("run", "--session", session, "--engine", "fake", "Hm?", code=1)
    assert "m at box" in chatapp("sessions", "model", session)


def test_a_server_that_is_gone(chatapp: Shell, server: Scripted) -> None:
    """Nobody else answers in its place: the sentence says what can be done."""
    chatapp("engines", "add", "box", server.url)
    session = json.loads(chatapp("run", "--engine", "box", "--json", "Which fruit?"))["session"]
    chatapp("engines", "remove", "box", "--yes")
    told = chatapp("run", "--session", session, "Sure?", code=1)
    assert "belongs to the model m at box" in told
    assert "sessions model" in told


def test_a_wrong_key_is_not_shown(chatapp: Shell, server: Scripted) -> None:
    """Also where the server repeats it."""
    chatapp("engines", "add", "box", server.url, "--key-env", "BOX_KEY")
    server.routes["/v1/models"] = [reply(401, {"error": {"message": f"Wrong key {KEY}"}})]
    for command in (("engines", "test", "box"), ("run", "--engine", "box", "Hm?")):
        told = chatapp(*command, code=1)
        assert "does not take the key" in told
        assert KEY not in told


def test_a_batch_at_a_server(chatapp: Shell, server: Scripted, tmp_path: Path) -> None:
    """As many rows at once as the profile says."""
    chatapp("engines", "add", "box", server.url)
    with (tmp_path / "config.toml").open("a") as file:
        file.write("parallel = 8\n")
    rows = "".join(f"question {n}\n" for n in range(40))
    out = chatapp("batch", "-", "--format", "text", "--engine", "box", stdin=rows.encode())
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["Pears it is."] * 40
    assert 1 < server.n_connections <= 9
