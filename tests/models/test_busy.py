import os
import time
from pathlib import Path

import pytest

from models import busy
from models.busy import ForeignLoad, Painter

CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def stat(path: Path, busy_s: float, *, cpu: int = CPUS[0], idle_s: float = 1000.0, stolen_s: float = 0.0) -> Path:
    """A /proc/stat in which one processor was in use for so long."""
    ticks = [int(busy_s * TICKS), 0, 0, int(idle_s * TICKS), 0, 0, 0, int(stolen_s * TICKS), 0, 0]
    path.write_text(f"cpu  {' '.join(map(str, ticks))}\ncpu{cpu} {' '.join(map(str, ticks))}\nintr 1 2 3\n")
    return path


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock, and this process's own processor time."""
    now = [100.0, 5.0]
    monkeypatch.setattr("models.busy.time.monotonic", lambda: now[0])
    monkeypatch.setattr(busy, "_own_s", lambda: now[1])
    return now


@pytest.mark.parametrize(
    ("busy_s", "own_s", "stolen_s", "foreign"),
    [(2.0, 2.0, 0.0, 0.0), (2.0, 0.0, 0.0, 1.0), (3.0, 2.0, 0.0, 0.5), (0.0, 0.0, 2.0, 1.0), (1.0, 2.0, 0.0, 0.0)],
)
def test_what_is_not_ours_is_others(
    tmp_path: Path, clock: list[float], busy_s: float, own_s: float, stolen_s: float, foreign: float
) -> None:
    """Time in use, less our own, by the wall clock; what the host took away counts, and rounding never below none."""
    path = stat(tmp_path / "stat", 10.0)
    load = ForeignLoad(path)
    stat(path, 10.0 + busy_s, stolen_s=stolen_s)
    clock[:] = [102.0, 5.0 + own_s]
    assert load.cores_used() == pytest.approx(foreign)


def test_processors_we_may_not_use_do_not_count(tmp_path: Path, clock: list[float]) -> None:
    """Of a large host, only ours can be missing."""
    path = stat(tmp_path / "stat", 10.0, cpu=9_999)
    load = ForeignLoad(path)
    stat(path, 12.0, cpu=9_999)
    clock[0] = 102.0
    assert load.cores_used() is None


def test_where_the_system_does_not_tell_nothing_is_known(tmp_path: Path, clock: list[float]) -> None:
    """No such file, or another one."""
    load = ForeignLoad(tmp_path / "none")
    (tmp_path / "junk").write_text("cpu0 many\n")
    junk = ForeignLoad(tmp_path / "junk")
    clock[0] = 102.0
    assert (load.cores_used(), junk.cores_used()) == (None, None)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system does not tell")
def test_a_busy_process_is_seen() -> None:
    """A process that works counts as somebody else's as long as it runs; what others do only adds to it."""
    load = ForeignLoad()
    with Painter() as painter:
        assert painter.pid
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            os.times()
        used = load.cores_used()
    assert used
    assert used > 0.02


def test_a_painter_that_cannot_start_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement goes on."""
    monkeypatch.setattr("models.busy.sys.executable", "/nowhere/python")
    with Painter() as painter:
        assert painter.pid is None


def test_the_painter_ends_with_its_work() -> None:
    """No process is left."""
    with Painter() as painter:
        pid = painter.pid
    assert pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
