import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from chatapp.plain import verbs
from chatapp.plain.lines import Gathering, PipeReader
from models.fake import echo
from sessions.conversation import Message
from sessions.store import Store
from tests.chatapp.plain_terminal import ROOT, environment

posix_only = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def piped(tmp_path: Path) -> Run:
    """Run `chatapp ARGUMENTS` over its own folders, with these bytes on stdin and pipes for its output."""

    def run(*arguments: str, stdin: bytes = b"", **variables: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "chatapp", *arguments],
            cwd=ROOT,
            env=environment(tmp_path, **variables),
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )

    return run


def stored(folder: Path) -> list[list[Message]]:
    """Return the messages of all conversations, the last used one first."""
    with closing(Store(folder / "data")) as store:
        return [store.messages(row.session.id) for row in store.summaries()]


# --- no terminal ---


def test_a_pipe_is_one_question_and_the_answer_alone_is_on_stdout(piped: Run, tmp_path: Path) -> None:
    """What comes on stdin is one message, line ends and slashes included, and is kept as a conversation."""
    done = piped(stdin=b"/list\nof two lines\n")
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, echo("/list\nof two lines"), b"")
    assert [message.text for message in stored(tmp_path)[0]] == ["/list\nof two lines", echo("/list\nof two lines")]


@pytest.mark.parametrize("arguments", [[], ["--plain"], ["--session", "last"]])
@pytest.mark.parametrize("stdin", [b"", b" \n\n"])
def test_without_a_message_there_is_one_sentence(piped: Run, arguments: list[str], stdin: bytes) -> None:
    """Nothing on stdin is wrong usage, told before anything is opened or loaded."""
    done = piped(*arguments, stdin=stdin, CHATAPP_ENGINE="llama", CHATAPP_MODEL="/no/such.gguf")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 1
    assert b"needs a terminal" in done.stderr


def test_a_closed_stdin_is_an_empty_one(tmp_path: Path) -> None:
    """A program that is started without stdin says the same sentence."""
    command = f"exec {sys.executable} -m chatapp --plain <&-"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, env=environment(tmp_path), capture_output=True, check=False)
    assert done.returncode == 2
    assert b"needs a terminal" in done.stderr


def test_no_plain_leaves_nothing_without_a_terminal(piped: Run) -> None:
    """Who wants the window and nothing else is told that there can be none."""
    done = piped("--no-plain", stdin=b"hello")
    assert done.returncode == 2
    assert b"--no-plain" in done.stderr


def test_plain_belongs_to_no_command(piped: Run) -> None:
    """`chatapp --plain run` is wrong usage: `run` is plain anyway."""
    assert piped("--plain", "run", "hello").returncode == 2


@pytest.mark.parametrize(("flags", "variables"), [(["--plain"], {}), ([], {"CHATAPP_PLAIN": "on"})])
def test_in_plain_mode_each_line_of_a_pipe_is_a_message(
    piped: Run, tmp_path: Path, flags: list[str], variables: dict[str, str]
) -> None:
    """Lines are messages of one conversation, blocks and backslashes make longer ones, two slashes are one."""
    lines = 'one\n\n"""\ntwo\n/lines\n"""\n//path\nlong \\\nline\n'
    done = piped(*flags, stdin=lines.encode(), **variables)
    questions = ["one", "two\n/lines", "/path", "long \nline"]
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == "".join(map(echo, questions))
    [messages] = stored(tmp_path)
    assert [message.text for message in messages if message.role == "user"] == questions


def test_commands_work_in_a_pipe(piped: Run, tmp_path: Path) -> None:
    """What is not done is told on stderr and is the exit code; the other lines are done all the same."""
    lines = "one\n/title Numbers\n/tag sums\n/nonsense\n/new\ntwo\n/list\n/delete 1\n/quit\nnever\n"
    done = piped("--plain", stdin=lines.encode())
    assert done.returncode == 1
    listed = done.stdout.decode().removeprefix(echo("one") + echo("two")).splitlines()
    assert [line.split(",")[0] for line in listed] == ["1. two", "2. Numbers"]
    assert "#sums" in listed[1]
    assert "There is no command /nonsense" in done.stderr.decode()
    assert "Only what is in the trash" in done.stderr.decode()
    assert len(stored(tmp_path)) == 2


