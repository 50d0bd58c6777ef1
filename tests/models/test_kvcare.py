from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from models import kvcare
from models.kvcare import Freed, clear, clear_chains, forget, known_mac_key, prune
from models.kvfolder import InUse, KvFolder
from models.kvformat import SegmentId
from models.kvindex import KvIndex
from models.kvsettings import KvSettings
from models.kvstore import KvStore, load_mac_key
from tests.models.helpers import FINGERPRINT, changed, damage, segment_files
from tests.models.kvstock import BUILD, OTHER_KEY, Clock, content, on_disk, open_store, outlines, path_of, put, stored

CLOCK = Clock()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The KV folder, not made yet."""
    return tmp_path / "cache" / "kv"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory that has a MAC key."""
    load_mac_key(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def store(root: Path, data_dir: Path) -> Iterator[KvStore]:
    """An engine's store of this data directory."""
    with closing(open_store(root, key=load_mac_key(data_dir))) as opened:
        yield opened


@contextmanager
def in_use(root: Path, segment: SegmentId) -> Iterator[None]:
    """An engine works on the chain that ends here."""
    sign = InUse(KvFolder(root))
    sign.show(segment.key, None)
    yield
    sign.close()


def hexes(*segments: SegmentId) -> list[str]:
    """Tips as conversations keep them."""
    return [segment.key.hex() for segment in segments]


def keys(*segments: SegmentId) -> set[bytes]:
    """Their keys."""
    return {segment.key for segment in segments}


# --- forget ---


def test_what_no_conversation_reaches_is_forgotten(root: Path, data_dir: Path, store: KvStore) -> None:
    """Shared beginnings and living ends stay; a dead end, its branches and strays nobody recorded go."""
    (shared,) = put(store, (1, 2))
    (alive,) = put(store, (3, 4), after=shared)
    (dead,) = put(store, (5, 6), after=shared, kinds=("rows", "state"))
    put(store, (7,), after=dead)
    put(store, (8, 9))
    before = sum(row.bytes for row in outlines(root).values())
    freed = forget(root.parent, data_dir, hexes(alive), clock=CLOCK)
    assert set(outlines(root)) == keys(shared, alive)
    assert on_disk(root) == stored(root)
    assert freed == before - sum(row.bytes for row in outlines(root).values()) > 0


def test_lost_rows_hold_a_living_chain_together(root: Path, data_dir: Path, store: KvStore) -> None:
    """An evicted middle does not cut what is before it from its tip, and itself stays to say why it is gone."""
    first, middle, last = put(store, (1,), (2,), (3,))
    store._index.lose([(middle.key, "rows")], "evicted")
    path_of(root, middle).unlink()
    forget(root.parent, data_dir, hexes(last), clock=CLOCK)
    assert set(outlines(root)) == keys(first, middle, last)


def test_lost_rows_of_the_dead_go_too(root: Path, data_dir: Path, store: KvStore) -> None:
    """A row without a file still names tokens."""
    (dead,) = put(store, (1,))
    store._index.lose([(dead.key, "rows")], "evicted")
    path_of(root, dead).unlink()
    forget(root.parent, data_dir, [], clock=CLOCK)
    assert outlines(root) == {}


def test_another_data_directory_is_left_alone(root: Path, data_dir: Path, store: KvStore) -> None:
    """Segments under another MAC key are neither ours to reach nor to delete."""
    put(store, (1, 2))
    with closing(open_store(root, key=OTHER_KEY)) as other:
        (foreign,) = put(other, (1, 2))
    forget(root.parent, data_dir, [], clock=CLOCK)
    assert set(outlines(root)) == keys(foreign)
    assert on_disk(root) == {(foreign.key, "rows")}


def test_every_generation_is_swept(root: Path, data_dir: Path, store: KvStore) -> None:
    """A conversation had with two models leaves neither; what was learned of the models stays."""
    put(store, (1, 2))
    fingerprint = changed(weights="cd" * 32)
    with closing(open_store(root, fingerprint, key=load_mac_key(data_dir))) as other:
        put(other, (1, 2))
        other.remember("rates", 1)
    forget(root.parent, data_dir, [], clock=CLOCK)
    assert on_disk(root) == set()
    assert KvFolder(root).notes(fingerprint.digest()) == {"rates": 1}
    assert KvFolder(root).about(fingerprint.digest())["model"]["name"] == "m"


def test_orphans_and_remnants_are_forgotten(root: Path, data_dir: Path, store: KvStore) -> None:
    """Files without a row, what killed writers left and what was set aside hold text as well."""
    orphan, broken = put(store, (1,), (2,))
    store._index.remove([orphan.key])
    remnant = path_of(root, orphan).with_name(f".{orphan.key.hex()}.rows.99.tmp")
    remnant.write_bytes(b"text")
    damage(path_of(root, broken))
    store.reject(broken)
    forget(root.parent, data_dir, [], clock=CLOCK)
    assert on_disk(root) == set()
    assert not remnant.exists()
    assert list((root / "damaged").iterdir()) == []


def test_forgetting_does_not_wait_for_engines(root: Path, data_dir: Path, store: KvStore) -> None:
    """Privacy goes first: what an engine has in use is deleted, and the engine misses it without an error."""
    (dead,) = put(store, (1, 2))
    store.use(dead)
    forget(root.parent, data_dir, [], clock=CLOCK)
    assert on_disk(root) == set()
    assert store.lookup((1, 2)).hits == ()
    put(store, (1, 2))
    assert store.lookup((1, 2)).end == 2


def test_no_forgotten_token_stays_in_the_index(root: Path, data_dir: Path, store: KvStore) -> None:
    """The token ids are in no file any more, the write-ahead log included."""
    tokens = tuple(range(900_000, 900_050))
    put(store, tokens)
    forget(root.parent, data_dir, [], clock=CLOCK)
    needle = b"".join(token.to_bytes(4, "little") for token in tokens[:8])
    files = [path for path in root.rglob("*") if path.is_file()]
    assert [path for path in files if needle in path.read_bytes()] == []


def test_forgetting_makes_nothing(tmp_path: Path) -> None:
    """Without a KV folder or a MAC key there is nothing of ours, and nothing is made."""
    assert forget(tmp_path / "cache", tmp_path / "data", [], clock=CLOCK) == 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "cache" / "kv").mkdir(parents=True)
    assert forget(tmp_path / "cache", tmp_path / "data", [], clock=CLOCK) == 0
    assert content(tmp_path) == {"cache": None, "cache/kv": None}


