import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chatapp.__main__ import main
from models.fingerprint import LLAMA_BUILD
from models.kvfolder import KvFolder
from models.kvformat import SegmentId
from models.kvstore import load_mac_key
from sessions.store import Store
from tests.models.helpers import changed, damage
from tests.models.kvstock import content, on_disk, open_store, path_of, put

OURS = changed(llama_build=LLAMA_BUILD)
HOSTILE = "evil\x1b[2J\u202ename\n2nd"


class Terminal(io.StringIO):
    """Text streams that are a terminal."""

    def isatty(self) -> bool:
        """Somebody watches."""
        return True


class Shell:
    """Runs `chatapp kv` over its own folders."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data_dir, self.cache_dir = folder / "data", folder / "cache"
        self.root = self.cache_dir / "kv"
        self.stderr = ""
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("CHATAPP_DATA_DIR", str(self.data_dir))
        monkeypatch.setenv("CHATAPP_CACHE_DIR", str(self.cache_dir))

    def __call__(self, *arguments: str, code: int = 0, typed: str | None = None) -> str:
        """Run a command; return its stdout. With `typed`, stdin and stderr are a terminal on which that is typed."""
        out = io.StringIO()
        error, typing = (io.StringIO(), io.StringIO()) if typed is None else (Terminal(), Terminal(typed))
        with self._monkeypatch.context() as patched:
            patched.setattr(sys, "argv", ["chatapp", "kv", *arguments])
            for name, stream in (("stdin", typing), ("stdout", out), ("stderr", error)):
                patched.setattr(sys, name, stream)
            with pytest.raises(SystemExit) as exited:
                main()
        self.stderr = error.getvalue()
        assert exited.value.code == code, (exited.value.code, out.getvalue(), self.stderr)
        return out.getvalue()

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Run a command with --json; return what it printed."""
        return json.loads(self(*arguments, "--json", code=code))


class Stock(Shell):
    """Two conversations that share a system prompt, had with one model; one more segment of another model."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        key = load_mac_key(self.data_dir)
        with closing(open_store(self.root, OURS, key=key)) as store:
            (self.shared,) = put(store, (1, 2))
            (self.one,) = put(store, (3, 4, 5), after=self.shared)
            (self.two,) = put(store, (6,), after=self.shared)
            store.remember("self_test", {"passed": True})
        self.other_print = changed(llama_build=LLAMA_BUILD, gpu_layers=7)
        with closing(open_store(self.root, self.other_print, key=key)) as store:
            (self.other,) = put(store, (1, 2))
        with closing(Store(self.data_dir)) as conversations:
            self.ids = []
            for segment, title in ((self.one, "First"), (self.two, HOSTILE)):
                session = conversations.create_session()
                conversations.add_question(session.id, "q", title=title)
                conversations.record_kv(session.id, 1, fingerprint=OURS.digest().hex(), tip=segment.key.hex())
                self.ids.append(session.id)

    def left(self) -> set[bytes]:
        """Keys of what is on disk."""
        return {key for key, _ in on_disk(self.root)}


def keys(*segments: SegmentId) -> set[bytes]:
    """Their keys."""
    return {segment.key for segment in segments}


@pytest.fixture
def kv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stock:
    """The commands over something that is stored."""
    return Stock(tmp_path, monkeypatch)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The commands over folders that do not exist."""
    return Shell(tmp_path, monkeypatch)


@pytest.fixture
def chats(kv: Stock) -> Iterator[Callable[[], bool]]:
    """Whether the conversations' own folder is as it was."""
    with closing(Store(kv.data_dir)):
        before = content(kv.data_dir)
        yield lambda: content(kv.data_dir) == before


# --- status ---


def test_status_json_is_the_documented_object(kv: Stock) -> None:
    """The keys are an interface."""
    found = kv.json("status")
    assert list(found) == [
        "total_bytes",
        "segments",
        "budget_bytes",
        "free_floor_bytes",
        "written_today_bytes",
        "written_total_bytes",
        "daily_limit_bytes",
        "damaged_bytes",
        "models",
        "sessions",
    ]
    assert found["segments"] == 4
    assert found["total_bytes"] == sum(model["bytes"] for model in found["models"])
    model = found["models"][0]
    assert model == {
        "fingerprint": OURS.digest().hex(),
        "name": "m",
        "path": "/m.gguf",
        "settings": "flash attention off, KV f16",
        "bytes": model["bytes"],
        "state_bytes": 0,
        "tokens": 6,
        "segments": 3,
        "last_used": 1_000_000.0,
        "usable": True,
        "self_test": "passed",
    }
    first = found["sessions"][0]
    shared = path_of(kv.root, kv.shared).stat().st_size
    assert first == {
        "id": kv.ids[0],
        "title": "First",
        "bytes": shared + path_of(kv.root, kv.one).stat().st_size,
        "shared_bytes": shared,
        "tokens": 5,
        "last_used": 1_000_000.0,
    }
    assert found["sessions"][1]["title"] == HOSTILE


