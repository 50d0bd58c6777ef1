import io
import json
from pathlib import Path

import click
import pytest

from sessions.prompts import text_hash
from tests.chatapp.test_cli import Shell

VOLATILE = "You are kind.\nToday is Monday."
PUT = "changes from run to run, so its KV is computed anew each time: put it into the message."


@pytest.fixture
def chatapp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The command line over empty folders."""
    return Shell(tmp_path, monkeypatch)


def test_a_prompt_comes_from_argument_stdin_or_file(chatapp: Shell, tmp_path: Path) -> None:
    """Each way gives the same text, and it is printed as it is."""
    (tmp_path / "p.txt").write_bytes(b"\xef\xbb\xbfBe brief.\r\nBe kind.\n")
    chatapp("prompts", "add", "a", "Be brief.\nBe kind.")
    chatapp("prompts", "add", "b", stdin=b"Be brief.\nBe kind.\n")
    chatapp("prompts", "add", "c", "-", stdin=b"Be brief.\r\nBe kind.")
    chatapp("prompts", "add", "d", "--file", str(tmp_path / "p.txt"))
    assert [chatapp("prompts", "show", name) for name in "abcd"] == ["Be brief.\nBe kind.\n"] * 4
    assert {prompt["hash"] for prompt in chatapp.json("prompts", "list")} == {text_hash("Be brief.\nBe kind.")}


def test_damaged_bytes_are_told(chatapp: Shell) -> None:
    """What is no UTF-8 is replaced and counted, as everywhere."""
    chatapp("prompts", "add", "a", stdin=b"caf\xe9")
    assert "1 damaged" in chatapp.stderr
    assert chatapp("prompts", "show", "a") == "caf\ufffd\n"


def test_text_and_file_do_not_go_together(chatapp: Shell, tmp_path: Path) -> None:
    """Of two texts neither is taken."""
    (tmp_path / "p.txt").write_text("x")
    assert "--file" in chatapp("prompts", "add", "a", "text", "--file", str(tmp_path / "p.txt"), code=2)
    assert chatapp.json("prompts", "list") == []


def test_prompts_are_listed_with_their_use(chatapp: Shell) -> None:
    """A line for each: name, hash, conversations, time, beginning of the text."""
    chatapp("prompts", "add", "long", "First line\nsecond line")
    chatapp("prompts", "add", "ab", "Other")
    chatapp("run", "hello", "--system", "@long")
    first, second = (line.split() for line in chatapp("prompts", "list").splitlines())
    assert [first[0], first[1], first[2]] == ["ab", text_hash("Other"), "0"]
    assert [second[0], second[2], *second[5:]] == ["long", "1", "First", "line", "second", "line"]
    assert [prompt["sessions"] for prompt in chatapp.json("prompts", "list")] == [0, 1]


def test_prompts_change(chatapp: Shell) -> None:
    """Edit, rename and remove; the changed prompt is printed as JSON; nobody is asked without --yes."""
    chatapp("prompts", "add", "a", "first")
    assert chatapp.json("prompts", "edit", "a", "second")["text"] == "second"
    assert chatapp.json("prompts", "rename", "a", "b")["name"] == "b"
    assert "--yes" in chatapp("prompts", "remove", "b", code=2)
    assert chatapp.json("prompts", "remove", "b", "--yes")["name"] == "b"
    assert "no prompt 'b'" in chatapp("prompts", "show", "b", code=1)


def test_without_a_text_the_editor_opens(chatapp: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a terminal a prompt is written, or changed from what it was, in the editor; an empty one is refused."""

    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    shown: list[str | None] = []

    def edit(text: str | None = None, **_: object) -> str | None:
        shown.append(text)
        return f"{text}more" if len(shown) < 3 else None

    monkeypatch.setattr(click, "edit", edit)
    monkeypatch.setattr(io, "TextIOWrapper", Terminal)
    chatapp("prompts", "add", "a", "first ")
    chatapp("prompts", "edit", "a")
    chatapp("prompts", "add", "b")
    assert "empty" in chatapp("prompts", "edit", "a", code=1)
    assert shown == ["first ", "", "first more"]
    assert chatapp("prompts", "show", "b") == "more\n"


