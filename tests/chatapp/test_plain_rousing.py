"""Signals that meet the reading of a line where Python alone would not tell of them."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("a pty is POSIX's", allow_module_level=True)

from tests.chatapp.plain_terminal import PlainTerminal

_PROGRAM = """
import asyncio, ctypes, functools, os, readline, signal
from chatapp.plain.bridge import Bridge
from chatapp.plain.lines import TerminalReader

send = functools.partial(ctypes.CDLL(None).kill, os.getpid(), int(sys.argv[1]))
where = sys.argv[2]

class Reader(TerminalReader):
    def read(self, *arguments, **named):
        line = super().read(*arguments, **named)
        if where == "behind":
            send()
        return line

def complete(text):
    if where == "completion":
        send()
    return []

reader = Reader(complete)
if where == "hook":
    # Called without a step of Python between it and the waiting for a key: the signal is not handled before that.
    readline.set_pre_input_hook(send)
bridge = Bridge(reader)

async def work():
    line = await bridge.line("> ")
    print(f"came: {line}", flush=True)
    return 0

code = bridge.run(work)
assert signal.getsignal(signal.SIGURG) == signal.SIG_DFL
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("number", "came", "code"),
    [(signal.SIGINT, "Signal.INTERRUPT", 0), (signal.SIGTERM, "Signal.END", 128 + signal.SIGTERM)],
)
def test_a_signal_before_the_waiting_for_a_key_is_heard(
    tmp_path: Path, number: signal.Signals, came: str, code: int
) -> None:
    """It does not wait for the next key."""
    with PlainTerminal(tmp_path, str(int(number)), "hook", program=_PROGRAM) as terminal:
        terminal.wait_for(f"came: {came}\n")
        assert terminal.ended() == code


@pytest.mark.parametrize(
    ("number", "came", "code"),
    [(signal.SIGINT, "Signal.CLEARED", 0), (signal.SIGHUP, "Signal.END", 128 + signal.SIGHUP)],
)
def test_a_signal_inside_a_completion_is_not_swallowed(
    tmp_path: Path, number: signal.Signals, came: str, code: int
) -> None:
    """Readline drops what a completion raises."""
    with PlainTerminal(tmp_path, str(int(number)), "completion", program=_PROGRAM) as terminal:
        terminal.wait_for("> $")
        terminal.type("/st\t")
        terminal.wait_for(f"came: {came}\n")
        assert terminal.ended() == code


def test_ctrl_c_right_behind_a_line_drops_it(tmp_path: Path) -> None:
    """It is not lost between the line and its answer. Readline no longer says then whether something is typed."""
    with PlainTerminal(tmp_path, str(int(signal.SIGINT)), "behind", program=_PROGRAM) as terminal:
        terminal.enter("hello")
        terminal.wait_for(r"came: Signal\.(CLEARED|INTERRUPT)\n")
        assert terminal.ended() == 0
