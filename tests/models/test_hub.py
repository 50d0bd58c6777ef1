import builtins
import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from models.errors import ModelError
from models.hub import RemoteFile, choose, pull, split_wanted
from models.modelfiles import Entry
from tests.models.hub_server import Hub, running

pytest.importorskip("huggingface_hub")

REPOSITORY = "me/Tiny-GGUF"
DATA = b"GGUF" + bytes(range(256)) * 40


class Client:
    """Fetches from the hub into a folder."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.folder = folder
        self.hub = hub
        self.told: list[tuple[str, int, int]] = []

    def pull(self, wanted: str = REPOSITORY, *, told: Any = None) -> Entry:
        """Fetch."""

        def tell(*what: Any) -> None:
            self.told.append(what)

        return pull(self.folder, wanted, endpoint=self.hub.endpoint, offline=False, told=told or tell)

    def refusal(self, wanted: str = REPOSITORY) -> str:
        """The one sentence of a failure."""
        with pytest.raises(ModelError) as raised:
            self.pull(wanted)
        assert len(str(raised.value).splitlines()) == 1
        return str(raised.value)

    def names(self) -> list[str]:
        """The models in the folder."""
        return sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("."))


def stop(_name: str, done: int, _total: int) -> None:
    """Press Ctrl+C when some of it is here."""
    if done > 10 << 20:
        raise KeyboardInterrupt


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A hub with a few models, and an empty folder."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    names = ("Tiny-Q4_K_M.gguf", "Tiny-Q8_0.gguf", "mmproj-Tiny-F16.gguf", "README.md")
    parts = ("BF16/Tiny-BF16-00001-of-00002.gguf", "BF16/Tiny-BF16-00002-of-00002.gguf")
    folder = tmp_path / "models"
    folder.mkdir()
    with running(Hub(REPOSITORY, {name: DATA + name.encode() for name in (*names, *parts)})) as hub:
        yield Client(folder, hub)


# --- fetching ---


def test_a_model_is_fetched(client: Client) -> None:
    """Whole, with progress, under its name; nothing is left of what was unfinished."""
    assert client.pull() == Entry("Tiny-Q4_K_M", "own", (client.folder / "Tiny-Q4_K_M.gguf",))
    content = (client.folder / "Tiny-Q4_K_M.gguf").read_bytes()
    assert content == client.hub.files["Tiny-Q4_K_M.gguf"]
    assert ("Tiny-Q4_K_M.gguf", len(content), len(content)) in client.told
    assert client.told[-1] == ("checking Tiny-Q4_K_M.gguf", len(content), len(content))
    assert list((client.folder / ".unfinished").iterdir()) == []


@pytest.mark.parametrize("what", ["q8_0", "Q8_0", "Tiny-Q8_0.gguf", "Tiny-Q8_0"])
def test_a_quantization_or_file_is_chosen(client: Client, what: str) -> None:
    """Behind the colon."""
    assert client.pull(f"{REPOSITORY}:{what}").name == "Tiny-Q8_0"


def test_all_parts_of_a_split_model_are_fetched(client: Client) -> None:
    """Out of their folder, into the own one."""
    entry = client.pull(f"{REPOSITORY}:BF16")
    assert entry.name == "Tiny-BF16"
    assert [path.name for path in entry.files] == client.names()
    assert len(entry.files) == 2


@pytest.mark.parametrize("redirects", [False, True])
def test_what_was_begun_is_gone_on_with(client: Client, redirects: bool) -> None:
    """After Ctrl+C, only the rest is asked for, also where the file lies elsewhere."""
    client.hub.redirects = redirects
    client.hub.files["Tiny-Q4_K_M.gguf"] = data = os.urandom(25 << 20)
    with contextlib.suppress(KeyboardInterrupt):
        client.pull(told=stop)
    assert client.names() == []
    client.pull()
    assert (client.folder / "Tiny-Q4_K_M.gguf").read_bytes() == data
    first, second = client.hub.transfers()
    assert first is None
    assert second is not None
    assert int(second.removeprefix("bytes=").rstrip("-")) >= 10 << 20


def test_a_broken_transfer_is_resumed(client: Client) -> None:
    """At once, from what was written."""
    client.hub.files["Tiny-Q4_K_M.gguf"] = data = os.urandom(25 << 20)
    client.hub.cut_at = 15 << 20
    client.pull()
    assert (client.folder / "Tiny-Q4_K_M.gguf").read_bytes() == data
    assert client.hub.transfers() == [None, f"bytes={10 << 20}-"]


def test_what_was_begun_of_another_revision_is_not_gone_on_with(client: Client) -> None:
    """Its content differs."""
    client.hub.files["Tiny-Q4_K_M.gguf"] = os.urandom(25 << 20)
    with contextlib.suppress(KeyboardInterrupt):
        client.pull(told=stop)
    client.hub.files["Tiny-Q4_K_M.gguf"] = data = os.urandom(25 << 20)
    client.pull()
    assert (client.folder / "Tiny-Q4_K_M.gguf").read_bytes() == data
    assert client.hub.transfers() == [None, None]


def test_what_was_begun_and_is_too_long_begins_anew(client: Client) -> None:
    """Something else has written into it."""
    client.hub.files["Tiny-Q4_K_M.gguf"] = os.urandom(25 << 20)
    with contextlib.suppress(KeyboardInterrupt):
        client.pull(told=stop)
    (part,) = client.folder.rglob("*.part")
    os.truncate(part, 26 << 20)
    client.pull()
    assert (client.folder / "Tiny-Q4_K_M.gguf").read_bytes() == client.hub.files["Tiny-Q4_K_M.gguf"]


def test_a_wrong_checksum_is_refused(client: Client) -> None:
    """And nothing of it is kept: the next try begins anew."""
    client.hub.wrong_sha256 = True
    assert client.refusal() == ("Tiny-Q4_K_M.gguf arrived damaged (its checksum is not the hub's): pull it again.")
    assert client.names() == []
    client.hub.wrong_sha256 = False
    client.pull()
    assert client.hub.transfers() == [None, None]


def test_without_a_checksum_the_size_counts(client: Client) -> None:
    """Small files of a hub have none."""
    client.hub.has_sha256 = False
    client.pull()
    assert client.names() == ["Tiny-Q4_K_M.gguf"]


def test_what_is_there_is_not_fetched_again(client: Client) -> None:
    """It may be another model of that name."""
    client.pull()
    n = len(client.hub.transfers())
    assert "Tiny-Q4_K_M.gguf is already there" in client.refusal()
    assert len(client.hub.transfers()) == n


# --- what can go wrong ---


def test_no_connection_is_one_sentence(client: Client) -> None:
    """It says that a later try goes on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        client.hub.endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    assert client.refusal() == f"{client.hub.endpoint} cannot be reached: pull again when it can, to go on from here."


