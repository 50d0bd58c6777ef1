"""KV that is brought into the page cache before it is wanted."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from models.kvformat import SegmentId
from models.kvstore import KvStore
from models.prefetch import prefetch
from tests.models.helpers import FINGERPRINT
from tests.models.kvstock import content, open_store, outlines, path_of, put

GENERATION = FINGERPRINT.digest().hex()


class Advised:
    """Remembers the ranges it is asked for."""

    def __init__(self) -> None:
        self.ranges: list[tuple[str, int, int]] = []

    def __call__(self, file: int, start: int, n: int) -> None:
        """Take one range of an open file."""
        self.ranges.append((Path(f"/proc/self/fd/{file}").readlink().name, start, n))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The KV folder, not made yet."""
    return tmp_path / "kv"


@pytest.fixture
def store(root: Path) -> Iterator[KvStore]:
    """A stock."""
    with closing(open_store(root)) as opened:
        yield opened


def fetched(root: Path, *tips: tuple[str, SegmentId], n_slices: int = 1000) -> list[tuple[str, int, int]]:
    """What is asked for, at most so many slices."""
    advised = Advised()
    n_bytes = prefetch(
        root,
        [(generation, tip.key.hex()) for generation, tip in tips],
        fingerprint=GENERATION,
        goes_on=lambda: len(advised.ranges) < n_slices,
        advise=advised,
    )
    assert n_bytes == sum(n for _, _, n in advised.ranges)
    return advised.ranges


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of open files are told by Linux")


@needs_proc
def test_the_files_of_the_chain_and_no_others(root: Path, store: KvStore) -> None:
    """Rows from the first to the tip, then the newest state; not those of another conversation."""
    chain = put(store, range(50), range(50, 100), range(100, 150), kinds=("rows", "state"))
    put(store, range(500, 550))
    paths = [*(path_of(root, one) for one in chain[:2]), path_of(root, chain[1], "state")]
    assert fetched(root, (GENERATION, chain[1])) == [(path.name, 0, path.stat().st_size) for path in paths]


@needs_proc
def test_the_loaded_models_kv_comes_first(root: Path, store: KvStore) -> None:
    """Of several generations that of the model that is there; else any."""
    (mine,) = put(store, range(50))
    (other,) = put(store, range(60, 90))
    elsewhere = "00" * 32
    assert [name for name, _, _ in fetched(root, (elsewhere, other), (GENERATION, mine))] == [path_of(root, mine).name]
    assert fetched(root, (elsewhere, other)) == []


@needs_proc
def test_large_files_are_asked_for_in_slices(root: Path, store: KvStore) -> None:
    """So that it ends soon after the cursor has moved on."""
    first, second = put(store, range(50), range(50, 100), n_bytes=9 << 20)
    ranges = fetched(root, (GENERATION, second))
    assert max(n for _, _, n in ranges) == 4 << 20
    assert [start for name, start, _ in ranges if name == path_of(root, first).name] == [0, 4 << 20, 8 << 20]
    assert fetched(root, (GENERATION, second), n_slices=2) == ranges[:2]
    assert fetched(root, (GENERATION, second), n_slices=0) == []


def test_it_is_no_use_and_changes_nothing(root: Path, store: KvStore) -> None:
    """Index and files stay what they were, also while somebody holds the store's lock."""
    chain = put(store, range(50), range(50, 100))
    before, rows = content(root), outlines(root)
    with store._folder.locked():
        prefetch(root, [(GENERATION, chain[1].key.hex())], fingerprint=None, goes_on=lambda: True)
    assert (content(root), outlines(root)) == (before, rows)


@needs_proc
def test_what_is_gone_ends_it(root: Path, store: KvStore) -> None:
    """A file that somebody deleted meanwhile is no error; neither is no KV at all."""
    first, second = put(store, range(50), range(50, 100))
    path_of(root, second).unlink()
    assert [name for name, _, _ in fetched(root, (GENERATION, second))] == [path_of(root, first).name]
    assert fetched(root) == []
    assert fetched(root.parent / "nowhere", (GENERATION, first)) == []


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux tells what is in the page cache")
def test_it_is_in_memory_then(root: Path, store: KvStore) -> None:
    """What the system had dropped can be read without waiting for the disk, if it lets files be dropped at all."""
    (segment,) = put(store, range(50), n_bytes=1 << 20)
    path = path_of(root, segment)
    with path.open("rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if _n_in_memory(file.fileno()):
            pytest.skip("this file system keeps files in memory")
        prefetch(root, [(GENERATION, segment.key.hex())], fingerprint=None, goes_on=lambda: True)
        file.read(1)  # waits for the first of what is under way
        assert _n_in_memory(file.fileno()) > 0


def _n_in_memory(file: int) -> int:
    try:
        return os.preadv(file, [bytearray(1 << 20)], 0, os.RWF_NOWAIT)
    except OSError:
        return 0
