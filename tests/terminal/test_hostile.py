"""The window in bad company: hostile text, a terminal that shrinks, stops, closes or says nothing of itself."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest

from models.engine import Sampling
from models.fake import FakeEngine
from sessions.journal import recover
from sessions.manager import SessionManager
from sessions.store import Store
from tests.chatapp.escapes import CORPUS, WHOLE, storable
from tests.terminal.rawterminal import RawTerminal
from tests.terminal.terminal import options

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pseudo terminals and /proc as Linux has them"),
    pytest.mark.timeout(240),
]

OURS = re.compile(
    rb"\x1b\[[0-9;]*m"  # colours
    rb"|\x1b\[\d+;\d+H"  # where the next row begins, and where the cursor rests
    rb"|\x1b\[\?(?:2026|2048|2004|1000|1002|1003|1004|1006|1015|1016|1049|7|25)[hl]"  # modes, each on and off again
    rb"|\x1b\[\?2026\$p|\x1b\[\?2048\$p"  # whether there are some of them
    rb"|\x1b\[>\d+u|\x1b\[<u"  # the keyboard's protocol
    rb"|\x1b\]22;[a-z-]+\x07"  # the pointer's shape
    rb"|\r?\n"
)
"""All that the window has to say to a terminal beside text."""


def live(sent: bytes) -> str:
    """What a terminal would obey in a program's bytes beyond what the window says, with what is around it."""
    text = OURS.sub(b"", sent).decode("utf-8", "replace")
    found = re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u206f\U000e0000-\U000e007f]", text)
    return repr(text[max(0, found.start() - 60) : found.end() + 60]) if found else ""


def store_hostile(folder: Path, reply: str = "") -> str:
    """Store a conversation of which everything is hostile, an answer for each text of the corpus; return its id."""

    async def fill(manager: SessionManager) -> str:
        session_id = manager.new(system=storable(WHOLE)).id
        for text in map(storable, CORPUS.values()):
            async for _ in manager.send(session_id, f"EVIL {text}", Sampling()):
                pass
        manager.rename(session_id, f"EVIL {storable(WHOLE)}")
        manager.set_task(session_id, f"EVIL task {storable(WHOLE)}")
        return session_id

    with closing(Store(folder / "data")) as store:
        engine = FakeEngine(lambda text: f"<think>{text}</think>{text}{reply}")
        return asyncio.run(fill(SessionManager(store, engine)))


def flags(folder: Path, engine: str = "fake") -> list[str]:
    """Flags for a window over the folder."""
    return [*options(folder), "--engine", engine]


def test_no_byte_of_a_hostile_conversation_is_live(tmp_path: Path) -> None:
    """Opened, scrolled, folded open and searched in the real window: the terminal gets nothing but what is ours."""
    session_id = store_hostile(tmp_path)
    with RawTerminal(*flags(tmp_path), "--session", session_id) as terminal:
        terminal.wait_for("EVIL")
        terminal.wait_for("context|written|resident")
        for keys in ("\x1b[15~", *["\x1b[5~"] * 12, "\x1b[1;3A", "\x1b[1;3A", "\x06EVIL"):
            terminal.type(keys)
            terminal.read(0.2)
        terminal.wait_for("EVIL")
        terminal.type("\x1b")
        terminal.paste(storable(WHOLE).replace("\x1b[201~", ""))
        terminal.wait_for("EVIL|␛")
        terminal.type("\x11")
        assert terminal.exit_code() == 0
    assert b"EVIL" in terminal.sent
    assert "␛".encode() in terminal.sent
    assert live(terminal.sent) == ""
    # What the window says too, but only at its end, or never.
    assert terminal.sent.count(b"\x1b[?1049l") == 1
    assert terminal.sent.count(b"\x1b[?2004l") == 1
    assert b"\x1b[8m" not in terminal.sent


def test_the_capture_can_find_something() -> None:
    """What is ours is let through, and each live text of the corpus is not."""
    assert live(b"\x1b[?1049h\x1b[38;2;1;2;3mEVIL\x1b[0m\x1b[3;4H\x1b[?2026h") == ""
    missed = {name for name, text in CORPUS.items() if not live(storable(text).encode())}
    said_by_us = {"CSI 8m, hidden", "CSI ?1049l, other screen", "CSI ?2004l, no bracketed paste"}
    invisible = {"annotation", "byte order mark", "line separators", "NUL", "surrogates"}
    assert missed == said_by_us | invisible | {"markup"}


def test_commands_show_hostile_text_clean(tmp_path: Path) -> None:
    """Lists, a conversation and an answer, written to a terminal."""
    session_id = store_hostile(tmp_path)
    for command in (["sessions", "list"], ["sessions", "show", session_id], ["run", "EVIL \x1b]52;c;UFdORUQ=\x07"]):
        with RawTerminal(*flags(tmp_path), *command, width=200) as terminal:
            terminal.exit_code()
        assert b"EVIL" in terminal.sent, command
        rest = re.sub(rb"\r\x1b\[K", b"", terminal.sent)
        assert live(rest) == "", command


