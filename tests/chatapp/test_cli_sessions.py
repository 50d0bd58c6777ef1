import io
import json
import re
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chatapp.__main__ import main
from sessions import database
from sessions.journal import Journal
from sessions.purge import TRASH_S
from sessions.store import Store
from tests.chatapp.test_cli import Shell
from tests.sessions.helpers import Clock

HOSTILE = "\x1b]0;owned\x07\u202egpj.exe\n2nd line"


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        """Somebody watches."""
        return True


@pytest.fixture
def chatapp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The command line over empty folders."""
    return Shell(tmp_path, monkeypatch)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, str]]:
    """Runs a command on a terminal, with what is typed; returns what it shows and what it says."""

    def run(*arguments: str, typed: str = "") -> tuple[str, str]:
        out, error = Terminal(), Terminal()
        with monkeypatch.context() as patched:
            patched.setattr(sys, "argv", ["chatapp", *arguments])
            for name, stream in (("stdin", Terminal(typed)), ("stdout", out), ("stderr", error)):
                patched.setattr(sys, name, stream)
            with pytest.raises(SystemExit):
                main()
        return out.getvalue(), error.getvalue()

    return run


def ask(chatapp: Shell, text: str, *arguments: str) -> str:
    """Ask a question; return the conversation's id."""
    return str(chatapp.json("run", text, *arguments)["session"])


def told(chatapp: Shell, key: str) -> list[str]:
    """Return the questions of the branch that is shown."""
    messages = chatapp.json("sessions", "show", key)["messages"]
    return [message["text"] for message in messages if message["role"] == "user"]


def ids(rows: list[dict[str, Any]]) -> list[str]:
    """Return the ids of rows."""
    return [row["id"] for row in rows]


# --- the list ---


def test_the_list_is_narrowed_by_flags(chatapp: Shell) -> None:
    """Pinned ones first; the archive and the trash are lists of their own."""
    plain, pinned, archived, trashed = (ask(chatapp, f"question {n}") for n in range(4))
    chatapp("sessions", "pin", pinned)
    chatapp("sessions", "tag", pinned, "+work")
    chatapp("sessions", "archive", archived)
    chatapp("sessions", "delete", trashed)
    chatapp("sessions", "done", plain)
    for flags, expected in (
        ([], [pinned, plain]),
        (["--pinned"], [pinned]),
        (["--archived"], [archived]),
        (["--trash"], [trashed]),
        (["--tag", "#Work"], [pinned]),
        (["--state", "done"], [plain]),
        (["--state", "open", "--tag", "home"], []),
        (["--limit", "1"], [pinned]),
    ):
        assert ids(chatapp.json("sessions", "list", *flags)) == expected
    assert "pinned  #work" in chatapp("sessions", "list")
    assert "go together" in chatapp("sessions", "list", "--trash", "--archived", code=2)


def test_each_change_prints_the_conversation_and_can_be_undone(chatapp: Shell) -> None:
    """Without --json and without a terminal there is nothing to say."""
    key = ask(chatapp, "question")
    for command, field, is_set in (
        ("pin", "pinned_at", True),
        ("unpin", "pinned_at", False),
        ("archive", "archived_at", True),
        ("unarchive", "archived_at", False),
    ):
        assert (chatapp.json("sessions", command, key)[field] is not None) is is_set
        assert chatapp("sessions", command, key) == ""


def test_titles_and_task_lines_are_one_short_line(chatapp: Shell) -> None:
    """The first line that says something, with single spaces, cut; line ends and damage by the rule for input."""
    key = ask(chatapp, "question")
    assert chatapp.json("sessions", "rename", key, "\n a\t b \r\nsecond")["title"] == "a b"
    assert chatapp.json("sessions", "rename", key, "x" * 10_000)["title"] == "x" * 80
    assert chatapp.json("sessions", "rename", key, "a\udcff")["title"] == "a\ufffd"
    assert chatapp.json("sessions", "task", key, "y" * 10_000)["task"] == "y" * 300
    for command in ("rename", "task"):
        assert "at least a word" in chatapp("sessions", command, key, " \n", code=2)


def test_hostile_titles_are_kept_and_shown_harmless(chatapp: Shell, watched: Callable[..., tuple[str, str]]) -> None:
    """JSON has what was written; no line of any command can command the terminal."""
    key = ask(chatapp, HOSTILE)
    assert chatapp.json("sessions", "rename", key, HOSTILE)["title"] == HOSTILE.split("\n")[0]
    for command in (["list"], ["show", key], ["tree", key], ["search", "gpj"], ["pin", key], ["undo", key]):
        out, error = watched("sessions", *command)
        rest = re.sub("\x1b\\[(1m|0m|K)", "", out + error)  # its own: bold, and taking a line away
        assert not set("\x1b\x07\u202e") & set(rest), command


