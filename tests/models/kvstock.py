"""A stock of KV for tests: chains of segments whose payload names their tokens."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from models.fingerprint import Fingerprint
from models.kvfolder import KvFolder
from models.kvformat import PARTS, Part, SegmentId, key_id
from models.kvindex import KvIndex, Outline
from models.kvsettings import KvSettings
from models.kvstore import KvStore
from tests.models.helpers import FINGERPRINT

KEY = b"k" * 32
OTHER_KEY = b"o" * 32
OWNER = key_id(KEY)
BUILD = FINGERPRINT.llama_build
PLENTY = KvSettings(budget_bytes=1 << 40, free_floor_bytes=0)


class Clock:
    """A clock that stands until it is set."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def open_store(
    root: Path,
    fingerprint: Fingerprint = FINGERPRINT,
    *,
    key: bytes = KEY,
    clock: Callable[[], float] | None = None,
    settings: KvSettings = PLENTY,
) -> KvStore:
    """A store without limits unless some are given."""
    return KvStore(
        root, key, fingerprint, clock=clock or Clock(), settings=settings, model={"name": "m", "path": "/m.gguf"}
    )


def payload_of(segment: SegmentId, part: Part, n_bytes: int) -> bytes:
    """Bytes that only this part of this segment has."""
    return (f"{part} of {segment.key.hex()} ".encode() * (n_bytes // 64 + 1))[:n_bytes]


def put(
    store: KvStore,
    *parts: Sequence[int],
    after: SegmentId | None = None,
    kinds: Iterable[Part] = ("rows",),
    n_bytes: int = 1000,
) -> list[SegmentId]:
    """Store a chain of segments, each of these kinds; returns them."""
    chain = [after] if after else []
    for part in parts:
        parent, start = (chain[-1].key, chain[-1].end) if chain else (store.root_key, 0)
        segment = SegmentId(store.digest, parent, start, tuple(part))
        for kind in kinds:
            store.write(segment, payload_of(segment, kind, n_bytes), kind)
        chain.append(segment)
    return chain[1:] if after else chain


def path_of(root: Path, segment: SegmentId, part: Part = "rows") -> Path:
    """Where a segment's file lies."""
    return KvFolder(root).segment_path(segment.fingerprint, segment.key, part)


def outlines(root: Path) -> dict[bytes, Outline]:
    """Rows by key."""
    index = KvIndex(root / "index.db", read_only=True)
    try:
        return {row.key: row for row in index.outlines()}
    finally:
        index.close()


def stored(root: Path) -> set[tuple[bytes, Part]]:
    """What the index promises."""
    sizes = {key: {"rows": row.rows_bytes, "state": row.state_bytes} for key, row in outlines(root).items()}
    return {(key, part) for key, found in sizes.items() for part in PARTS if found[part]}


def on_disk(root: Path) -> set[tuple[bytes, Part]]:
    """What files there are."""
    folder = KvFolder(root)
    return {(file.key, file.part) for key in folder.generations() for file in folder.files(key)}


def content(folder: Path) -> dict[str, bytes | None]:
    """Every entry below a folder and the bytes of files, without what a reader of SQLite may leave."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in folder.rglob("*")
        if not path.name.endswith(("-wal", "-shm"))
    }


ENGINE = """
import sys
from pathlib import Path
from models.kvfolder import InUse, KvFolder
sign = InUse(KvFolder(Path(sys.argv[1])))
tip, loading = (bytes.fromhex(arg) for arg in sys.argv[2:])
sign.show(tip or None, (loading[:32], loading[32:]) if loading else None)
print("ready", flush=True)
sys.stdin.read()
sign.close()
"""


class Engine:
    """A process of its own that says which chain it works on, and fingerprint and key of what it is loading."""

    def __init__(self, root: Path, tip: bytes = b"", loading: bytes = b"") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", ENGINE, str(root), tip.hex(), loading.hex()],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        """End it at once; it cannot take its sign down."""
        self._process.kill()
        self._process.communicate()

    def end(self) -> None:
        """Let it end as it should."""
        self._process.communicate()