def test_a_conversation_goes_on_in_a_pipe(piped: Run, tmp_path: Path) -> None:
    """`--session last` puts the question behind what was said."""
    piped(stdin=b"one")
    assert piped("--session", "last", stdin=b"two").stdout.decode() == echo("two")
    [messages] = stored(tmp_path)
    assert [message.text for message in messages] == ["one", echo("one"), "two", echo("two")]
    assert piped("--session", "zzz", stdin=b"three").returncode == 1


def test_an_answer_goes_raw_into_a_pipe(piped: Run) -> None:
    """Into a pipe bytes go as they are: they are data there."""
    assert b"\x1b[31m" in piped(stdin=b"\x1b[31mred").stdout


def test_damaged_input_is_replaced_and_told(piped: Run, tmp_path: Path) -> None:
    """Bytes that are no text cost a character each and no traceback."""
    done = piped(stdin=b"a\xffb\0c")
    assert done.stderr == b"2 damaged character(s) in the input were replaced.\n"
    assert stored(tmp_path)[0][0].text == "a\ufffdb\ufffdc"


@pytest.mark.parametrize("variables", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"LANG": "xx_YY.nonsense"}])
def test_a_wrong_locale_costs_characters_and_nothing_else(
    piped: Run, tmp_path: Path, variables: dict[str, str]
) -> None:
    """What a locale cannot write is replaced in the output; the store has all of it."""
    done = piped("--plain", stdin="한강\n/list\n".encode(), **variables)
    assert (done.returncode, done.stderr) == (0, b"")
    assert stored(tmp_path)[0][0].text == "한강"


def test_a_message_of_another_task_is_not_sent_where_nobody_can_be_asked(piped: Run, tmp_path: Path) -> None:
    """The policy holds in a pipe: the line is refused, told and not stored; /policy off lets it go."""
    task = "Write a haiku about the autumn moon over a quiet lake."
    other = "How do I configure nginx as a reverse proxy with TLS for two servers?"
    refused = piped("--plain", stdin=f"{task}\n{other}\n".encode(), CHATAPP_POLICY="ask")
    assert refused.returncode == 1
    assert "looks like another task" in refused.stderr.decode()
    assert len(stored(tmp_path)[0]) == 2
    allowed = piped("--plain", "--session", "last", stdin=f"/policy off\n{other}\n".encode(), CHATAPP_POLICY="ask")
    assert allowed.returncode == 0
    assert len(stored(tmp_path)[0]) == 4


def test_files_are_attached_exported_and_imported(piped: Run, tmp_path: Path) -> None:
    """A file goes with the next message only, and a conversation to a file and back."""
    note, exported = tmp_path / "note.txt", tmp_path / "talk.json"
    note.write_text("the text of the note\n", encoding="utf-8")
    lines = f"/attach {note}\nWhat is it?\nAnd now?\n/export {exported}\n/import {exported}\n/attach /no/file\n"
    done = piped("--plain", stdin=lines.encode())
    assert done.returncode == 1
    first, _, second, _ = stored(tmp_path)[0]
    assert ("the text of the note" in first.text, second.text) == (True, "And now?")
    assert json.loads(exported.read_text(encoding="utf-8"))
    assert "0 added, 1 already there" in done.stderr.decode()
    assert "/no/file cannot be read" in done.stderr.decode()


def test_branches_can_be_made(piped: Run, tmp_path: Path) -> None:
    """Answers once more, forks and taking back do what they do in the window."""
    done = piped("--plain", stdin=b"one\n/again\n/fork\ntwo\n/undo\n/tree\n/system Be brief.\n/system\n/continue\n")
    assert done.returncode == 1  # nothing is unfinished
    assert "could go on" in done.stderr.decode()
    assert done.stdout.decode().count("You said: **one**") == 3  # twice as an answer, once in the tree
    conversations = stored(tmp_path)
    assert [[message.role for message in messages] for messages in conversations] == [
        ["system", "user", "assistant"],
        ["user", "assistant"],
        ["user", "assistant"],
    ]