def test_tags_are_added_and_removed_in_either_spelling(chatapp: Shell) -> None:
    """Lower case, in order; a tag may look like a flag of help; no change shows them."""
    key = ask(chatapp, "question")
    assert chatapp.json("sessions", "tag", key, "+Work", "+#home", "--add", "b")["tags"] == ["b", "home", "work"]
    assert chatapp.json("sessions", "tag", key, "-home", "--remove", "b", "+회의")["tags"] == ["work", "회의"]
    assert chatapp("sessions", "tag", key) == "work\n회의\n"
    assert chatapp("sessions", "tag", key, "-hello", code=1) == "Error: This conversation has no tag 'hello'.\n"


@pytest.mark.parametrize(
    ("change", "code", "sentence"),
    [
        ("work", 2, "+TAG"),
        ("--work", 2, "+TAG"),
        ("+", 1, "one word"),
        ("+two words", 1, "one word"),
        ("+\u202exe", 1, "one word"),
        ("+\x1b[2J", 1, "one word"),
        ("+" + "x" * 41, 1, "one word"),
    ],
)
def test_what_is_no_tag_is_refused(chatapp: Shell, change: str, code: int, sentence: str) -> None:
    """Nothing is changed then, not by the good ones beside it either."""
    key = ask(chatapp, "question")
    assert sentence in chatapp("sessions", "tag", key, "+good", change, code=code)
    assert chatapp("sessions", "tag", key) == ""


def test_choices_of_a_conversation_are_set_and_taken_back(chatapp: Shell) -> None:
    """A preset and what becomes of reasoning."""
    key = ask(chatapp, "question")
    changed = chatapp.json("sessions", "set", key, "--preset", "precise", "--reasoning", "strip")
    assert (changed["sampling"], changed["reasoning"]) == ({"preset": "precise", "given": {}}, "strip")
    changed = chatapp.json("sessions", "set", key, "--no-preset")
    assert (changed["sampling"], changed["reasoning"]) == (None, "strip")
    assert "nothing to set" in chatapp("sessions", "set", key, code=2)
    assert "go together" in chatapp("sessions", "set", key, "--preset", "precise", "--no-preset", code=2)


# --- search ---


def test_search_prints_where_and_what(chatapp: Shell) -> None:
    """Title and message, with the numbers of conversation and message."""
    key = ask(chatapp, "오늘 회의를 합니다")
    ask(chatapp, "something else")
    found = chatapp.json("sessions", "search", "회의", "in:title")
    assert list(found) == ["hits", "has_more"]
    (hit,) = found["hits"]
    assert list(hit) == ["session", "title", "message", "role", "created_at", "snippet", "matches"]
    assert (hit["session"], hit["message"], hit["role"], hit["matches"]) == (key, None, None, [[3, 5]])
    lines = chatapp("sessions", "search", "회의").splitlines()
    assert {line.split()[0] for line in lines if not line.startswith(" ")} == {key}
    assert "    오늘 회의를 합니다" in lines
    assert "user 1" in "".join(lines)


def test_matches_are_bold_on_a_terminal(chatapp: Shell, watched: Callable[..., tuple[str, str]]) -> None:
    """Only the words that were looked for; somebody who watches is told that there is more."""
    ask(chatapp, "find the walnut\nhere")
    out, error = watched("sessions", "search", "walnut", "--limit", "2")
    assert "    find the \x1b[1mwalnut\x1b[0m here\n" in out
    assert "--offset" in error


@pytest.mark.parametrize("query", ['"', "*", "a OR (", "title:x", "NEAR(", "\udcff", "-", "' OR 2=2"])
def test_no_query_is_an_error(chatapp: Shell, query: str) -> None:
    """Finding nothing is no failure."""
    ask(chatapp, "question")
    assert json.loads(chatapp("sessions", "search", "--json", "--", query)) == {"hits": [], "has_more": False}
    assert chatapp("sessions", "search", "--", query) == ""


# --- showing ---


