"""Servers that break down, lie or attack: what was said is kept, one sentence says what happened, no key gets out."""

import asyncio
import contextlib
import gzip
import ssl
import subprocess
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from models.engine import Event, Failed, Finished, Piece, Prepared, Progress, Sampling, Stored
from models.remote_errors import RemoteError
from models.remote_profile import RemoteProfile, check
from tests.models.helpers import kinds
from tests.models.remote_talk import ASK, KEY, engine_at, failed, finished, said, turn
from tests.models.scripted_server import (
    CUT,
    DONE,
    END,
    HANG,
    STREAM,
    Received,
    Script,
    Scripted,
    answer,
    chunk,
    delta,
    event,
    reply,
    serving,
    stream,
    usage,
)


def pieces(raw: bytes, size: int) -> Script:
    """A stream cut into chunks of so many bytes."""
    return [STREAM, *(chunk(raw[at : at + size]) for at in range(0, len(raw), size)), END]


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_a_stream_cut_anywhere(size: int) -> None:
    """Inside of characters and lines."""
    raw = 'data: {"choices":[{"delta":{"content":"漢字 🙂"}}]}\n\n'.encode() + delta(finish="stop") + DONE
    async with serving() as server:
        server.chat = [pieces(raw, size)]
        assert finished(await turn(server)).text == "漢字 🙂"


async def test_line_ends_comments_and_broken_bytes() -> None:
    """CRLF, pings and bytes that are no UTF-8 are no reason to lose an answer."""
    raw = (
        b": ping\r\n\r\n"
        + delta("a\tb").replace(b"\n", b"\r\n")
        + b': x\r\rdata: {"choices":[{"delta":{"content":"\xff"}}]}\r\r'
    )
    async with serving() as server:
        server.chat = [stream(raw, b"event: foo\nid: 1\n\n", delta(finish="stop"), DONE)]
        assert finished(await turn(server)).text == "a\tb\ufffd"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (stream(delta("Some"), DONE), "ended the stream before"),
        (stream(delta("Some")), "ended the stream before"),
        ([STREAM, chunk(delta("Some")), CUT], "broke off"),
        (stream(delta("Some"), event({"error": {"message": "CUDA died", "code": 500}}), DONE), "CUDA died"),
        (stream(delta("Some"), event({"error": "out of memory"})), "out of memory"),
        (stream(delta("Some"), b"data: {nonsense\n\n"), "not JSON"),
        (stream(delta("Some"), b"data: " + b"[" * 9000 + b"\n\n"), "not JSON"),
        (stream(delta("Some"), b"data: [1]\n\n"), "no object"),
        ([STREAM, chunk(delta("Some")), chunk(b"data: " + b"x" * (2 << 20)), HANG], "without an end"),
        (stream(delta("Some"), delta(finish="content_filter"), DONE), "filter"),
        (stream(delta("Some"), delta(finish="tool_calls"), DONE), "tool_calls"),
        ([STREAM, chunk(delta("Some")), b"zz\r\n"], "broke off"),
    ],
    ids=[
        "only DONE",
        "no DONE",
        "killed",
        "error object",
        "error text",
        "no JSON",
        "deep JSON",
        "no object",
        "endless line",
        "filter",
        "tool call",
        "broken HTTP",
    ],
)
async def test_what_was_said_stays(script: Script, words: str) -> None:
    """The answer fails with its text told before, and nothing is asked again: that would answer twice."""
    async with serving() as server:
        server.chat = [script]
        events = await turn(server)
        assert len(server.asked) == 1
    assert said(events) == "Some"
    assert words in failed(events).message


async def test_a_kept_connection_that_closes_under_a_request() -> None:
    """Nothing of an answer came, so it is sent again on a fresh one, and nobody hears of it."""
    async with serving() as server:
        server.chat = [answer("One."), [CUT], answer("Two.")]
        engine = engine_at(server)
        _ = [found async for found in engine.generate(ASK, Sampling())]
        assert server.n_connections == 1
        events = [found async for found in engine.generate(ASK, Sampling())]
        await engine.close()
        assert (len(server.asked), server.n_connections) == (3, 2)
        assert server.asked[1].raw == server.asked[2].raw
    assert finished(events).text == "Two."
    assert kinds(events) == [Progress, Prepared, Piece, Finished, Stored]


@pytest.mark.parametrize(
    "script",
    [[STREAM, CUT], [STREAM, chunk(b": ping\n\n"), CUT], [b"HTTP/1.1 503 X\r\nContent-Length: 9\r\n\r\n{", CUT]],
    ids=["head", "ping", "status"],
)
async def test_an_answer_that_had_begun_is_not_asked_for_again(script: Script) -> None:
    """Also where no word of it came: the server is at work, and a second request would double it."""
    async with serving() as server:
        server.chat = [script]
        assert "broke off" in failed(await turn(server)).message
        assert (len(server.asked), server.n_connections) == (1, 1)


