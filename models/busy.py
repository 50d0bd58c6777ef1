"""How many processors other programs use while something is measured; a stand-in for the part the window has."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

_STAT = Path("/proc/stat")
# user, nice, system, idle, iowait, irq, softirq, steal: a stolen tick is one that another machine's programs had.
_BUSY = (0, 1, 2, 5, 6, 7)
_LEAST_S = 0.2
_PAINTING_S = 120
# 20 ms of work ten times a second, for as long as its parent lives, and not for ever where that cannot be seen.
_PAINTER = f"""
import os, sys, time
parent, end = int(sys.argv[1]), time.monotonic() + {_PAINTING_S}
while (os.name == "nt" or os.getppid() == parent) and time.monotonic() < end:
    due = time.process_time() + .02
    while time.process_time() < due: pass
    time.sleep(.08)
"""


class ForeignLoad:
    """Counts processors that others use, from its beginning until it is asked. Own children count once they ended."""

    def __init__(self, stat: Path = _STAT) -> None:
        self._stat = stat
        self._at = time.monotonic()
        self._own = _own_s()
        self._busy = self._busy_s()

    def cores_used(self) -> float | None:
        """How many processors others used on average; None where the system does not tell or the time was short."""
        wall, busy = time.monotonic() - self._at, self._busy_s()
        if busy is None or self._busy is None or wall < _LEAST_S:
            return None
        return max(0.0, (busy - self._busy - (_own_s() - self._own)) / wall)

    def _busy_s(self) -> float | None:
        """Seconds in use of all processors that this process may use, so far."""
        if not hasattr(os, "sched_getaffinity"):
            return None
        own = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        try:
            rows = [line.split() for line in self._stat.read_text().splitlines() if line.startswith("cpu")]
            ticks = sum(int(row[1 + place]) for row in rows if row[0] in own for place in _BUSY)
        except (OSError, ValueError, IndexError):
            return None
        return ticks / os.sysconf("SC_CLK_TCK") if any(row[0] in own for row in rows) else None


class Painter:
    """A process that works as much as the window does while an answer streams: about a fifth of a processor.

    The window was measured to use 0.17 to 0.27 of one at 60 tokens a second; a process, so that it competes for
    processors as the window does, and not for the interpreter lock. One that cannot be started is done without.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Painter:
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PAINTER, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int | None:
        """The process that works, None if there is none."""
        return self._process.pid if self._process else None


def _own_s() -> float:
    """Processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
