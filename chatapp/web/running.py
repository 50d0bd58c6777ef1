"""One server for a data folder: who asks for a second one is led to the first."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chatapp.web.door import HOST, ONCE, address
from sessions.files import make_private_file, make_private_folder
from sessions.locks import OsLock

ANSWER_S = 5.0


@contextmanager
def only_one(data_dir: Path) -> Iterator[bool]:
    """Yield whether this is the only server of the folder, which it then stays for the block."""
    make_private_folder(data_dir)
    lock = OsLock(data_dir / "web.lock")
    if not lock.take():
        yield False
        return
    try:
        yield True
    finally:
        _file(data_dir).unlink(missing_ok=True)
        lock.release()


def tell(data_dir: Path, port: int, token: str) -> None:
    """Write down, for this user's eyes only, where the server is."""
    make_private_file(_file(data_dir))
    _file(data_dir).write_text(json.dumps({"port": port, "token": token}), encoding="utf-8")


def find(data_dir: Path) -> tuple[str, str] | None:
    """Return the lasting address of the server that runs, and one that opens a single time; None: it is silent."""
    try:
        found = json.loads(_file(data_dir).read_text(encoding="utf-8"))
        port, token = int(found["port"]), str(found["token"])
        connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)
        try:
            connection.request("GET", f"{ONCE}?token={token}")
            response = connection.getresponse()
            code = response.read(1000).decode()
        finally:
            connection.close()
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return None
    return (address(port, token), address(port, code)) if response.status == http.HTTPStatus.OK else None


def _file(data_dir: Path) -> Path:
    return data_dir / "web.json"