async def test_a_fresh_connection_that_breaks() -> None:
    """What was sent on it may have been read, so it is for the user to ask again."""
    async with serving() as server:
        server.routes["/version"] = [reply(404, {}, {"Connection": "close"})]
        server.chat = [[CUT]]
        found = failed(await turn(server))
        assert (len(server.asked), server.n_connections) == (1, 2)
    assert (found.kind, "before it answered" in found.message) == ("cut", True)


async def test_kept_connections_that_all_close() -> None:
    """The request is sent three times, and then given up."""
    async with serving() as server:
        server.chat = [*[answer("Yes.")] * 4, [CUT]]
        engine = engine_at(server, n_parallel=4)
        _ = [found async for found in engine.load()]

        async def ask() -> list[Event]:
            return [found async for found in engine.generate(ASK, Sampling())]

        await asyncio.gather(*(ask() for _ in range(4)))
        assert (len(server.asked), server.n_connections) == (4, 4)
        assert failed(await ask()).kind == "cut"
        await engine.close()
        assert (len(server.asked), server.n_connections) == (7, 4)


async def test_a_server_that_falls_silent() -> None:
    """Pings are no answer: the time between two words is limited whatever else comes."""
    async with serving() as server:
        pings = [chunk(b": ping\n\n")] * 50
        server.chat = [[STREAM, chunk(delta("Some")), *pings, HANG]]
        events = await turn(server, token_s=0.2)
    assert said(events) == "Some"
    assert "said nothing" in failed(events).message


async def test_a_server_that_never_begins() -> None:
    """The time to the first word is limited too."""
    async with serving() as server:
        server.chat = [[STREAM, HANG]]
        found = failed(await turn(server, first_token_s=0.2))
    assert (found.kind, "does not answer" in found.message) == ("unreachable", True)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (401, {"error": {"message": f"Incorrect API key provided: {KEY}", "code": 401}}, "key", "[key]"),
        (401, {"error": "Unauthorized"}, "key", "Unauthorized"),
        (403, {"detail": "No access"}, "key", "No access"),
        (404, {"error": {"message": "The model `m` does not exist"}}, "no_model", "does not exist"),
        (404, {"detail": "Not Found"}, "no_model", "base_url"),
        (429, {"error": {"message": "Quota"}}, "busy", "in 99 s"),
        (500, "Internal Server Error", "server", "status 500"),
        (502, "<html><body>nginx</body></html>", "server", "status 502"),
        (
            400,
            {
                "error": {
                    "message": "too big",
                    "type": "exceed_context_size_error",
                    "n_prompt_tokens": 6031,
                    "n_ctx": 4096,
                }
            },
            "too_long",
            "6,031",
        ),
        (400, {"error": {"message": "This model's maximum context length is 8192 tokens."}}, "too_long", "leave out"),
        (400, {"error": {"message": "bad", "param": "messages"}}, "refused", "bad"),
        (422, {"detail": [{"loc": ["body", "messages"], "msg": "field required"}]}, "refused", "field required"),
        (418, "x" * 100_000, "server", "418"),
        (400, {"error": {"message": "\x1b[31mred\nlines\u202e"}}, "refused", "red lines"),
    ],
)
async def test_refusals(status: int, body: object, kind: str, words: str) -> None:
    """Each status is one sentence with what the server says, shortened, on one line and without the key."""
    async with serving() as server:
        raw = body.encode() if isinstance(body, str) else body
        server.chat = [[reply(status, raw, {"Retry-After": "99"})]]
        found = failed(await turn(server))
    assert (found.kind, words in found.message) == (kind, True), found.message
    assert found.message.isprintable()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    """Neither when connecting nor when asking: the other address sees no request, so it sees no key."""
    async with serving() as other, serving() as server:
        moved = [reply(status, {}, {"Location": f"{other.url}/chat/completions?key={KEY}"})]
        server.chat = [moved]
        assert "sends on to 127.0.0.1" in failed(await turn(server)).message
        server.routes["/v1/models"] = moved
        assert "sends on to 127.0.0.1" in failed(await turn(server)).message
        assert other.received == []
        assert other.n_connections == 0


