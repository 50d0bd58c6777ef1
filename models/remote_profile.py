"""A server as the user describes it, and how conversations name a model there; pure."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import SplitResult, quote, unquote, urlsplit

from models.engine import Prices
from models.remote_errors import RemoteError

_PLACE = "engine:"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
RESERVED = ("llama", "fake")


@dataclass(frozen=True, slots=True)
class RemoteProfile:
    """One server with an OpenAI-compatible chat endpoint. Times are in seconds.

    `model` None is the only model that the server has. `key` is called when the server is connected to, in a thread,
    and raises `RemoteError`; None is a server without a key. `first_token_s` None is reckoned from the prompt's length,
    `token_s` is the longest silence between two tokens. `n_ctx` counts where the server does not tell its context.
    `slot` is the llama-server slot whose state may be saved and restored (None: the only one, if there is only one);
    `keeps_slots` and `resumes` None mean: on this machine, and on another one.
    """

    name: str
    base_url: str
    model: str | None = None
    key: Callable[[], str] | None = field(default=None, repr=False, compare=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_s: float = 5.0
    first_token_s: float | None = None
    token_s: float = 20.0
    n_ctx: int | None = None
    n_parallel: int = 1
    ca_file: Path | None = None
    verify: bool = True
    allow_http: bool = False
    slot: int | None = None
    keeps_slots: bool | None = None
    resumes: bool | None = None
    cache_lifetime_s: float | None = None
    prices: Prices | None = None

    @property
    def api(self) -> str:
        """Where the endpoints are, without a slash at the end; `/v1` where no path is given."""
        url = self.base_url.rstrip("/")
        return url if urlsplit(url).path else f"{url}/v1"

    @property
    def root(self) -> str:
        """Where a server keeps what is not part of that interface."""
        return self.api.removesuffix("/v1")

    @property
    def is_local(self) -> bool:
        """True if the server runs on this machine."""
        return _is_loopback(urlsplit(self.base_url))

    @property
    def host(self) -> str:
        """Host and port, for the user."""
        return urlsplit(self.base_url).netloc


def is_name(name: str) -> bool:
    """True for a name that a profile may have: small letters, digits, and `.`, `_`, `-` behind the first."""
    return _NAME.fullmatch(name) is not None and not any(name.startswith(word) for word in RESERVED)


def check(profile: RemoteProfile) -> None:
    """Raise `RemoteError` for a profile that may not be used as it is."""
    try:
        url = urlsplit(profile.base_url)
        _ = url.port
    except ValueError as exc:
        raise _bad_url(profile) from exc
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise _bad_url(profile)
    if url.username or url.password:
        raise RemoteError(
            "insecure",
            f"base_url of {profile.name} must not hold a password: name the key with key_env or key_command.",
        )
    if url.scheme == "http" and not (profile.allow_http or _is_loopback(url)):
        raise RemoteError(
            "insecure",
            f"{profile.name} would send conversations to {url.hostname} unencrypted: use https, "
            "or set allow_http = true in its profile if that network is yours.",
        )


def _bad_url(profile: RemoteProfile) -> RemoteError:
    return RemoteError(
        "insecure", f"base_url of {profile.name} must look like https://host/v1 or http://127.0.0.1:8080/v1."
    )


def _is_loopback(url: SplitResult) -> bool:
    host = url.hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def place_of(name: str, model: str) -> Path:
    """Return what stands for a model at a server where models of this machine have their file."""
    quoted = quote(model, safe="/:@+,= ")
    if quoted.startswith("/") or PurePosixPath(quoted).as_posix() != quoted:  # a path would lose such slashes
        quoted = quoted.replace("/", "%2F")
    return Path(f"{_PLACE}{name}/{quoted}" if model else f"{_PLACE}{name}")


def read_place(path: Path | None) -> tuple[str, str | None] | None:
    """Return the profile and the model (None: its own) that a place names; None for the path of a file."""
    text = path.as_posix() if path else ""
    if not text.startswith(_PLACE):
        return None
    name, _, model = text.removeprefix(_PLACE).partition("/")
    return name, unquote(model) or None


def identity(name: str, model: str) -> str:
    """Return what conversations know a model at a server by, in place of the hash of its weights (hex)."""
    return hashlib.sha256(f"remote\0{name}\0{model}".encode()).hexdigest()
