"""Plain mode on a terminal: a pty that takes lines, Ctrl+C, pastes and a hang-up."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("a pty is POSIX's", allow_module_level=True)

from models.fake import echo
from sessions.conversation import Message
from sessions.store import Store
from tests.chatapp.plain_terminal import CTRL_C, CTRL_D, PlainTerminal

SLOW = "fake:20"
TASK = "Write a haiku about the autumn moon over a quiet lake."
OTHER = "How do I configure nginx as a reverse proxy with TLS for two servers?"


def stored(folder: Path) -> list[list[Message]]:
    """Return the messages of all conversations, the last used one first."""
    with closing(Store(folder / "data")) as store:
        return [store.messages(row.session.id) for row in store.summaries()]


def test_a_conversation_in_a_dumb_terminal(tmp_path: Path) -> None:
    """A terminal that can show no window gets plain mode, told in one line, without a single escape sequence."""
    with PlainTerminal(tmp_path, TERM="dumb") as terminal:
        terminal.wait_for("cannot show the chat window")
        terminal.enter("hello")
        terminal.wait_for("answered by the fake engine")
        terminal.enter("/quit")
        assert terminal.ended() == 0
        assert "\x1b" not in terminal.text
        assert terminal.text.replace("\r", "").count(echo("hello")) == 1
    assert [message.text for message in stored(tmp_path)[0]] == ["hello", echo("hello")]


def test_an_unset_terminal_is_a_dumb_one(tmp_path: Path) -> None:
    """Without TERM there is plain mode, and the window only for those who ask for it."""
    with PlainTerminal(tmp_path, TERM="") as terminal:
        terminal.wait_for("cannot show the chat window")
        terminal.enter("/quit")
        assert terminal.ended() == 0
    with PlainTerminal(tmp_path, "--no-plain", TERM="") as terminal:
        assert terminal.ended() == 2


def test_a_window_that_would_be_drawn_elsewhere(tmp_path: Path) -> None:
    """With stderr in a file there is plain mode, told in the terminal, and the file gets nothing drawn."""
    with (tmp_path / "errors").open("w") as errors, PlainTerminal(tmp_path, stderr=errors) as terminal:
        terminal.wait_for("drawn on stderr")
        terminal.enter("hello")
        terminal.wait_for("answered by the fake engine")
        terminal.enter("/quit")
        assert terminal.ended() == 0
    assert "\x1b" not in (tmp_path / "errors").read_text()


def test_no_colour_where_none_is_wanted(tmp_path: Path) -> None:
    """NO_COLOR is heeded; nothing moves the cursor."""
    with PlainTerminal(tmp_path, "--plain", NO_COLOR="1") as terminal:
        terminal.enter("hello")
        terminal.wait_for("answered by the fake engine")
        terminal.wait_for("> $")
        assert "\x1b" not in terminal.text


def test_ctrl_c_stops_the_answer_and_keeps_it(tmp_path: Path) -> None:
    """What was said by then is stored; at the prompt, Ctrl+C drops the line, and twice leaves."""
    with PlainTerminal(tmp_path, "--plain", CHATAPP_ENGINE=SLOW) as terminal:
        terminal.enter("hello")
        terminal.wait_for("You said: ")
        terminal.type(CTRL_C)
        terminal.wait_for("Stopped; the text so far is kept. /continue lets it go on.")
        [[_, answer]] = stored(tmp_path)
        assert answer.status == "stopped"
        terminal.wait_for("> $")
        terminal.type("half a line")
        terminal.wait_for("half a line")
        terminal.type(CTRL_C)
        terminal.wait_for("> $")
        terminal.type(CTRL_C)
        terminal.wait_for(r"Ctrl\+C once more leaves")
        terminal.wait_for("> $")
        terminal.type(CTRL_C)
        assert terminal.ended() == 0
    assert len(stored(tmp_path)[0]) == 2


def test_a_stopped_answer_goes_on_where_it_was(tmp_path: Path) -> None:
    """/continue tells what is new of the answer, and stores the whole."""
    with PlainTerminal(tmp_path, "--plain", CHATAPP_ENGINE=SLOW, NO_COLOR="1") as terminal:
        terminal.enter("hello")
        terminal.wait_for("You said: ")
        terminal.type(CTRL_C)
        terminal.wait_for("lets it go on")
        terminal.enter("/continue")
        terminal.wait_for("the same\n")
        terminal.wait_for("> $")
        assert terminal.text.count("You said") == 1
    assert stored(tmp_path)[0][1].text == echo("hello")


def test_a_paste_is_one_message(tmp_path: Path) -> None:
    """Line ends inside a bracketed paste do not send."""
    with PlainTerminal(tmp_path, "--plain") as terminal:
        terminal.enter("\x1b[200~one\ntwo\nthree\x1b[201~")
        terminal.wait_for("13 characters in 3 words")
    assert stored(tmp_path)[0][0].text == "one\ntwo\nthree"


def test_earlier_questions_come_back_and_nothing_else_is_written(tmp_path: Path) -> None:
    """Up brings back what was asked in earlier runs; the history is the store's, there is no file of it."""
    with PlainTerminal(tmp_path, "--plain", HOME=str(tmp_path)) as terminal:
        terminal.enter("the first question")
        terminal.wait_for("answered by")
        terminal.wait_for("> $")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    with PlainTerminal(tmp_path, "--plain", HOME=str(tmp_path)) as terminal:
        terminal.wait_for("> $")
        terminal.type("\x1b[A")
        terminal.wait_for("the first question")
        terminal.type("\r")
        terminal.wait_for("answered by")
        terminal.wait_for("> $")
    assert [messages[0].text for messages in stored(tmp_path)] == ["the first question"] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "data"]


