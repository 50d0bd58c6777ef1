import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.batch_results import OutputUnusable, Results


def record(number: int, error: str | None = None) -> bytes:
    """Return a record whose key is a number."""
    return json.dumps({"id": number, "error": error, "text": "t" * number, "key": f"{number:016x}"}).encode()


@contextmanager
def opened(path: Path) -> Iterator[Results]:
    """Open an output and close it again."""
    with closing(Results(path)) as results:
        yield results


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An output that is not there yet."""
    return tmp_path / "out.jsonl"


def test_what_was_appended_is_found_by_the_next_run(path: Path) -> None:
    """Records of both forms, and whether they failed."""
    openai = {"id": "batch_req_00000000000000ff", "custom_id": "x", "response": None, "error": {"message": "no"}}
    with opened(path) as results:
        assert [results.append(record(1)), results.append(json.dumps(openai).encode())] == [0, len(record(1)) + 1]
    with opened(path) as results:
        one, two = results.done.take(f"{1:016x}"), results.done.take(f"{255:016x}")
        assert one
        assert two
        assert (one.offset, one.failed, two.failed) == (0, False, True)
        assert results.last == openai


def test_each_record_is_in_the_file_at_once(path: Path) -> None:
    """Whole, before anything else happens: a kill takes nothing."""
    with opened(path) as results:
        results.append(record(1))
        assert path.read_bytes() == record(1) + b"\n"


def test_a_torn_last_line_is_cut_off(path: Path) -> None:
    """Wherever it was torn, with what a power cut leaves behind; what stands before it stays."""
    whole = record(1) + b"\n"
    for torn in (record(2)[:n] for n in range(1, len(record(2)))):
        for tail in (b"", b"\0" * 7):
            path.write_bytes(whole + torn + tail)
            with opened(path) as results:
                assert len(results.done) == 1
                results.append(record(3))
            assert path.read_bytes() == whole + record(3) + b"\n"


def test_a_last_line_without_its_end_is_whole(path: Path) -> None:
    """Only the line's end is added."""
    path.write_bytes(record(1))
    with opened(path) as results:
        assert results.done.take(f"{1:016x}")
        results.append(record(2))
    assert path.read_bytes() == record(1) + b"\n" + record(2) + b"\n"


@pytest.mark.parametrize(
    "content",
    [b"my diary", b'{"id": 1, "prompt": "x"}', b'{"id": 1, "prompt": "x"}\n', record(1) + b"\nnotes\n", b"\n", b"7"],
)
def test_a_file_of_somebody_elses_is_left_alone(path: Path, content: bytes) -> None:
    """It is refused, in a sentence that names the line, and not changed."""
    path.write_bytes(content)
    with pytest.raises(OutputUnusable, match=r"Line \d of .*out.jsonl is no result"):
        Results(path)
    assert path.read_bytes() == content
    assert not path.with_name(".out.jsonl.lock").exists()


def test_a_second_run_is_refused(path: Path) -> None:
    """Also by another name of the file; when the first has ended, it may run."""
    other = path.with_name("link.jsonl")
    path.touch()
    other.symlink_to(path)
    with opened(path), pytest.raises(OutputUnusable, match="Another batch is writing"):
        Results(other)
    with opened(other):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full disk")
def test_a_full_disk_is_one_sentence(path: Path) -> None:
    """What was written is safe, and it says how to go on."""
    with opened(path) as results:
        results.append(record(1))
        real = results._file
        with Path("/dev/full").open("wb", buffering=0) as full:
            results._file = full
            with pytest.raises(OutputUnusable, match=r"No space left.*goes on"):
                results.append(record(2))
            results._file = real
    assert path.read_bytes() == record(1) + b"\n"


def test_sync_happens_where_something_was_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing new costs no wait for the disk; the name of a new file is made safe at once."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with opened(path) as results:
        assert len(synced) == (os.name == "posix")
        synced.clear()
        results.sync()
        assert synced == []
        results.append(record(1))
        results.append(record(2))
        results.sync()
        results.sync()
        assert len(synced) == 1


@given(st.permutations(range(5)).flatmap(lambda order: st.integers(0, 5).map(lambda n: order[:n])))
def test_records_can_be_put_in_order(tmp_path_factory: pytest.TempPathFactory, order: list[int]) -> None:
    """Those that are wanted, in the wanted order; others go, and appending goes on behind them."""
    path = tmp_path_factory.mktemp("batch") / "out.jsonl"
    with opened(path) as results:
        offsets = [results.append(record(n)) for n in range(5)]
        results.arrange(offsets[n] for n in order)
        results.append(record(9))
    assert path.read_bytes() == b"".join(record(n) + b"\n" for n in [*order, 9])
    assert [one.name for one in path.parent.iterdir()] == ["out.jsonl"]


def test_a_file_in_order_is_not_written_again(path: Path) -> None:
    """It is the same file."""
    with opened(path) as results:
        offsets = [results.append(record(n)) for n in range(3)]
        before = path.stat().st_ino
        results.arrange(offsets)
        assert path.stat().st_ino == before
        results.arrange(offsets[::-1])
        assert path.stat().st_ino != before


def test_a_rewritten_file_keeps_its_mode(path: Path) -> None:
    """Whoever could read it can."""
    path.touch()
    path.chmod(0o640)
    with opened(path) as results:
        offsets = [results.append(record(n)) for n in range(2)]
        results.arrange(offsets[::-1])
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_a_killed_run_left_beside_it_is_removed(path: Path) -> None:
    """The half of a file in order, and a lock that nobody holds."""
    path.with_name(".out.jsonl.tmp").write_bytes(b"half")
    path.with_name(".out.jsonl.lock").touch()
    with opened(path):
        pass
    assert [one.name for one in path.parent.iterdir()] == ["out.jsonl"]