def test_status_shows_a_line_for_each(kv: Stock) -> None:
    """Totals, then models, then conversations, in columns; text nobody vouches for cannot command the terminal."""
    about = KvFolder(kv.root).about(OURS.digest())
    KvFolder(kv.root).write_about(OURS.digest(), {**about, "model": {"name": HOSTILE}})
    printed = kv("status")
    lines = printed.splitlines()
    assert lines[0].startswith("stored   4.5 KiB in 4 segments, at most ")
    assert lines[1].endswith("no daily limit")
    assert [line for line in lines if line in ("Models", "Conversations")] == ["Models", "Conversations"]
    assert kv.ids[0] in printed
    assert OURS.digest().hex()[:12] in printed
    assert "flash attention off, KV f16, GPU layers 7" in printed
    assert printed.count("evil␛[2J") == 2
    assert not set("\x1b\u202e") & set(printed)
    models = lines[lines.index("Models") + 1 : lines.index("Conversations") - 1]
    assert len({line.index(" tokens") for line in models}) == 1


def test_status_lists_the_largest_conversations(kv: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--all` and JSON have the others too."""
    monkeypatch.setattr("chatapp.kv.LARGEST", 1)
    found = kv.json("status")["sessions"]
    largest = max(found, key=lambda one: one["bytes"])["id"]

    assert len(found) > 1
    assert [one["id"] for one in found if one["id"] in kv("status")] == [largest]
    assert all(one["id"] in kv("status", "--all") for one in found)


def test_status_of_nothing_makes_nothing(empty: Shell, tmp_path: Path) -> None:
    """All zeros, and no folder afterwards."""
    found = empty.json("status")
    assert (found["total_bytes"], found["segments"], found["models"], found["sessions"]) == (0, 0, [], [])
    assert empty("status").startswith("stored   0 B in 0 segments")
    assert list(tmp_path.iterdir()) == []


def test_status_says_what_is_wrong(kv: Stock) -> None:
    """Files set aside, a failed self-test, another build."""
    with closing(open_store(kv.root, changed(llama_build="older"))) as store:
        (segment,) = put(store, (1,))
        store.reject(segment)
        store.remember("self_test", {"passed": False})
    printed = kv("status")
    assert "of another llama.cpp build, self-test failed" in printed
    assert "set aside; `chatapp kv prune` deletes them" in printed


@pytest.mark.parametrize(
    "arguments", [["status"], ["status", "--json"], ["verify"], ["clear", "--model", "m", "--yes"]]
)
def test_an_unreadable_index_is_one_sentence(kv: Stock, arguments: list[str]) -> None:
    """Exit code 1, what happened and a way out; nothing is changed."""
    (kv.root / "index.db").write_bytes(b"junk" * 1000)
    assert kv(*arguments, code=1) == ""
    assert kv.stderr.startswith(f"Error: Stored KV in {kv.root} cannot be used (the KV index cannot be read")
    assert kv.stderr.count("\n") == 1
    assert "`chatapp kv verify --repair`" in kv.stderr
    assert (kv.root / "index.db").read_bytes() == b"junk" * 1000


# --- verify ---


def test_verify_says_that_all_is_well(kv: Stock, chats: Callable[[], bool]) -> None:
    """Exit code 0, and nothing changed."""
    before = content(kv.root)
    assert kv("verify").startswith("4 files are as they should be (")
    assert kv.stderr == ""
    assert (content(kv.root), chats()) == (before, True)


def test_verify_json_is_the_documented_object(kv: Stock, chats: Callable[[], bool]) -> None:
    """Counts of each fault and a list of them; 1 until they are repaired."""
    damage(path_of(kv.root, kv.one))
    path_of(kv.root, kv.two).unlink()
    report = kv.json("verify", code=1)
    assert list(report) == [
        "ok",
        "damaged",
        "unreadable",
        "missing",
        "unindexed",
        "bad_rows",
        "foreign",
        "repaired",
        "bytes",
        "seconds",
        "faults",
    ]
    assert (report["ok"], report["damaged"], report["missing"], report["repaired"]) == (2, 1, 1, 0)
    assert {"kind": "damaged", "where": str(path_of(kv.root, kv.one)), "detail": "its checksum does not match"} in (
        report["faults"]
    )
    assert kv.json("verify", "--repair")["repaired"] == 2
    assert kv.json("verify")["faults"] == []
    assert chats()


def test_verify_names_each_fault(kv: Stock) -> None:
    """A line for each, and the way out to somebody who watches."""
    damage(path_of(kv.root, kv.one))
    printed = kv("verify", code=1, typed="")
    assert printed.splitlines()[0] == f"damaged     {path_of(kv.root, kv.one)}: its checksum does not match"
    assert "; 1 fault (" in printed
    assert "--repair" in kv.stderr
    assert "; 1 fault, 1 repaired (" in kv("verify", "--repair")


def test_progress_is_for_those_who_watch(kv: Stock) -> None:
    """On a terminal, stderr shows the share in a line that goes away."""
    kv("verify", typed="")
    assert "checking stored KV 100 %" in kv.stderr
    assert kv.stderr.endswith("\r\x1b[K")


def test_verify_without_a_mac_key_makes_none(kv: Stock) -> None:
    """Nothing is ours then, and looking does not change that."""
    (kv.data_dir / "kv.key").unlink()
    assert kv.json("verify")["foreign"] == 4
    assert "4 belong to another data folder" in kv("verify")
    assert not (kv.data_dir / "kv.key").exists()


# --- prune ---


def test_prune_goes_down_to_a_size(kv: Stock, chats: Callable[[], bool]) -> None:
    """What is told is what is there."""
    total = kv.json("status")["total_bytes"]
    left = kv.json("prune", "--to", "3KiB")
    assert left["total_bytes"] + left["freed_bytes"] == total
    assert left["total_bytes"] <= 3072
    assert kv("prune", "--to", "0").endswith(" freed, 0 B stored\n")
    assert kv.left() == set()
    assert chats()


def test_prune_without_a_size_keeps_the_budget(kv: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget of the settings."""
    assert kv.json("prune")["freed_bytes"] == 0
    monkeypatch.setenv("CHATAPP_KV_BUDGET", "2KiB")
    assert kv.json("prune")["total_bytes"] <= 2048


def test_a_size_must_be_one(kv: Stock) -> None:
    """Wrong usage; nothing is done."""
    kv("prune", "--to", "plenty", code=2)
    assert "20GiB" in kv.stderr
    assert len(kv.left()) == 4


def test_a_busy_store_says_so(kv: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process holds the lock: one sentence, exit code 1."""
    monkeypatch.setattr("models.kvfolder._LOCK_S", 0.0)
    with KvFolder(kv.root).locked():
        kv("prune", "--to", "0", code=1)
    assert kv.stderr == "Error: Stored KV is kept busy (another program holds the KV store): try again.\n"


# --- clear ---


def test_clear_deletes_everything_but_conversations(kv: Stock, chats: Callable[[], bool]) -> None:
    """Not even notes are left; a size is told."""
    total = kv.json("status")["total_bytes"]
    assert kv.json("clear", "--yes") == {"freed_bytes": total, "total_bytes": 0}
    assert KvFolder(kv.root).generations() == []
    assert chats()


@pytest.mark.parametrize(("typed", "is_cleared"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_clear_asks_on_a_terminal(kv: Stock, typed: str, is_cleared: bool) -> None:
    """Yes deletes; no, or just Enter, does not."""
    kv("clear", code=0 if is_cleared else 1, typed=typed)
    assert "Delete all stored KV (4.5 KiB)?" in kv.stderr
    assert (kv.left() == set()) is is_cleared
    assert ("Nothing was deleted." in kv.stderr) is not is_cleared


def test_clear_does_not_guess_without_a_terminal(kv: Stock) -> None:
    """Nobody can be asked, so --yes has to say it."""
    kv("clear", code=2)
    assert "--yes" in kv.stderr
    assert len(kv.left()) == 4


def test_clear_one_model(kv: Stock) -> None:
    """By the beginning of its fingerprint; names must be unique."""
    kv("clear", "--model", "m", "--yes", code=2)
    assert "More than one model" in kv.stderr
    assert OURS.digest().hex()[:12] in kv.stderr
    kv("clear", "--model", "nobody", "--yes", code=2)
    assert "kv status" in kv.stderr
    kv("clear", "--model", "", "--yes", code=2)
    assert len(kv.left()) == 4
    kv("clear", "--model", kv.other_print.digest().hex()[:12].upper(), "--yes")
    assert kv.left() == keys(kv.shared, kv.one, kv.two)
    kv("clear", "--model", "m", typed="y\n")
    assert "flash attention off, KV f16 (3.3 KiB)?" in kv.stderr
    assert kv.left() == set()


def test_clear_one_conversation(kv: Stock, chats: Callable[[], bool]) -> None:
    """What another one reaches stays."""
    kv("clear", "--session", kv.ids[1], typed="y\n")
    assert "evil␛[2J" in kv.stderr
    assert "(1.1 KiB)?" in kv.stderr
    assert kv.left() == keys(kv.shared, kv.one, kv.other)
    assert chats()
    kv("clear", "--session", "nobody", "--yes", code=1)
    assert "sessions list" in kv.stderr
    kv("clear", "--session", kv.ids[0], "--model", "m", "--yes", code=2)


def test_clearing_nothing_makes_nothing(empty: Shell, tmp_path: Path) -> None:
    """No folder afterwards."""
    assert empty.json("clear", "--yes") == {"freed_bytes": 0, "total_bytes": 0}
    assert empty.json("prune") == {"freed_bytes": 0, "total_bytes": 0}
    assert empty.json("verify")["ok"] == 0
    assert list(tmp_path.iterdir()) == []


# --- deleting a conversation ---


def test_deleting_a_conversation_for_good_forgets_its_kv(kv: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others reach stays; what nobody reaches goes, in every generation."""
    monkeypatch.setattr(sys, "argv", ["chatapp", "sessions", "delete", kv.ids[0], "--forever"])
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == 0
    assert kv.left() == keys(kv.shared, kv.two)


def test_the_environment_names_no_engine() -> None:
    """These tests look at the real store, not at the fake engine's."""
    assert "CHATAPP_ENGINE" not in os.environ