def test_offline_is_one_sentence(client: Client) -> None:
    """Where the hub's own variable says so, nothing is asked."""
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set"):
        pull(client.folder, REPOSITORY, endpoint=client.hub.endpoint, offline=True, told=lambda *_: None)
    assert client.hub.requests == []


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (401, "does not exist, or is not for everybody"),
        (403, "does not exist, or is not for everybody"),
        (404, "There is no me/Tiny-GGUF on this hub"),
        (500, "the hub answered with the error 500"),
    ],
)
def test_a_refusal_is_one_sentence(client: Client, status: int, sentence: str) -> None:
    """With the reason."""
    client.hub.status = status
    assert sentence in client.refusal()


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b"1", b'{"siblings": [{}]}', b'{"siblings": 1}'])
def test_an_answer_of_another_kind_is_one_sentence(client: Client, answer: bytes) -> None:
    """As a proxy's login page."""
    client.hub.answer = answer
    assert "not a hub's" in client.refusal()


def test_a_path_that_leads_out_is_refused(client: Client) -> None:
    """Nothing is written outside the folder."""
    client.hub.files = {"../../Tiny-Q4_K_M.gguf": DATA}
    client.refusal()
    assert list(client.folder.parent.rglob("*.gguf")) == []
    assert client.hub.transfers() == []