def test_a_file_that_cannot_be_deleted_is_told_after_the_others(
    root: Path, data_dir: Path, store: KvStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One refusal stops neither the other files nor goes unsaid; the next deletion makes up for it."""
    first, second = put(store, (1,), (2,))
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name.startswith(first.key.hex()):
            raise PermissionError(13, "refused")
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        with pytest.raises(PermissionError):
            forget(root.parent, data_dir, [], clock=CLOCK)
    assert on_disk(root) == {(first.key, "rows")}
    assert second.key not in outlines(root)
    forget(root.parent, data_dir, [], clock=CLOCK)
    assert on_disk(root) == set()


def test_tips_of_other_engines_name_nothing(root: Path, data_dir: Path, store: KvStore) -> None:
    """A tip that is no key of ours is no reason to fail, and reaches nothing."""
    put(store, (1,))
    forget(root.parent, data_dir, ["no hex", "ab", "cd" * 32], clock=CLOCK)
    assert on_disk(root) == set()


@pytest.mark.parametrize("step", range(1, 6))
def test_killed_while_forgetting_the_next_deletion_finishes(
    root: Path, data_dir: Path, store: KvStore, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Stopped before any file: no row promises what is gone, and nothing survives a second run."""
    chain = put(store, (1,), (2,), (3,), (4,))
    unlink, n_calls = Path.unlink, 0

    def die(path: Path, missing_ok: bool = False) -> None:
        nonlocal n_calls
        n_calls += path.suffix == ".rows"
        if n_calls == step and path.suffix == ".rows":
            raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", die)
        if step <= len(chain):
            with pytest.raises(KeyboardInterrupt):
                forget(root.parent, data_dir, [], clock=CLOCK)
    assert stored(root) <= on_disk(root)
    forget(root.parent, data_dir, [], clock=CLOCK)
    assert (on_disk(root), outlines(root)) == (set(), {})


def test_a_key_of_a_wrong_length_is_none(tmp_path: Path) -> None:
    """A MAC key that was cut short is not one, and none is made."""
    assert known_mac_key(tmp_path / "data") is None
    (tmp_path / "kv.key").write_bytes(b"short")
    assert known_mac_key(tmp_path) is None
    (tmp_path / "kv.key").write_bytes(b"k" * 32)
    assert known_mac_key(tmp_path) == b"k" * 32


# --- prune ---


def test_pruning_goes_down_to_a_size(root: Path, store: KvStore) -> None:
    """The least recently used end goes first; what is told is what is there."""
    old, new = put(store, (1,))[0], put(store, (2,))[0]
    store._index.touch([new.key], 2e6)
    size = path_of(root, new).stat().st_size
    freed = prune(root, to_bytes=size, settings=KvSettings(), clock=CLOCK, build=BUILD)
    assert freed == Freed(path_of(root, new).stat().st_size, size)
    assert on_disk(root) == {(new.key, "rows")}
    assert outlines(root)[old.key].loss == "evicted"


def test_pruning_without_a_size_keeps_the_budget(root: Path, store: KvStore) -> None:
    """What fits is not touched; a budget that became smaller is enforced."""
    put(store, (1,), (2,))
    total = sum(row.bytes for row in outlines(root).values())
    assert prune(root, settings=KvSettings(budget_bytes=total), clock=CLOCK, build=BUILD).freed_bytes == 0
    left = prune(root, settings=KvSettings(budget_bytes=total - 1), clock=CLOCK, build=BUILD)
    assert 0 < left.total_bytes < total
    assert left.total_bytes + left.freed_bytes == total


def test_pruning_never_touches_what_is_in_use(root: Path, store: KvStore) -> None:
    """Down to nothing means down to the chains of living engines."""
    first, second = put(store, (1,), (2,))
    put(store, (3,), after=second)
    with in_use(root, second):
        left = prune(root, to_bytes=0, settings=KvSettings(), clock=CLOCK, build=BUILD)
    assert on_disk(root) == {(first.key, "rows"), (second.key, "rows")}
    assert left.total_bytes > 0


def test_pruning_removes_what_no_engine_can_use(root: Path, store: KvStore) -> None:
    """Generations of another build go with their notes, and so does what was set aside; in use, they stay."""
    (kept,) = put(store, (1,))
    stale = changed(llama_build="an older one")
    with closing(open_store(root, stale)) as old:
        (segment,) = put(old, (1,))
        with in_use(root, segment):
            prune(root, to_bytes=1 << 40, settings=KvSettings(), clock=CLOCK, build=BUILD)
        assert (segment.key, "rows") in on_disk(root)
    (root / "damaged").mkdir()
    (root / "damaged" / "x.rows").write_bytes(b"x" * 50)
    prune(root, to_bytes=1 << 40, settings=KvSettings(), clock=CLOCK, build=BUILD)
    assert on_disk(root) == {(kept.key, "rows")}
    assert stale.digest() not in KvFolder(root).generations()
    assert list((root / "damaged").iterdir()) == []


def test_files_the_index_does_not_know_count_too(root: Path, store: KvStore) -> None:
    """Pruning takes them in first, so nothing on disk escapes the size."""
    (orphan,) = put(store, (1,))
    store._index.remove([orphan.key])
    assert prune(root, to_bytes=0, settings=KvSettings(), clock=CLOCK, build=BUILD).freed_bytes > 1000
    assert on_disk(root) == set()


# --- clear ---


def test_clearing_leaves_nothing(root: Path, store: KvStore) -> None:
    """Segments of all owners and generations, notes, crash counts and damaged files go, in use or not."""
    (segment,) = put(store, (1,))
    store.remember("self_test", {"passed": True})
    with closing(open_store(root, changed(gpu_layers=3), key=OTHER_KEY)) as other:
        put(other, (2,))
    with in_use(root, segment):
        freed = clear(root, clock=CLOCK)
    assert freed.total_bytes == 0
    assert freed.freed_bytes > 2000
    assert KvFolder(root).generations() == []
    assert outlines(root) == {}


def test_a_cleared_store_goes_on(root: Path, store: KvStore) -> None:
    """An engine at work misses what was cleared, and stores anew."""
    put(store, (1,))
    clear(root, clock=CLOCK)
    assert store.lookup((1,)).end == 0
    put(store, (1,))
    assert store.lookup((1,)).end == 1


def test_what_was_written_today_still_counts_after_clearing(root: Path, store: KvStore) -> None:
    """A daily limit is about the disk's wear, which clearing does not undo."""
    put(store, (1,))
    clear(root, clock=CLOCK)
    with closing(KvIndex(root / "index.db")) as index:
        assert index.written() > 1000


def test_one_model_is_cleared(root: Path, store: KvStore) -> None:
    """The generation goes with its notes, the others stay."""
    fingerprint = changed(gpu_layers=3)
    with closing(open_store(root, fingerprint)) as other:
        put(other, (1,))
    (kept,) = put(store, (1,))
    clear(root, fingerprints=[fingerprint.digest()], clock=CLOCK)
    assert on_disk(root) == {(kept.key, "rows")}
    assert KvFolder(root).generations() == [store.digest]


def test_one_conversation_is_cleared(root: Path, store: KvStore) -> None:
    """What only its chain reaches goes with what hangs on it; what others reach stays."""
    (shared,) = put(store, (1,))
    own, tip = put(store, (2,), (3,), after=shared)
    put(store, (9,), after=own)
    (other,) = put(store, (4,), after=shared)
    (stray,) = put(store, (5,))
    clear_chains(root, hexes(tip), hexes(other), clock=CLOCK)
    assert set(outlines(root)) == keys(shared, other, stray)
    assert on_disk(root) == stored(root)


@pytest.mark.parametrize("care", ["prune", "clear", "clear_chains"])
def test_without_a_folder_nothing_is_made(root: Path, care: str) -> None:
    """There is nothing to free, and no folder afterwards."""
    calls = {
        "prune": lambda: prune(root, settings=KvSettings(), clock=CLOCK),
        "clear": lambda: clear(root, clock=CLOCK),
        "clear_chains": lambda: clear_chains(root, [], [], clock=CLOCK),
    }
    assert calls[care]() == Freed(0, 0)
    assert not root.exists()


def test_a_busy_store_is_an_error(root: Path, store: KvStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is deleted while another process holds the lock."""
    put(store, (1,))
    monkeypatch.setattr("models.kvfolder._LOCK_S", 0.0)
    with KvFolder(root).locked(), pytest.raises(TimeoutError, match="another program"):
        kvcare.clear(root, clock=CLOCK)
    assert len(on_disk(root)) == 1


def test_a_damaged_index_does_not_keep_a_deleted_conversation(tmp_path: Path) -> None:
    """Forgetting makes the index anew from the files first, and then leaves nothing behind."""
    cache, data = tmp_path / "cache", tmp_path / "data"
    store = KvStore(cache / "kv", load_mac_key(data), FINGERPRINT, clock=lambda: 1.0)
    for n in range(60):
        store.write(SegmentId(store.digest, store.root_key, 0, (n, n)), b"rows")
    store.close()
    path = cache / "kv" / "index.db"
    intact = path.read_bytes()
    path.write_bytes(intact[:8_192] + b"\xa5" * (len(intact) - 8_192))
    assert forget(cache, data, []) > 0
    assert segment_files(cache / "kv") == []
