"""Who may come in: a secret that no other page and no other user of the machine has."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence

from chatapp.texts import tr_later

HOST = "127.0.0.1"
"""The only address that is listened on."""
COOKIE = "chatapp"
ENTRANCE = "/"
"""Takes the secret of an address and gives a cookie for it."""
ONCE = "/once"
"""Gives whoever has the token a code that opens the page a single time."""
SOCKET = "socket"

NOT_LET_IN = tr_later(
    "This page is opened with the whole address that `chatapp web` printed: its secret is missing or wrong."
)
OTHER_HOST = tr_later("This page answers only to 127.0.0.1: open the address that `chatapp web` printed.")
OTHER_ORIGIN = tr_later("This page does not answer to other pages: open the address that `chatapp web` printed.")


class Door:
    """The secrets of one run of the server.

    The address that is printed holds a token. Whoever shows it gets a cookie, which browsers send to the pages below
    `room` only: the room's name is random, so that servers on other ports of this machine, which share their cookies
    with this one, are never sent it, and the browser's history keeps nothing that opens the door.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.room = f"/{secrets.token_urlsafe(9)}/"
        self.token = secrets.token_urlsafe(32)
        self._once: set[str] = set()
        self._hosts = frozenset(
            {f"{HOST}:{port}", f"localhost:{port}"} | ({HOST, "localhost"} if port == 80 else set())
        )

    @property
    def url(self) -> str:
        """The address that opens the page as long as the server runs."""
        return address(self.port, self.token)

    def code(self) -> str:
        """Return what opens the page a single time, in place of the token.

        It is for the browser's command line, which other users of the machine can read.
        """
        code = secrets.token_urlsafe(32)
        self._once.add(code)
        return code

    def admits(self, token: str) -> bool:
        """True for the token, and once for each code."""
        if is_same(token, self.token):
            return True
        used = [code for code in self._once if is_same(token, code)]
        self._once.difference_update(used)
        return bool(used)

    def refusal(self, path: str, headers: Mapping[str, Sequence[str]], token: str, cookie: str) -> str | None:
        """Return why a request is refused, in one sentence that `tr` is given; None: it may come in.

        `headers` has all values of Host and Origin. A name of somebody else that leads here is DNS rebinding; an
        origin that is not ours is another page, which may connect to a websocket without asking anybody.
        """
        hosts = headers["Host"]
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return OTHER_HOST
        origins = headers["Origin"]
        if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in origins):
            return OTHER_ORIGIN
        if path == ENTRANCE:
            return None if self.admits(token) else NOT_LET_IN
        if path == ONCE:
            return None if is_same(token, self.token) else NOT_LET_IN
        if not (path.startswith(self.room) and is_same(cookie, self.token)):
            return NOT_LET_IN
        if path == self.room + SOCKET and not origins:
            return OTHER_ORIGIN
        return None


def address(port: int, secret: str) -> str:
    """Return the address that opens the page."""
    return f"http://{HOST}:{port}{ENTRANCE}?token={secret}"


def is_same(given: str, secret: str) -> bool:
    """Compare in a time that tells nothing of the secret."""
    return hmac.compare_digest(given.encode(errors="backslashreplace"), secret.encode())
