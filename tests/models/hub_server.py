"""A hub on the loopback interface: the part of the Hugging Face hub's interface that fetching a file takes."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the hub has, how it behaves, and what it was asked."""

    repository: str
    files: dict[str, bytes]
    status: int = 200
    """Answer everything with this error instead."""
    answer: bytes | None = None
    """Answer questions about the repository with these bytes instead."""
    cut_at: int | None = None
    """Break off the first transfer behind so many bytes."""
    redirects: bool = False
    """Send who asks for a file to another place, as a hub does to its storage."""
    wrong_sha256: bool = False
    has_sha256: bool = True
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path, range."""
    endpoint: str = ""

    def transfers(self) -> list[str | None]:
        """The ranges of the files that were asked for."""
        place = "/storage/" if self.redirects else "/resolve/"
        return [what for method, path, what in self.requests if method == "GET" and place in path]


def sha256(hub: Hub, data: bytes) -> str:
    """The checksum the hub gives."""
    return hashlib.sha256(data + (b"!" if hub.wrong_sha256 else b"")).hexdigest()


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    """Serve it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            hub.requests.append((self.command, path, self.headers.get("Range")))
            if hub.status != 200:
                self._send(hub.status, b"", {}, with_body)
            elif path == f"/api/models/{hub.repository}":
                self._send(200, self._description() if hub.answer is None else hub.answer, {}, with_body)
            elif (match := re.fullmatch(rf"/{hub.repository}/resolve/{COMMIT}/(.+)", path)) and match[1] in hub.files:
                if hub.redirects:
                    self._send(302, b"", {"Location": f"/storage/{match[1]}?signed=1"}, with_body)
                else:
                    self._file(hub.files[match[1]], with_body)
            elif hub.redirects and path.removeprefix("/storage/") in hub.files:
                self._file(hub.files[path.removeprefix("/storage/")], with_body)
            else:
                self._send(404, b"", {"X-Error-Code": "RepoNotFound"}, with_body)

        def _description(self) -> bytes:
            siblings = [
                {
                    "rfilename": name,
                    "size": len(data),
                    **(
                        {"lfs": {"sha256": sha256(hub, data), "size": len(data), "pointerSize": 1}}
                        if hub.has_sha256
                        else {}
                    ),
                }
                for name, data in hub.files.items()
            ]
            return json.dumps({"id": hub.repository, "sha": COMMIT, "siblings": siblings}).encode()

        def _file(self, data: bytes, with_body: bool) -> None:
            digest = hashlib.sha256(data).hexdigest()
            headers = {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
            start = int(asked[1]) if asked else 0
            if asked:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self._send(206 if asked else 200, data[start:], headers, with_body)

        def _send(self, code: int, body: bytes, headers: dict[str, str], with_body: bool) -> None:
            self.send_response(code)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if not with_body:
                return
            if hub.cut_at is not None and "/resolve/" in self.path:
                body, hub.cut_at = body[: hub.cut_at], None
                self.close_connection = True
            with suppress(ConnectionError):  # who stops listening is no error of the hub
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