def test_a_resumed_conversation_says_what_came_from_disk(tmp_path: Path) -> None:
    """Tokens that were restored and the time that took are one line."""
    with PlainTerminal(tmp_path, "--plain") as terminal:
        terminal.enter("hello")
        terminal.wait_for("answered by")
        terminal.enter("/quit")
        assert terminal.ended() == 0
    with PlainTerminal(tmp_path, "--plain", "--session", "last") as terminal:
        terminal.wait_for("Opened: hello, 2 messages")
        assert int(terminal.wait_for(r"Restored (\d+) tokens from disk in")[1]) > 10
        terminal.enter("/show")
        terminal.wait_for("You said: [*][*]hello")


def test_a_message_of_another_task_asks_with_numbers(tmp_path: Path) -> None:
    """The ways are numbered lines; a number that is none asks again, an empty line sends nothing."""
    with PlainTerminal(tmp_path, "--plain", CHATAPP_POLICY="ask") as terminal:
        terminal.enter(TASK)
        terminal.wait_for("answered by")
        terminal.enter(OTHER)
        terminal.wait_for("This looks like another task.*\n.*1. New conversation.*\n.*2. Keep it here")
        terminal.wait_for("Number: $")
        terminal.type("9\r")
        terminal.wait_for("Type a number from 1 to 3")
        terminal.wait_for("Number: $")
        terminal.type("\r")
        terminal.wait_for("The message was not sent")
        assert len(stored(tmp_path)[0]) == 2
        terminal.enter(OTHER)
        terminal.wait_for("Number: $")
        terminal.type("1\r")
        terminal.wait_for("You said: [*][*]How do I")
        terminal.wait_for("> $")
    assert [messages[0].text for messages in stored(tmp_path)] == [OTHER, TASK]


def test_the_policy_strict_wants_another_task_line_first(tmp_path: Path) -> None:
    """There is no way to keep the message here but by changing the task line, which is asked for."""
    with PlainTerminal(tmp_path, "--plain", CHATAPP_POLICY="strict") as terminal:
        terminal.enter(TASK)
        terminal.wait_for("answered by")
        terminal.enter(OTHER)
        terminal.wait_for("2. Change the task line")
        terminal.wait_for("Number: $")
        terminal.type("2\r")
        terminal.wait_for("Task line: ")
        terminal.type(" And nginx.\r")
        terminal.wait_for("You said: [*][*]How do I")
        terminal.enter("/task")
        terminal.wait_for("The task: .*And nginx.")
    assert len(stored(tmp_path)[0]) == 4


