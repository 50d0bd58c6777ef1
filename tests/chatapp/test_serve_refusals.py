import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator

import pytest

from chatapp.serve import server as server_module
from chatapp.serve.guard import Guard
from models.engine import Failed
from models.fake import FakeEngine
from tests.chatapp.served import KEY, Client, load, question, served


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A client of a server that echoes."""
    async with served(FakeEngine(lambda text: f"You said {text}.")) as running:
        yield running


async def test_another_model_is_not_there(client: Client) -> None:
    """A request for it is refused, one that names none is answered."""
    assert await client.refusal(question(model="gpt-4o")) == (404, "model_not_found", "model")
    assert (await client.post(question(model=None)))[0] == 200


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer ü{KEY}"])
async def test_without_the_key_nothing_is_answered(client: Client, authorization: str) -> None:
    """Every address is 401, one that is not there too; only health is open."""
    for path in ("/v1/models", "/v1/nothing", "/"):
        status, answer = await client.get(path, Authorization=authorization)
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
    assert await client.refusal(question(), Authorization=authorization) == (401, "invalid_api_key", None)
    assert await client.get("/health", Authorization=authorization) == (200, {"status": "ok"})
    assert client.engine.prompts == []


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "10.0.0.1", "", "[::2]:1"])
async def test_names_of_others_are_not_answered(client: Client, host: str) -> None:
    """A page whose name was made to point here gets nothing, with the key neither."""
    status, answer = await client.get("/v1/models", Host=host)
    assert (status, answer["error"]["code"]) == (403, "host_not_allowed")
    assert (await client.get("/health", Host=host))[0] == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "127.0.0.9", "[::1]:5"])
async def test_own_names_are_answered_on_any_port(client: Client, host: str) -> None:
    """A forwarded port has another number at its other end."""
    assert (await client.get("/v1/models", Host=host))[0] == 200


def test_an_open_server_is_reached_by_address_and_own_name() -> None:
    """Where other machines may connect, any address and the machine's names are fine, names of others are not."""
    guard = Guard(KEY, "0.0.0.0")  # noqa: S104 - nothing listens
    for host in ("10.0.0.1:80", "[fe80::1]:80", "localhost"):
        guard.check([host], f"Bearer {KEY}")
    with pytest.raises(Exception, match="name that is not this server's"):
        guard.check(["evil.example"], f"Bearer {KEY}")


async def test_no_page_of_the_web_is_let_in(client: Client) -> None:
    """There are no CORS headers, whatever is asked, so no browser lets a page ask or read."""
    async with client.http.options(client.base + "/v1/models", headers={"Origin": "http://x"}) as response:
        assert (response.status, [n for n in response.headers if n.lower().startswith("access-control")]) == (405, [])
    async with client.http.get(client.base + "/v1/models", headers={"Origin": "http://x"}) as response:
        assert [n for n in response.headers if n.lower().startswith("access-control")] == []


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'"\xff"', "not UTF-8"),
        (b'{"messages": NaN}', "NaN"),
        (b"[" * 100_000, "nests too deep"),
        (b'{"a":' * 100_000, "nests too deep"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"seed": ' + b"9" * 400 + b', "messages": []}', "seed is not"),
        (b'{"temperature": 1e999, "messages": []}', "temperature is not"),
        (b'{"messages": {"a": 1}}', "not a list"),
        (b'{"messages": [' + b"1," * 20_000 + b"1]}", "at most"),
    ],
)
async def test_hostile_bodies_are_refused_in_a_sentence(client: Client, body: bytes, what: str) -> None:
    """Nothing of them reaches the engine, and the server answers on."""
    status, answer = await client.post(body)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert what in answer["error"]["message"]
    assert client.engine.prompts == []
    assert (await client.post(question()))[0] == 200


async def test_text_that_cannot_be_stored_is_replaced(client: Client) -> None:
    """Lone surrogates and NUL become U+FFFD; a byte order mark in front of the body is nothing."""
    body = b'\xef\xbb\xbf{"messages": [{"role": "user", "content": "a\\ud800\\u0000b"}]}'
    assert (await client.post(body))[0] == 200
    assert client.engine.prompts[0].entries[0].text == "a\ufffd\ufffdb"