async def test_the_environment_sends_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Proxies and netrc files are not for keys of ours."""
    async with serving() as other, serving() as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{other.port}")
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password something\n")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        server.chat = [answer("Yes.")]
        assert finished(await turn(server)).text == "Yes."
        assert other.n_connections == 0
        assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/v1",
        "http://192.168.1.7:8000/v1",
        "http://127.0.0.1.example.com/v1",
        "http://localhost.example.com/v1",
        "https://me:secret@example.com/v1",
        "https://example.com/v1?key=secret",
        "ftp://example.com",
        "example.com/v1",
        "https://",
        "http://[::1",
        "http://127.0.0.1:99999/v1",
    ],
)
def test_addresses_that_are_refused(url: str) -> None:
    """Unencrypted to another host, with a password inside, or no address of a server at all."""
    with pytest.raises(RemoteError) as found:
        check(RemoteProfile("box", url))
    assert found.value.kind == "insecure"
    assert "secret" not in str(found.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8080", "http://[::1]:8080/v1", "http://localhost/v1", "https://a.b/v1"]
)
def test_addresses_that_are_taken(url: str) -> None:
    """Loopback without encryption, others with."""
    check(RemoteProfile("box", url))
    check(RemoteProfile("box", "http://192.168.1.7:8000/v1", allow_http=True))


def _certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for a name or an address (`IP:...`, `DNS:...`) that nobody vouches for, and its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=box"]
    command += ["-addext", f"subjectAltName={name}"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("openssl is not installed")
    return certificate, key


@pytest.fixture(scope="module")
def self_signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One for the address that is connected to."""
    return _certificate(tmp_path_factory.mktemp("tls"), "IP:127.0.0.1")