def test_a_full_context_offers_what_is_possible(tmp_path: Path) -> None:
    """A message that does not fit is not sent, and turns can be left out by their numbers."""
    with PlainTerminal(tmp_path, "--plain", CHATAPP_CTX="1000") as terminal:
        terminal.enter("a" * 500)
        terminal.wait_for("answered by")
        terminal.enter("b" * 300)
        terminal.wait_for("the context has 1,000. Nothing was sent.")
        number = terminal.wait_for(r"(\d)\. Leave out turns")[1]
        terminal.wait_for("Number: $")
        terminal.type(f"{number}\r")
        terminal.wait_for("1. .* tokens: aaaa")
        terminal.wait_for("leave out: $")
        terminal.type("1\r")
        terminal.wait_for("goes on in a copy")
        terminal.wait_for("You said: [*][*]bbb")
        terminal.wait_for("> $")
    assert [message.text[0] for message in stored(tmp_path)[0]] == ["b", "Y"]


def test_deleting_for_good_asks(tmp_path: Path) -> None:
    """The first way keeps the conversation; only the second deletes it."""
    with PlainTerminal(tmp_path, "--plain") as terminal:
        terminal.enter("hello")
        terminal.wait_for("answered by")
        terminal.enter("/trash")
        terminal.wait_for("In the trash: hello")
        terminal.enter("/list trash")
        terminal.wait_for("1. hello, 2 messages")
        for number, said in (("1", "Nothing was deleted"), ("2", "Deleted for good: hello")):
            terminal.enter("/delete 1")
            terminal.wait_for("Number: $")
            terminal.type(f"{number}\r")
            terminal.wait_for(said)
        terminal.enter("/list trash")
        terminal.wait_for("There is no such conversation")


def test_a_question_is_asked_in_another_version(tmp_path: Path) -> None:
    """The old question stands in the line to be changed; both versions are kept."""
    with PlainTerminal(tmp_path, "--plain") as terminal:
        terminal.enter("hello")
        terminal.wait_for("answered by")
        terminal.enter("/revise")
        terminal.wait_for("Question: hello")
        terminal.type(" there\r")
        terminal.wait_for("You said: [*][*]hello there")
        terminal.enter("/tree")
        terminal.wait_for(r"\d+ user  hello\n")
        terminal.wait_for(r"[*] .*\d+ user  hello there\n")


def test_the_editor_writes_a_message(tmp_path: Path) -> None:
    """What is saved there is sent; an empty text is not."""
    script = tmp_path / "editor.py"
    script.write_text("import sys, pathlib; p = pathlib.Path(sys.argv[1]); p.write_text(p.read_text() * 2)")
    with PlainTerminal(tmp_path, "--plain", EDITOR=f"{sys.executable} {script}", VISUAL="") as terminal:
        terminal.enter("/edit abc")
        terminal.wait_for("You said: [*][*]abcabc")
        terminal.enter("/edit")
        terminal.wait_for("Nothing was written")


def test_hostile_text_reaches_the_terminal_as_glyphs(tmp_path: Path) -> None:
    """What a model writes commands nothing, in an answer and in a list."""
    with closing(Store(tmp_path / "data")) as store:
        store.create_session(system="\x1b]0;owned\x07\x9b2J")
    with PlainTerminal(tmp_path, "--plain", "--session", "last", NO_COLOR="1") as terminal:
        terminal.enter("/system")
        terminal.wait_for("␛]0;owned␇")
        terminal.wait_for("> $")
        assert "\x1b" not in terminal.text


def test_a_closed_terminal_keeps_the_answer(tmp_path: Path) -> None:
    """A hang-up in the middle of an answer ends the program, and stores what was said."""
    with PlainTerminal(tmp_path, "--plain", CHATAPP_ENGINE=SLOW) as terminal:
        terminal.enter("hello")
        terminal.wait_for("You said: ")
        terminal.hang_up()
        assert terminal.process.wait(60) == 129
    [[_, answer]] = stored(tmp_path)
    assert answer.status == "stopped"
    assert answer.text.startswith("You said")