async def test_a_body_that_is_too_large_is_not_read(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that says so, nor one that comes in pieces and does not."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(17):
            yield b" " * (1 << 20)

    monkeypatch.setattr(server_module, "MOST_BODY_BYTES", 1 << 20)
    for data in (io.BytesIO(b" " * ((1 << 20) + 1)), pieces()):
        async with client.http.post(f"{client.base}/v1/chat/completions", data=data) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (413, "body_too_large")


async def test_a_compressed_body_is_refused(client: Client) -> None:
    """What a small one would become is not found out by trying."""
    packed = gzip.compress(json.dumps(question()).encode())
    status, answer = await client.post(packed, **{"Content-Encoding": "gzip"})
    assert (status, "compressed" in answer["error"]["message"]) == (415, True)


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    """A connection that holds back its body is told so after a while."""
    async with served(FakeEngine(), body_s=0.01) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
        writer.write(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        writer.close()


async def test_other_addresses_and_methods_are_told(client: Client) -> None:
    """Each refusal is an error object, also what the framework refuses."""
    status, answer = await client.get("/v1/embeddings")
    assert (status, answer["error"]["code"]) == (404, "unknown_url")
    async with client.http.put(client.base + "/v1/chat/completions") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
        assert "POST" in (await response.json())["error"]["message"]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_prompt_that_is_too_long_is_refused(streams: bool) -> None:
    """The status says it before a stream begins, and the sentence has both numbers."""
    async with served(FakeEngine(n_ctx=100)) as client:
        status, answer = await client.post(question("x" * 200, stream=streams))
        error = answer["error"]
        assert (status, error["code"], error["param"], error["n_ctx"]) == (
            400,
            "context_length_exceeded",
            "messages",
            100,
        )
        assert ("204" in error["message"], "100" in error["message"]) == (True, True)


async def test_while_the_model_loads_clients_are_told_to_wait() -> None:
    """Health too says that it is not ready, and then that it is."""
    engine = FakeEngine()
    async with served(engine, is_loaded=False) as client:
        for path in ("/health", "/v1/models"):
            async with client.http.get(client.base + path) as response:
                assert (response.status, response.headers["Retry-After"]) == (503, "2")
        assert await client.refusal(question()) == (503, "model_loading", None)
        await load(engine, client.server)
        assert (await client.post(question()))[0] == 200


@pytest.mark.parametrize(("script", "code"), [("fail_at", "engine_engine"), ("crash_at", "engine_died")])
async def test_an_engine_that_fails_is_told(script: str, code: str) -> None:
    """As a status where nothing was sent, else as the last event; the next request is answered."""
    engine = FakeEngine()
    setattr(engine, script, 2)
    async with served(engine) as client:
        assert await client.refusal(question()) == (500, code, None)
        frames = await client.stream(question())
        assert json.loads(frames[-1].removeprefix("data: "))["error"]["code"] == code
        setattr(engine, script, None)
        assert (await client.post(question()))[0] == 200


async def test_an_unexpected_error_says_nothing_of_the_request(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the client nor the terminal sees more than its kind."""

    def broken(body: bytes) -> None:
        raise RuntimeError(body.decode())

    monkeypatch.setattr(server_module, "read_request", broken)
    status, answer = await client.post(question("secret"))
    assert (status, answer["error"]["type"]) == (500, "server_error")
    told = json.dumps(answer) + "".join(capsys.readouterr())
    assert ("RuntimeError" in told, "secret" in told) == (True, False)


async def test_a_grammar_that_the_engine_refuses_is_named(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the client's mistake, not the server's."""

    async def refuse(*_: object) -> AsyncIterator[Failed]:
        yield Failed("grammar", "The grammar has no root.")

    monkeypatch.setattr(client.engine, "generate", refuse)
    assert await client.refusal(question(grammar="x")) == (400, "invalid_grammar", "grammar")


async def test_an_engine_that_ends_without_an_answer_is_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client is never left without an end, and the line goes on."""

    async def nothing(*_: object) -> AsyncIterator[Failed]:
        for event in tuple[Failed, ...]():
            yield event

    with monkeypatch.context() as patched:
        patched.setattr(client.engine, "generate", nothing)
        assert await client.refusal(question()) == (500, "engine_protocol", None)
    assert (await client.post(question()))[0] == 200