def test_what_an_answer_cost_is_one_line(piped: Run) -> None:
    """/stats tells of the last answer on stdout, and of each on stderr once that is wanted."""
    done = piped("--plain", stdin=b"one\n/stats\n/stats on\ntwo\n/cost\n")
    measured = r"Measured: TTFT .*, TPOT .*, written \d+ tokens, prompt \d+ tokens, resident \d+, .*prefilled \d+"
    assert re.search(measured, done.stdout.decode())
    assert re.search(measured, done.stderr.decode())
    assert "coming back" in done.stdout.decode()


@posix_only
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_and_keeps_the_text(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """What was said by then is stored as stopped, further lines are not sent, and the shell is told the signal."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "chatapp", "--plain"],
        cwd=ROOT,
        env=environment(tmp_path, CHATAPP_ENGINE="fake:20"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"one\ntwo\n")
    process.stdin.flush()
    begun = process.stdout.read(4)
    process.send_signal(number)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    [[question, answer]] = stored(tmp_path)
    assert (question.text, answer.status) == ("one", "stopped")
    assert (begun + rest).decode().strip() == answer.text.strip()


@posix_only
def test_a_reader_that_goes_away_ends_it(tmp_path: Path) -> None:
    """As with `| head -1`: the answer so far is kept and no traceback is printed."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "chatapp"],
        cwd=ROOT,
        env=environment(tmp_path, CHATAPP_ENGINE="fake:40"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"one")
    process.stdin.close()
    assert process.stdout.read(1) == b"Y"
    process.stdout.close()
    assert process.stderr
    with process.stderr as errors:
        assert (errors.read(), process.wait(60)) == (b"", 1)
    [[_, answer]] = stored(tmp_path)
    assert answer.text.startswith("Y")
    assert answer.status == "stopped"


def test_plain_mode_never_loads_the_window(tmp_path: Path) -> None:
    """Answering messages and doing commands imports nothing of Textual."""
    script = """
import atexit, sys
atexit.register(lambda: print([name for name in sys.modules if name.startswith("textual")]))
sys.argv[1:] = ["--plain"]
from chatapp.__main__ import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=environment(tmp_path),
        input=b"hello\n/list\n/help\n",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines()[-1] == "[]"


# --- the parts ---


@pytest.mark.parametrize(
    ("lines", "text", "is_literal"),
    [
        (["one"], "one", False),
        (['"""one"""'], "one", True),
        (['"""', "", '/a"b', '"""'], '\n/a"b', True),
        (['"""a', 'b"""'], "a\nb", True),
        (['"""a\nb\n"""'], "a\nb", True),
        (["a\\", "b\\\\"], "a\nb\\\\", False),
        (["a\nb\\", ""], "a\nb\n", False),
    ],
)
def test_lines_make_a_message(lines: list[str], text: str, is_literal: bool) -> None:
    """A block ends at its fence, a line goes on behind an odd number of backslashes."""
    gathering = Gathering()
    *before, last = lines
    assert not any(gathering.add(line) for line in before)
    assert gathering.add(last)
    assert (gathering.taken().text, gathering.taken().is_literal) == (text, is_literal)


def test_a_pipe_without_text_ends_at_once() -> None:
    """A reader over nothing has no text and no line."""
    reader = PipeReader(None, is_literal=False)
    assert not reader.has_text()
    assert reader.read("") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/", "There is no command /"),
        ("/ list", "There is no command /"),
        ("/undo it", "takes nothing"),
        ("/open", "/open N|ID|last"),
    ],
)
def test_a_command_that_cannot_be_done_says_why(text: str, said: str) -> None:
    """One sentence, with what would be right."""
    found = verbs.find(text)
    assert isinstance(found, str)
    assert said in found


def test_names_and_files_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tab knows the commands, and the files behind those that take one; hidden ones when their dot is typed."""
    for name in ("note.txt", "note two.txt", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    assert sorted(verbs.completed("/re")) == ["/reasoning ", "/rename ", "/restore ", "/revise "]
    assert verbs.completed("/attach n") == ["/attach note two.txt", "/attach note.txt"]
    assert verbs.completed("/attach ") == ["/attach folder/", "/attach note two.txt", "/attach note.txt"]
    assert verbs.completed(f"/export {tmp_path}/.h") == [f"/export {tmp_path}/.hidden"]
    assert verbs.completed("/attach /no/such/") == []
    assert list(verbs.completed("/rename n")) == list(verbs.completed("re")) == []