def test_system_takes_a_name(chatapp: Shell) -> None:
    """@NAME is the text of that prompt, @@ begins a text with @, an unknown name is an error and nothing is asked."""
    chatapp("prompts", "add", "a", "Be brief.")
    named = chatapp.json("run", "hello", "--system", "@a")["session"]
    literal = chatapp.json("run", "hello", "--system", "@@a")["session"]
    assert chatapp.json("sessions", "show", named)["system"] == "Be brief."
    assert chatapp.json("sessions", "show", literal)["system"] == "@a"
    chatapp("run", "hello", "--system", "@b", code=1)
    assert "`chatapp prompts list`" in chatapp.stderr
    assert len(chatapp.json("sessions", "list")) == 2
    assert chatapp("run", "hello", "--ephemeral", "--system", "@a") == chatapp("run", "hello")


def test_a_text_needs_no_library(chatapp: Shell) -> None:
    """A run that keeps nothing does not even make the database for a text that begins with @."""
    chatapp("run", "hello", "--ephemeral", "--system", "@@a")
    assert not (chatapp.data_dir / "chat.db").exists()


def test_a_batch_takes_a_name(chatapp: Shell) -> None:
    """Every row is answered under the prompt: as many tokens are in it as with its text."""
    chatapp("prompts", "add", "a", "Be brief.")
    row = b'{"id": 1, "prompt": "x"}\n'
    named, written, other = (
        json.loads(chatapp("batch", "-", "--system", system, stdin=row))["stats"]["prompt_tokens"]
        for system in ("@a", "Be brief.", "x")
    )
    assert named == written > other
    assert "no prompt 'b'" in chatapp("batch", "-", "--system", "@b", stdin=row, code=1)


def test_what_changes_in_a_prompt_is_warned_of(chatapp: Shell) -> None:
    """One line on stderr for each finding, wherever a prompt is given; nothing else is different."""
    chatapp("prompts", "add", "a", VOLATILE)
    assert chatapp.stderr.splitlines() == [
        f"Line 2 of the system prompt has what is true today only, 'Today is Monday', which {PUT}"
    ]
    for arguments in (
        ("prompts", "edit", "a", VOLATILE),
        ("run", "hello", "--system", "@a"),
        ("run", "hello", "--system", VOLATILE),
    ):
        chatapp(*arguments)
        assert chatapp.stderr.count(PUT) == 1
    assert "stats" in chatapp.json("run", "hello", "--system", "@a")
    chatapp("run", "hello", "--system", "You are kind.")
    assert chatapp.stderr == ""
    chatapp("prompts", "add", "many", "\n".join(f"Date: 2026-11-{day}" for day in range(10, 20)))
    assert (chatapp.stderr.count(PUT), "7 more" in chatapp.stderr) == (3, True)


def test_what_is_warned_of_can_not_command_the_terminal(chatapp: Shell) -> None:
    """Text of a prompt reaches stderr as text."""
    chatapp("prompts", "add", "a", "{{now\x1b[2J}}")
    assert PUT in chatapp.stderr
    assert "\x1b" not in chatapp.stderr


def test_a_conversation_gets_another_system_prompt(chatapp: Shell) -> None:
    """The fork's id is printed; text, @NAME and stdin; the first conversation keeps its own."""
    chatapp("prompts", "add", "a", "From the library.")
    key = chatapp.json("run", "hello", "--system", "old")["session"]
    forks = [
        chatapp("sessions", "system", key, "Given.").strip(),
        chatapp("sessions", "system", key[:-1], "@a").strip(),
        chatapp("sessions", "system", key, "-", stdin=b"From stdin.\n").strip(),
        chatapp.json("sessions", "system", key, "@@literal")["id"],
    ]
    systems = [chatapp.json("sessions", "show", fork)["system"] for fork in (*forks, key)]
    assert systems == ["Given.", "From the library.", "From stdin.", "@literal", "old"]
    assert chatapp("sessions", "system", key, "old").strip() == key
    assert "empty" in chatapp("sessions", "system", key, "-", code=1)
    chatapp("sessions", "system", key, VOLATILE)
    assert PUT in chatapp.stderr