def test_two_do_not_fetch_the_same(client: Client) -> None:
    """The second is told to wait."""
    unfinished = client.folder / ".unfinished" / "me--Tiny-GGUF"
    unfinished.mkdir(parents=True)
    with FileLock(unfinished / "lock"):
        assert client.refusal() == "me/Tiny-GGUF is being fetched by another chatapp: wait for it."
    assert client.hub.transfers() == []


def test_a_full_disk_is_one_sentence(client: Client) -> None:
    """With the system's reason."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelError, match=r"^me/Tiny-GGUF could not be fetched: No space left on device\.$"):
        client.pull(told=full)


def test_a_file_that_is_too_large_for_the_protocol_is_one_sentence(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked for."""
    monkeypatch.setattr("huggingface_hub.constants.MAX_HTTP_DOWNLOAD_SIZE", 5)
    assert "choose a smaller or a split one" in client.refusal()
    assert client.hub.transfers() == []


def test_without_the_package_the_way_out_is_said(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is optional."""
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "huggingface_hub":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    monkeypatch.delitem(sys.modules, "huggingface_hub", raising=False)
    assert "install it with pip" in client.refusal()


# --- choosing ---


@pytest.mark.parametrize("wanted", ["", "x", "a/b/c", "a/", "/b", "a b/c", "é/b", "../x", ":Q4", "https://h/a/b"])
def test_a_repository_has_two_parts(wanted: str) -> None:
    """Nothing else reaches the hub."""
    with pytest.raises(ModelError, match="is no repository of a hub"):
        split_wanted(wanted)


def remote(*paths: str) -> list[RemoteFile]:
    """Files of a repository."""
    return [RemoteFile(path, 1, None) for path in paths]


@pytest.mark.parametrize(
    ("paths", "what", "chosen"),
    [
        (("a-Q2_K.gguf",), None, "a-Q2_K.gguf"),
        (("a-Q2_K.gguf", "a-Q4_K_M.gguf", "a-Q8_0.gguf"), None, "a-Q4_K_M.gguf"),
        (("a-Q2_K.gguf", "a-Q8_0.gguf"), None, "a-Q8_0.gguf"),
        (("a-IQ4_XS.gguf", "a-Q4_K.gguf", "a-Q4_K_M.gguf"), "q4_k", "a-Q4_K.gguf"),
        (("a.q4_0.gguf", "a.q4_0_4_4.gguf"), "Q4_0", "a.q4_0.gguf"),
        (("x/a.gguf", "y/a.gguf"), "y/a.gguf", "y/a.gguf"),
    ],
)
def test_one_model_is_chosen(paths: tuple[str, ...], what: str | None, chosen: str) -> None:
    """A quantization as a whole word; without one, the usual."""
    assert [file.path for file in choose(remote(*paths), what)] == [chosen]


@pytest.mark.parametrize(
    ("paths", "what", "sentence"),
    [
        (("README.md", "mmproj-x.gguf"), None, "This repository has no GGUF file"),
        (("a-Q2_K.gguf",), "Q4_0", "No model there is 'Q4_0': give one of a-Q2_K behind the colon."),
        (("a-Q2_K.gguf", "b-Q2_K.gguf"), None, "2 models are meant: give one of a-Q2_K, b-Q2_K behind the colon."),
        (("a-Q4_0.gguf", "b-Q4_0.gguf"), "q4_0", "2 models are meant"),
    ],
)
def test_what_is_not_one_model_is_one_sentence(paths: tuple[str, ...], what: str | None, sentence: str) -> None:
    """It lists what there is."""
    with pytest.raises(ModelError) as raised:
        choose(remote(*paths), what)
    assert sentence in str(raised.value)
