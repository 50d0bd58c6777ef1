import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from sessions.errors import StoreError
from sessions.lease import Leases, sweep

ROOT = Path(__file__).parents[2]
FREE_WITHIN_S = 0.1

_HOLDER = """
import sys
from pathlib import Path
from sessions.lease import Leases
leases = Leases(Path(sys.argv[1]))
assert leases.take("one")
print(leases.window, flush=True)
sys.stdin.read()
"""


@contextmanager
def windows(folder: Path, n: int) -> Iterator[list[Leases]]:
    """Several windows over the same folder."""
    with ExitStack() as opened:
        yield [opened.enter_context(closing(Leases(folder))) for _ in range(n)]


@contextmanager
def holder(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that holds conversation `one`, and its window's id."""
    command = [sys.executable, "-c", _HOLDER, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        window = process.stdout.readline().strip()
        assert window, "it holds the conversation"
        try:
            yield process, window
        finally:
            process.kill()


def test_one_window_writes(tmp_path: Path) -> None:
    """Another one gets the conversation when it is let go, and knows meanwhile which process has it."""
    with windows(tmp_path, 2) as (one, other):
        assert one.take("a")
        assert one.take("a")
        assert not other.take("a")
        assert other.take("b")
        assert (set(one.held), set(other.held)) == ({"a"}, {"b"})
        assert other.holder("a") == os.getpid()
        one.release("a")
        assert other.holder("a") is None
        assert other.take("a")
        assert not one.take("a")


def test_asking_is_seen_while_it_lasts(tmp_path: Path) -> None:
    """One window asks at a time, and who has stopped asking is not waited for."""
    with windows(tmp_path, 3) as (has, asks, late):
        assert has.take("a")
        assert not has.is_wanted("a")
        with asks.wanting("a") as is_first:
            assert is_first
            assert has.is_wanted("a")
            with late.wanting("a") as is_next:
                assert not is_next
            assert has.is_wanted("a")
        assert not has.is_wanted("a")


def test_no_file_is_left(tmp_path: Path) -> None:
    """Closing gives everything back, and others see that the window is gone."""
    with windows(tmp_path, 2) as (one, other):
        window = one.window
        assert one.take("a")
        assert other.is_alive(window)
        one.close()
        assert not other.is_alive(window)
        assert not other.is_alive("")
        assert other.is_alive(other.window)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_killed_window_frees_its_conversations_at_once(tmp_path: Path) -> None:
    """The lock ends with its process, and the next holder's file names the next holder."""
    with windows(tmp_path, 1) as (own,), holder(tmp_path) as (process, window):
        assert not own.take("one")
        assert own.holder("one") == process.pid
        assert own.is_alive(window)
        killed_at = time.monotonic()
        process.send_signal(signal.SIGKILL)
        while not own.take("one"):
            assert time.monotonic() - killed_at < FREE_WITHIN_S, "it is not free yet"
        assert own.holder("one") == os.getpid()
        assert not own.is_alive(window)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_what_a_killed_window_left_is_swept(tmp_path: Path) -> None:
    """Files that nobody holds go, those that somebody holds stay."""
    with windows(tmp_path, 1) as (own,):
        assert own.take("mine")
        with holder(tmp_path) as (process, window):
            process.kill()
            process.wait()
        assert {path.name for path in tmp_path.iterdir()} == {"mine.lock", "one.lock", f"{window}.window"}
        sweep(tmp_path, tmp_path / "missing")
        assert [path.name for path in tmp_path.iterdir()] == ["mine.lock"]


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    """Whoever asks is told what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        Leases(tmp_path / "file" / "leases").take("a")