def test_reasoning_is_folded_unless_it_is_wanted(chatapp: Shell) -> None:
    """One line says how much there is; JSON has it apart from the answer."""
    key = ask(chatapp, "question")
    with closing(Store(chatapp.data_dir)) as store:
        question = store.add_question(key, "why?", title="")
        store.add_answer(question, "<think>\nfirst\nsecond\n</think>\n\nBecause.", "complete", run=None)
    shown = chatapp("sessions", "show", key)
    assert "[reasoning: 12 characters; --reasoning shows them]\n\nBecause.\n" in shown
    assert "second" not in shown
    assert "  | first\n  | second\n\nBecause.\n" in chatapp("sessions", "show", key, "--reasoning")
    last = chatapp.json("sessions", "show", key)["messages"][-1]
    assert (last["text"], last["reasoning"]) == ("Because.", "first\nsecond")


# --- branches ---


def test_undo_prints_the_question_and_keeps_the_branch(chatapp: Shell) -> None:
    """The next question stands in its place; the tree has both, and the old one can be shown again."""
    key = ask(chatapp, "one")
    ask(chatapp, "two\nlines", "--session", key)
    assert chatapp("sessions", "undo", key) == "two\nlines\n"
    assert told(chatapp, key) == ["one"]
    ask(chatapp, "three", "--session", key)
    lines = chatapp("sessions", "tree", key).splitlines()
    assert [line.split()[:3] for line in lines if "user" in line] == [
        ["*", "1", "user"],
        ["3", "user", "two"],
        ["*", "5", "user"],
    ]
    assert [line.index("user") for line in lines if "user" in line] == [4, 6, 6]
    rows = chatapp.json("sessions", "tree", key)
    assert [(row["id"], row["parent_id"], row["shown"]) for row in rows] == [
        (1, None, True),
        (2, 1, True),
        (3, 2, False),
        (4, 3, False),
        (5, 2, True),
        (6, 5, True),
    ]
    chatapp("sessions", "branch", key, "3")
    assert told(chatapp, key) == ["one", "two\nlines"]
    assert ", version 1 of 2" in chatapp("sessions", "show", key)
    assert chatapp.json("sessions", "undo", key) == {"id": key, "text": "two\nlines"}
    assert "no such message" in chatapp("sessions", "branch", key, "99", code=1)


def test_a_long_conversation_without_branches_is_a_straight_tree(chatapp: Shell) -> None:
    """Only where branches leave each other it is set in; hundreds of turns need no stack."""
    key = ask(chatapp, "one")
    with closing(Store(chatapp.data_dir)) as store:
        for n in range(2000):
            store.add_question(key, f"q{n}", title="")
    lines = chatapp("sessions", "tree", key).splitlines()
    assert len(lines) == 2002
    assert {line[:2] for line in lines} == {"* "}
    assert lines[-1] == "* 2002 user  q1999"


def test_a_fork_takes_what_is_asked_for(chatapp: Shell) -> None:
    """All, the beginning, all but a question, or the system prompt; its id is what is printed."""
    key = ask(chatapp, "one", "--system", "Be kind.")
    for text in ("two", "three"):
        ask(chatapp, text, "--session", key)
    messages = chatapp.json("sessions", "show", key)["messages"]
    numbers = {message["text"]: str(message["id"]) for message in messages if message["role"] == "user"}
    for flags, expected in (
        ([], ["one", "two", "three"]),
        (["--through", numbers["two"]], ["one", "two"]),
        (["--without", numbers["one"], "--without", numbers["three"]], ["two"]),
        (["--system-only"], []),
    ):
        fork = chatapp("sessions", "fork", key, *flags).strip()
        assert told(chatapp, fork) == expected
        shown = chatapp.json("sessions", "show", fork)
        assert (shown["system"], shown["forked_from"]) == ("Be kind.", key)
    fork = chatapp.json("sessions", "fork", key)
    assert fork["forked_from"] == key
    assert f"{fork['title']}  fork of {key}\n" in chatapp("sessions", "list")
    assert fork["title"] == "one (5)"
    assert "shows no message" in chatapp("sessions", "fork", key, "--through", "999", code=1)
    assert "no question" in chatapp("sessions", "fork", key, "--without", str(messages[-1]["id"]), code=2)


@pytest.mark.parametrize("command", [["undo"], ["branch", "1"]])
def test_what_is_being_answered_is_left_alone(chatapp: Shell, command: list[str]) -> None:
    """Another process holds the conversation: one sentence, and nothing is changed."""
    key = ask(chatapp, "one")
    with Journal(chatapp.data_dir / "journal", key, monotonic=Clock()):
        said = chatapp("sessions", command[0], key, *command[1:], code=1)
    assert "another window" in said
    assert told(chatapp, key) == ["one"]