async def test_a_certificate_of_another_host(tmp_path: Path) -> None:
    """Whoever vouches for it: it is not that host, and is sent nothing."""
    certificate = _certificate(tmp_path, "DNS:other.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    async with serving(context) as server:
        found = failed(await turn(server, ca_file=certificate[0]))
        assert server.received == []
    assert (found.kind, "not trusted" in found.message) == ("unreachable", True)


async def test_a_certificate_that_nobody_vouches_for(self_signed: tuple[Path, Path], tmp_path: Path) -> None:
    """It is refused before anything is sent, unless the profile names its authority or asks for no check."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*self_signed)
    async with serving(context) as server:
        server.chat = [answer("Yes.")]
        found = failed(await turn(server))
        assert (found.kind, "ca_file" in found.message) == ("unreachable", True)
        assert server.received == []
        assert finished(await turn(server, ca_file=self_signed[0])).text == "Yes."
        assert finished(await turn(server, verify=False)).text == "Yes."
        (tmp_path / "no.pem").write_text("nothing")
        assert "ca_file" in failed(await turn(server, ca_file=tmp_path / "no.pem")).message


async def test_tls_where_there_is_none() -> None:
    """The wrong scheme is one sentence."""
    async with serving() as server:
        found = failed(await turn(server, base_url=server.url.replace("http:", "https:"), connect_s=0.5))
    assert found.kind == "unreachable"


async def test_nobody_is_there() -> None:
    """A server that does not run is tried again, visibly, and then given up."""
    async with serving() as server:
        port = server.port
    engine = engine_at(server, base_url=f"http://127.0.0.1:{port}/v1")
    events = []
    async for found in engine.load():
        events.append(found)
        await engine.cancel()
    assert events[-1] == Failed("cancelled", "Stopped.")
    await engine.close()


async def test_a_body_that_grows_without_end() -> None:
    """It is given up after a few megabytes, and memory stays where it was."""
    big = b"x" * (1 << 20)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000000\r\n\r\n"
    async with serving() as server:
        server.routes["/v1/models"] = [head, *[big] * 200, HANG]
        tracemalloc.start()
        try:
            found = failed(await turn(server))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert "more than an answer can be" in found.message
    assert peak < 64 << 20


async def test_what_is_small_on_the_wire_and_large_in_memory() -> None:
    """Compression was not asked for, and is not undone."""
    bomb = gzip.compress(b"x" * (64 << 20))
    async with serving() as server:
        server.chat = [[reply(200, bomb, {"Content-Encoding": "gzip"}, "text/event-stream")]]
        assert "compresses" in failed(await turn(server)).message
        assert server.asked[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("key", ["two\nlines", "with\0zero", "ümlaut-key"])
async def test_a_key_that_cannot_be_sent(key: str) -> None:
    """It is not sent in part, and not shown."""
    async with serving() as server:
        found = failed(await turn(server, key=lambda: key))
        assert server.received == []
    assert (found.kind, key in found.message) == ("key", False)


async def test_no_key_in_what_a_program_could_print() -> None:
    """Neither profile nor engine show it when they are printed."""
    async with serving() as server:
        engine = engine_at(server, headers={"X-Key": KEY})
        assert KEY not in f"{engine.profile!r} {engine!r} {engine.__dict__}"


async def test_an_answer_that_only_repeats_pings_is_stopped_in_time() -> None:
    """A cancel reaches a request that waits between two lines."""
    async with serving() as server:
        server.chat = [[STREAM, chunk(delta("a")), HANG]]
        engine = engine_at(server)
        events = []
        async with asyncio.timeout(10):
            async for found in engine.generate(ASK, Sampling()):
                events.append(found)
                if isinstance(found, Piece):
                    asyncio.get_running_loop().call_soon(asyncio.ensure_future, engine.cancel())
        await engine.close()
    assert finished(events).reason == "cancelled"


async def test_usage_that_is_nonsense() -> None:
    """Numbers that are none are unknown, and no answer is lost for them."""
    wild = [
        event({"choices": [], "usage": {"prompt_tokens": "many", "completion_tokens": -3}}),
        event({"choices": [], "usage": [1], "timings": "fast"}),
        event({"choices": {}, "prompt_progress": {"total": None}}),
        event({"choices": [None]}),
        event({"choices": [{"delta": {"content": 7}}]}),
    ]
    async with serving() as server:
        server.chat = [stream(delta("Yes."), *wild, delta(finish="stop"), usage(True, 1), DONE)]
        stats = finished(await turn(server)).stats
    assert (stats.prompt_tokens, stats.output_tokens) == (None, 1)


async def test_a_task_that_is_cancelled_leaves_nothing_behind() -> None:
    """The connection closes with the task that asked."""
    async with serving() as server:
        server.chat = [[STREAM, chunk(delta("a")), HANG]]
        engine = engine_at(server)
        begun = asyncio.Event()

        async def ask() -> None:
            async for found in engine.generate(ASK, Sampling()):
                if isinstance(found, Piece):
                    begun.set()

        task = asyncio.create_task(ask())
        await begun.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.hung_up.wait(), 10)
        await engine.close()


def _resuming(plain: Scripted, chat: Script, again: list[Script]) -> Callable[[Received], Script]:
    """A server that keeps what it streams: `chat` is sent to who asks, then `again` to who lost the connection."""

    def script(request: Received) -> Script:
        if request.path == "/v1/streams/lookup":
            return [reply(200, [])]
        if request.path.startswith("/v1/stream?"):
            return [reply(204, b"")] if request.method == "DELETE" else again.pop(0)
        return chat if request.path.endswith("/chat/completions") else plain.script_for(request)

    return script


_PROPS = {"default_generation_settings": {"n_ctx": 100}, "total_slots": 1}


async def test_a_broken_stream_is_taken_up() -> None:
    """What was missed comes, what was told is not told twice, and the question is asked once."""
    whole = stream(delta("Some"), delta(" pears"), delta("."), delta(finish="stop"), usage(10, 3), DONE)
    async with serving() as plain:
        plain.routes["/props"] = [reply(200, _PROPS)]
        script = _resuming(plain, [STREAM, chunk(delta("Some")), CUT], [whole])
        async with serving(script_for=script) as server:
            events = await turn(server, resumes=True)
            asked, again = server.asked, [one for one in server.received if one.path.startswith("/v1/stream?")]
    assert [event.text for event in events if isinstance(event, Piece)] == ["Some", " pears", "."]
    assert (finished(events).text, finished(events).stats.output_tokens) == ("Some pears.", 3)
    assert len(asked) == 1
    name = asked[0].headers["x-conversation-id"]
    assert [(one.method, one.path) for one in again] == [("GET", f"/v1/stream?conv_id={name}&from=0")]


async def test_a_stream_that_breaks_again() -> None:
    """It is taken up once; then the answer is cut, and the server is told that nobody listens."""
    cut: Script = [STREAM, chunk(delta("Some")), CUT]
    async with serving() as plain:
        plain.routes["/props"] = [reply(200, _PROPS)]
        async with serving(script_for=_resuming(plain, cut, [cut])) as server:
            events = await turn(server, resumes=True)
            methods = [one.method for one in server.received if one.path.startswith("/v1/stream?")]
    assert (said(events), failed(events).kind) == ("Some", "cut")
    assert methods == ["GET", "DELETE"]


async def test_a_server_that_is_not_asked_to_repeat() -> None:
    """On this machine connections do not break by themselves: its answers end with their reader."""
    async with serving() as plain:
        plain.routes["/props"] = [reply(200, _PROPS)]
        async with serving(script_for=_resuming(plain, [STREAM, chunk(delta("Some")), CUT], [])) as server:
            events = await turn(server)
            assert "x-conversation-id" not in server.asked[0].headers
    assert failed(events).kind == "cut"