def test_a_terminal_of_one_cell_loses_nothing(tmp_path: Path) -> None:
    """Resized to 1x1 while an answer is written, and back: the answer is whole, on the screen and in the store."""
    text = " ".join(f"w{n}" for n in range(120))
    with RawTerminal(*flags(tmp_path, "fake:30")) as terminal:
        terminal.wait_for("Message")
        terminal.paste(text)
        terminal.type("\r")
        terminal.wait_for("You said: w0 w1")
        terminal.resize(1, 1)
        terminal.read(0.5)
        terminal.resize(3, 2)
        terminal.read(0.5)
        terminal.resize(100, 30)
        terminal.wait_for("which always says the same")
        terminal.wait_for("w119")
        terminal.wait_for("written .*[1-9]")
        terminal.type("\x11")
        assert terminal.exit_code() == 0
    with closing(Store(tmp_path / "data")) as store:
        (session,) = store.summaries()
        answer = store.messages(session.session.id)[-1]
        assert answer.status == "complete"
        assert answer.text.startswith("You said:")
        assert "which always says the same" in " ".join(answer.text.split())


def test_a_closed_terminal_leaves_the_answer_so_far(tmp_path: Path) -> None:
    """SIGHUP: the program ends, and the part of the answer that was written is there, marked as interrupted."""
    with RawTerminal(*flags(tmp_path, "fake:20")) as terminal:
        terminal.wait_for("Message")
        terminal.paste(" ".join(f"w{n}" for n in range(400)))
        terminal.type("\r")
        terminal.wait_for("You said: w0 w1 w2 w3 w4 w5 w6")
        terminal.hang_up()
        terminal.exit_code()
    with closing(Store(tmp_path / "data")) as store:
        recover(store)
        (session,) = store.summaries()
        question, answer = store.messages(session.session.id)
        assert question.text.endswith("w399")
        assert answer.status == "interrupted"
        assert answer.text.startswith("You said:")
        assert "always says the same" not in " ".join(answer.text.split())


def test_a_suspended_window_comes_back(tmp_path: Path) -> None:
    """SIGTSTP gives the terminal back and stops the program; SIGCONT paints the window anew, the draft in it."""
    with RawTerminal(*flags(tmp_path)) as terminal:
        terminal.wait_for("Message")
        terminal.type("my draft")
        terminal.wait_for("my draft")
        terminal.signal(signal.SIGTSTP)
        terminal.wait_for_state("Tt")
        while terminal.read(0.2) and not terminal.sent.endswith(b"\x1b[?1004l"):
            pass
        assert terminal.sent.rindex(b"\x1b[?1049l") > terminal.sent.rindex(b"\x1b[?1049h")
        n_sent = len(terminal.sent)
        terminal.signal(signal.SIGCONT)
        terminal.wait_for_state("SR")
        terminal.type("!")
        terminal.wait_for("my draft!")
        assert b"\x1b[?1049h" in terminal.sent[n_sent:]
        terminal.type("\x11")
        assert terminal.exit_code() == 0


@pytest.mark.parametrize(
    "env",
    [
        {"TERM": ""},
        {"TERM": "no-such-terminal"},
        {"TERM": "vt100"},
        {"LANG": "C", "LC_ALL": "C"},
        {"LANG": "", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"},
        {"LANG": "xx_YY.nonsense"},
        {"NO_COLOR": "1"},
        {"COLORTERM": "", "TERM": "xterm"},
        {"TERM": "screen", "TMUX": "/tmp/none,1,0"},
    ],
    ids=lambda env: " ".join(f"{name}={value}" for name, value in env.items()),
)
def test_a_terminal_that_says_little_is_enough(tmp_path: Path, env: dict[str, str]) -> None:
    """Without TERM, with an unknown one, in another locale or without colours: a chat, in the window or plain."""
    with RawTerminal(*flags(tmp_path), env=env) as terminal:
        mode = terminal.wait_for("Message|plain mode")[0]
        terminal.type("hello 한글")
        terminal.wait_for("hello")
        terminal.type("\r")
        terminal.wait_for(r"You said: \W*hello")
        if mode == "plain mode":
            terminal.wait_for(r"always says the same(.|\n)*> ")
            terminal.type("\x04")
            assert terminal.exit_code() == 0
            assert live(terminal.sent.replace(b"\r", b"")) == ""
            return
        if "NO_COLOR" in env:
            colours = {tuple(one.split(b";")[2:5]) for one in re.findall(rb"[34]8;2;\d+;\d+;\d+", terminal.sent)}
            assert all(len({*one}) == 1 for one in colours)
        terminal.type("\x11")
        assert terminal.exit_code() == 0
