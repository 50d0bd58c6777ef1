"""Who is answered: whoever has the key, at an address that is this server's own."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from chatapp.serve.errors import ApiError
from chatapp.web.door import is_same

_SCHEME = "bearer"


def is_loopback(host: str) -> bool:
    """True for an address that only this machine reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Checks key and Host.

    A name of somebody else that leads here is DNS rebinding, so a name is answered only if it is this machine's. A
    port is not compared: one that is forwarded has another number at its other end.
    """

    def __init__(self, key: str, host: str) -> None:
        self._key = key
        self._is_open = not is_loopback(host)
        own = socket.gethostname().lower() if self._is_open else "localhost"
        self._names = {"localhost", host.lower(), own, f"{own}.local"}

    def check(self, hosts: Sequence[str], authorization: str | None, *, needs_key: bool = True) -> None:
        """Raise `ApiError` for a request that is not answered; `hosts` are all values of its Host header."""
        if len(hosts) != 1 or not self._is_own(_without_port(hosts[0])):
            raise ApiError(
                403,
                "invalid_request_error",
                "The request was sent to a name that is not this server's: use the address that it printed.",
                code="host_not_allowed",
            )
        if needs_key and not self._has_key(authorization or ""):
            raise ApiError(
                401,
                "authentication_error",
                "The API key is missing or wrong: send the key that the server printed, or was given, as "
                "`Authorization: Bearer KEY`.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _is_own(self, name: str) -> bool:
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._is_open or address.is_loopback

    def _has_key(self, authorization: str) -> bool:
        scheme, _, key = authorization.partition(" ")
        # All of it is compared, so that the time tells nothing of the key.
        return is_same(key.strip(), self._key) and scheme.lower() == _SCHEME


def _without_port(host: str) -> str:
    """The name in a Host header; an IPv6 address without its brackets."""
    host = host.lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