@pytest.mark.parametrize("command", [["undo"], ["branch", "1"]])
def test_a_closed_conversation_keeps_its_branch(chatapp: Shell, command: list[str]) -> None:
    """Until it is reopened."""
    key = ask(chatapp, "one")
    chatapp("sessions", "done", key)
    assert "reopen" in chatapp("sessions", command[0], key, *command[1:], code=1)


# --- the trash ---


def test_emptying_the_trash_asks(chatapp: Shell, watched: Callable[..., tuple[str, str]]) -> None:
    """On a terminal; without one --yes is needed. An empty trash needs no answer."""
    assert chatapp.json("sessions", "empty-trash") == {"deleted": [], "left": 0}
    kept, gone = ask(chatapp, "pear"), ask(chatapp, "kumquat")
    chatapp("sessions", "delete", gone)
    assert "--yes" in chatapp("sessions", "empty-trash", code=2)
    _, error = watched("sessions", "empty-trash", typed="n\n")
    assert "Delete the 1 conversation(s) in the trash for good?" in error
    assert ids(chatapp.json("sessions", "list", "--trash")) == [gone]
    assert chatapp.json("sessions", "empty-trash", "--yes") == {"deleted": [gone], "left": 0}
    assert ids(chatapp.json("sessions", "list")) == [kept]


def test_words_of_deleted_conversations_are_in_no_file(chatapp: Shell, tmp_path: Path) -> None:
    """The search index is emptied of them too."""
    gone = ask(chatapp, "kumquat 회의 北京")
    assert len(chatapp.json("sessions", "search", "北京")["hits"]) == 3
    chatapp("sessions", "delete", gone, "--forever")
    contents = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert [word for word in ("kumquat", "회의", "北京") if word.encode() in contents] == []
    assert chatapp.json("sessions", "search", "北京")["hits"] == []


def test_what_is_long_in_the_trash_goes_by_itself(chatapp: Shell, watched: Callable[..., tuple[str, str]]) -> None:
    """Any command for conversations deletes it, and says so to somebody who watches."""
    old, new = ask(chatapp, "old"), ask(chatapp, "new")
    for key in (old, new):
        chatapp("sessions", "delete", key)
    with closing(sqlite3.connect(chatapp.data_dir / "chat.db", isolation_level=None)) as db:
        db.execute("UPDATE sessions SET trashed_at = ? WHERE id = ?", [time.time() - TRASH_S - 60, old])
    out, error = watched("sessions", "list", "--trash", "--json")
    assert ids(json.loads(out)) == [new]
    assert "1 conversation(s) left the trash" in error


def test_a_trash_that_cannot_be_emptied_stops_nothing(chatapp: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command does what it was asked for, and one line says what did not happen."""

    def fail(*_: object) -> None:
        raise OSError("the KV store is kept busy")

    key = ask(chatapp, "kept")
    monkeypatch.setattr("sessions.purge.expire", fail)
    assert ids(chatapp.json("sessions", "list")) == [key]
    assert chatapp.stderr == "The trash could not be emptied of what is old: the KV store is kept busy\n"


def test_several_conversations_are_changed_at_once(chatapp: Shell) -> None:
    """Each once, and none if one of the ids is unknown."""
    keys = [chatapp.json("run", text)["session"] for text in ("one", "two", "three")]

    chatapp("sessions", "delete", keys[0], "nowhere", code=1)
    assert len(chatapp.json("sessions", "list")) == 3
    chatapp("sessions", "delete", keys[0], keys[1], keys[0])
    assert [row["id"] for row in chatapp.json("sessions", "list")] == [keys[2]]
    chatapp("sessions", "restore", keys[0], keys[1])
    chatapp("sessions", "pin", *keys)
    assert len(chatapp.json("sessions", "list", "--pinned")) == 3


def test_a_folder_that_cannot_be_written_is_read(chatapp: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """List, search, show and export work without a file being made; what changes something is refused in a sentence."""
    key = chatapp.json("run", "zebra")["session"]  # nobody has searched yet: the index is not there
    before = sorted(path.name for path in chatapp.data_dir.iterdir())
    monkeypatch.setattr(database, "is_writable", lambda _folder: False)
    monkeypatch.setattr(database, "_setup_lock", lambda _folder: pytest.fail("no lock can be made there"))

    assert chatapp.json("sessions", "list")[0]["id"] == key
    assert "zebra" in chatapp("sessions", "search", "zebra")
    assert "zebra" in chatapp("sessions", "show", key)
    assert "read-only: make it writable" in chatapp("sessions", "pin", key, code=1)
    assert "read-only: make it writable" in chatapp("sessions", "delete", key, code=1)
    assert sorted(path.name for path in chatapp.data_dir.iterdir()) == before
