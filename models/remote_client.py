"""HTTP to one server and to no other: bounded, without redirects or proxies. Only it imports httpx2."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

import httpx2

from models.remote_errors import RemoteError, from_status, read_body
from models.remote_profile import RemoteProfile, check
from models.sse import EndlessEvent, Framing

MAX_BODY_BYTES = 8 << 20
"""Longest body that is no stream."""
_READ_S = 10.0  # between two parts of such a body
_SENDS = 3
"""How often a request is sent, see `_send`."""
_NOT_OURS = ("host", "content-length", "transfer-encoding", "connection")


class RemoteClient:
    """One connection pool. The key is sent to the profile's own origin only; no error text shows it."""

    def __init__(
        self, profile: RemoteProfile, key: str | None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Raise `RemoteError` for a profile or a key that cannot be used."""
        check(profile)
        self._name = profile.name
        self._monotonic = monotonic
        self._secrets = tuple(value for value in (key, *profile.headers.values()) if value and len(value) > 3)
        # What is not compressed cannot be small on the wire and large in memory.
        headers = {"User-Agent": "chatapp", "Accept-Encoding": "identity", **profile.headers}
        if key:
            headers.setdefault("Authorization", f"Bearer {key}")
        for header, value in headers.items():
            if header.lower() in _NOT_OURS or not (header + value).isascii() or not (header + value).isprintable():
                raise RemoteError("key", f"{profile.name} has a key or header that cannot be sent: check its profile.")
        self._http = httpx2.AsyncClient(
            headers=headers,
            verify=_trust(profile),
            trust_env=False,
            follow_redirects=False,
            timeout=httpx2.Timeout(connect=profile.connect_s, read=_READ_S, write=10.0, pool=None),
            limits=httpx2.Limits(max_connections=profile.n_parallel + 1, max_keepalive_connections=profile.n_parallel),
        )
        self._origin = _origin(profile.base_url)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def fetch(self, url: str, body: Any = None, *, read_s: float = _READ_S) -> tuple[int, Mapping[str, str], Any]:
        """Return status, headers and body (JSON, else text) of a GET, or of a POST if there is a body.

        `read_s` is how long the server may send nothing. Raises `RemoteError`.
        """
        method = "GET" if body is None else "POST"
        async with aclosing(self._bytes(method, url, body, {}, read_s=read_s)) as parts:
            response = await anext(parts)
            assert isinstance(response, httpx2.Response)
            return response.status_code, response.headers, read_body(await _whole(self._name, parts))

    async def delete(self, url: str) -> None:
        """Send a DELETE; what it answers does not matter. Raises `RemoteError`."""
        async with aclosing(self._bytes("DELETE", url, None, {})) as parts:
            await anext(parts)

    async def stream(
        self,
        url: str,
        body: Mapping[str, Any],
        *,
        sent: Iterable[str] = (),
        headers: Mapping[str, str] | None = None,
        method: str = "POST",
    ) -> AsyncGenerator[tuple[float, dict[str, Any] | None], None]:
        """Yield when each event arrived and its object; None for `[DONE]`. A whole answer in one body is one event.

        Between two events any time may pass: the caller keeps the deadline. `sent` names fields that can be left out.
        Raises `RemoteError`, of kind "cut" where the connection breaks.
        """
        payload = body if method == "POST" else None
        async with aclosing(self._bytes(method, url, payload, headers or {}, read_s=None)) as parts:
            response = await anext(parts)
            assert isinstance(response, httpx2.Response)
            if response.status_code != 200:
                said = read_body(await _whole(self._name, parts))
                raise from_status(
                    self._name, response.status_code, response.headers, said, sent=sent, secrets=self._secrets
                )
            if "json" in response.headers.get("content-type", ""):
                yield self._monotonic(), self._object(await _whole(self._name, parts))
                return
            framing = Framing()
            async for received in parts:
                assert isinstance(received, bytes)
                now = self._monotonic()
                try:
                    events = framing.feed(received)
                except EndlessEvent as exc:
                    raise RemoteError(
                        "cut", f"{self._name} sent a line without an end: what was said is kept; try again."
                    ) from exc
                for data in events:
                    yield now, self._object(data)
            for data in framing.finish():
                yield self._monotonic(), self._object(data)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no text for the user may show."""
        return self._secrets

    def _object(self, data: str | bytes) -> dict[str, Any] | None:
        if data == "[DONE]":
            return None
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as exc:
            raise RemoteError(
                "server", f"{self._name} sent a line that is not JSON: what was said is kept; is base_url right?"
            ) from exc
        if not isinstance(value, dict):
            raise RemoteError("server", f"{self._name} sent a line that is no object: is base_url right?")
        return value

    async def _bytes(
        self, method: str, url: str, body: Any, headers: Mapping[str, str], *, read_s: float | None = _READ_S
    ) -> AsyncGenerator[httpx2.Response | bytes, None]:
        """Yield the response, then its bytes; the one place where the library's errors become ours."""
        assert _origin(url) == self._origin, "a key goes to the origin it is for"
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        kind = {"Content-Type": "application/json"} if content is not None else {}
        request = self._http.build_request(method, url, content=content, headers={**kind, **headers})
        request.extensions["timeout"]["read"] = read_s
        is_answering = False
        try:
            response = await self._send(request)
            is_answering = True
            try:
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise RemoteError("server", f"{self._name} compresses unasked: switch that off at the server.")
                yield response
                async for received in response.aiter_raw():
                    yield received
            finally:
                await response.aclose()
        except httpx2.HTTPError as exc:
            raise _mapped(self._name, exc, is_answering) from exc
        except (httpx2.InvalidURL, httpx2.StreamError) as exc:
            raise RemoteError("server", f"{self._name} cannot be asked: check base_url in its profile.") from exc

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response to a request, its body unread.

        A server may close a kept connection just when the next request is sent on it. If such a one breaks before
        anything came back, the request is sent again. What breaks on a fresh one may have been read, so it is not.
        """
        is_fresh = False

        async def trace(step: str, _info: Mapping[str, Any]) -> None:
            nonlocal is_fresh
            is_fresh = is_fresh or step == "connection.connect_tcp.started"

        request.extensions["trace"] = trace
        for _ in range(_SENDS - 1):
            try:
                return await self._http.send(request, stream=True)
            except (httpx2.NetworkError, httpx2.RemoteProtocolError):
                if is_fresh:
                    raise
        return await self._http.send(request, stream=True)


def _mapped(name: str, exc: httpx2.HTTPError, is_answering: bool) -> RemoteError:
    """Return our error for one of the library's; its own text is not shown, it may hold an address with a key."""
    if is_answering:
        return RemoteError("cut", f"The connection to {name} broke off: what was said is kept; try again.")
    if isinstance(exc, httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return RemoteError("unreachable", f"{name} does not answer: is it running, and is base_url right?")
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return RemoteError(
                "unreachable",
                f"The certificate of {name} is not trusted ({cause.verify_message}): name its authority with ca_file.",
            )
        if isinstance(cause, ssl.SSLError):
            return RemoteError("unreachable", f"{name} speaks no TLS there: is base_url right, http or https?")
        cause = cause.__cause__ or cause.__context__
    if isinstance(exc, httpx2.ConnectError):
        return RemoteError(
            "unreachable", f"{name} cannot be reached: is it running, and is base_url right?", retry_after_s=1.0
        )
    if isinstance(exc, httpx2.TimeoutException):
        return RemoteError("unreachable", f"{name} took the request and does not answer: look at its log.")
    return RemoteError("cut", f"The connection to {name} broke off before it answered: try again.")


async def _whole(name: str, parts: AsyncGenerator[httpx2.Response | bytes, None]) -> bytes:
    body = bytearray()
    async for received in parts:
        assert isinstance(received, bytes)
        body += received
        if len(body) > MAX_BODY_BYTES:
            raise RemoteError("server", f"{name} sent more than an answer can be: is base_url right?")
    return bytes(body)


def _trust(profile: RemoteProfile) -> ssl.SSLContext | bool:
    if not profile.verify:
        return False
    if profile.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(profile.ca_file))
    except (OSError, ssl.SSLError) as exc:
        raise RemoteError(
            "unreachable", f"ca_file of {profile.name} holds no certificates that can be read: name a PEM file."
        ) from exc


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port
