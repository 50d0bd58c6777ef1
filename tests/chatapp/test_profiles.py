"""Tables of servers become profiles; what is wrong in them is named, and a key is never in the file."""

import sys
from pathlib import Path
from typing import Any

import pytest

from chatapp.profiles import ProfileError, parse
from models.engine import Prices
from models.remote_errors import RemoteError

URL = {"base_url": "https://host/v1"}


def profile(environ: dict[str, str] | None = None, **fields: Any) -> Any:
    """A profile of these fields."""
    return parse("box", URL | fields, environ or {}, Path("/etc/chatapp"))


def test_all_fields() -> None:
    """Each goes where it belongs; times have units, paths start from the file's folder."""
    found = profile(
        model="m",
        connect_timeout="2 s",
        first_token_timeout="5 min",
        token_timeout=7,
        ctx=4096,
        parallel=64,
        ca_file="ca.pem",
        verify=False,
        slot=1,
        slots=True,
        resume=True,
        cache_lifetime="1h",
        price_input=3,
        price_output=15.0,
        price_cached=0.3,
        currency="EUR",
        headers={"X-Team": "pears", "X-Key": "env:TEAM_KEY", "X-None": "env:NOT_SET"},
        environ={"TEAM_KEY": "abc"},
    )
    assert (found.connect_s, found.first_token_s, found.token_s, found.cache_lifetime_s) == (2, 300, 7, 3600)
    assert (found.n_ctx, found.n_parallel, found.ca_file) == (4096, 64, Path("/etc/chatapp/ca.pem"))
    assert (found.verify, found.slot, found.keeps_slots, found.resumes) == (False, 1, True, True)
    assert found.prices == Prices(3, 15, 0.3, "EUR")
    assert found.headers == {"X-Team": "pears", "X-Key": "abc"}
    assert found.key is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"key": "sk-secret"}, "must not hold the key itself"),
        ({"kee": 1}, "unknown key 'kee'"),
        ({"ctx": "many"}, "a whole number of tokens"),
        ({"parallel": 0}, "at least 1"),
        ({"parallel": True}, "at least 1"),
        ({"token_timeout": "soon"}, "5 min"),
        ({"token_timeout": 0}, "5 min"),
        ({"verify": "no"}, "true or false"),
        ({"headers": {"a b": "c"}}, "a table of names"),
        ({"headers": {"a": 1}}, "a table of names"),
        ({"key_command": []}, "a command"),
        ({"key_command": "'unclosed"}, "a command"),
        ({"key_env": "A", "key_command": "b"}, "several keys"),
        ({"price_input": 1}, "both price_input and price_output"),
        ({"price_input": -1}, "a number"),
        ({"base_url": "http://example.com/v1"}, "allow_http"),
        ({"base_url": "https://me:pw@host/v1"}, "must not hold a password"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], words: str) -> None:
    """With the way out, and without secrets."""
    with pytest.raises(ProfileError) as raised:
        profile(**fields)
    assert words in str(raised.value)
    assert "sk-secret" not in str(raised.value)
    assert "pw" not in str(raised.value)


@pytest.mark.parametrize("name", ["llama", "fake", "fake2", "Box", "a/b", "", "x" * 41, "a:b", "..", "ä"])
def test_names_that_cannot_be(name: str) -> None:
    """They would be taken for engines of another kind, or for paths."""
    with pytest.raises(ProfileError, match="another name"):
        parse(name, URL, {}, Path())


def test_a_key_from_the_environment() -> None:
    """It is read when it is needed; one that is not set is named by its variable."""
    assert profile({"K": " abc\n"}, key_env="K").key() == "abc"
    with pytest.raises(RemoteError, match="variable K, which is not set"):
        profile(key_env="K").key()


def test_a_key_from_a_command() -> None:
    """Its first line; one that fails is named without what it printed."""
    python = sys.executable
    assert profile(key_command=[python, "-c", "print('abc'); print('more')"]).key() == "abc"
    for script in ("print()", "import sys; print('half'); sys.exit(1)"):
        with pytest.raises(RemoteError, match="gives none") as raised:
            profile(key_command=[python, "-c", script]).key()
        assert "half" not in str(raised.value)
    with pytest.raises(RemoteError, match="gives none"):
        profile(key_command="no-such-program-anywhere").key()


def test_a_key_from_the_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    """By service and user; without the package, with a locked keyring or without an entry there is a sentence."""

    class Keyring:
        @staticmethod
        def get_password(service: str, user: str) -> str | None:
            """What the keyring holds."""
            if service == "locked":
                raise RuntimeError("no")
            return {("chat", "me"): "abc", ("chat", "box"): "def"}.get((service, user))

    monkeypatch.setitem(sys.modules, "keyring", Keyring)
    assert profile(key_keyring="chat/me").key() == "abc"
    assert profile(key_keyring="chat").key() == "def"
    for entry, words in (("locked", "unlock"), ("other", "has no key")):
        with pytest.raises(RemoteError, match=words):
            profile(key_keyring=entry).key()
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(RemoteError, match="pip install"):
        profile(key_keyring="chat").key()
