import os
import stat
from contextlib import closing
from pathlib import Path

import pytest

from models import kvfolder
from models.kvfolder import InUse, KvFolder, StoredFile, take_crashes, tips_in_use
from models.kvstore import KvUnusable
from tests.models.helpers import FINGERPRINT, damage
from tests.models.kvstock import Engine, open_store, path_of, put

PRINT = FINGERPRINT.digest()
TIP, KEY_OF_LOADED = b"t" * 32, b"l" * 32
posix_only = pytest.mark.skipif(os.name != "posix", reason="POSIX modes and signals")


@pytest.fixture
def folder(tmp_path: Path) -> KvFolder:
    """An empty KV folder."""
    made = KvFolder(tmp_path / "kv")
    made.make()
    return made


# --- places ---


@posix_only
def test_everything_is_private_whatever_the_umask(tmp_path: Path) -> None:
    """Files have mode 0600 and folders 0700, so that no other user reads what was said."""
    before = os.umask(0)
    try:
        root = tmp_path / "kv"
        with closing(open_store(root)) as store:
            first, second = put(store, (1,), (2,), kinds=("rows", "state"))
            store.use(second)
            store.remember("rates", 1)
            damage(path_of(root, first))
            store.reject(first)
            modes = {
                str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode)
                for path in (root, *root.rglob("*"))
                if not path.name.endswith("-shm")
            }
    finally:
        os.umask(before)
    assert {path: oct(mode) for path, mode in modes.items() if mode not in (0o600, 0o700)} == {}
    assert {mode for path, mode in modes.items() if (root / path).is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if (root / path).is_file()} == {0o600}


def test_making_it_removes_what_the_first_version_left(tmp_path: Path) -> None:
    """Its buckets lay in the folder itself; generations stay."""
    for name in ("ab", "00", PRINT.hex(), "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(b"x")
    KvFolder(tmp_path).make()
    assert {path.name for path in tmp_path.iterdir()} == {PRINT.hex(), "other"}


def test_files_are_what_looks_like_segments(folder: KvFolder) -> None:
    """Two parts by key; anything else in the folders is none."""
    key = bytes.fromhex("ab" * 32)
    place = folder.generation_dir(PRINT)
    names = [f"{key.hex()}.rows", f"{key.hex()}.state", f"{key.hex()}.kv", f".{key.hex()}.rows.7.tmp", "ab.rows", "x"]
    for bucket in ("ab", "zz"):
        (place / bucket).mkdir(parents=True)
        for name in names:
            (place / bucket / name).touch()
    (place / "about.json").touch()
    assert sorted(folder.files(PRINT), key=lambda file: file.part) == [
        StoredFile(folder.segment_path(PRINT, key, "rows"), PRINT, key, "rows"),
        StoredFile(folder.segment_path(PRINT, key, "state"), PRINT, key, "state"),
    ]
    assert [path.name for path in folder.remnants(PRINT) if path.parent.name == "ab"] == [names[3]]
    assert folder.generations() == [PRINT]
    assert list(folder.files(b"x" * 32)) == []


def test_a_missing_folder_has_nothing(tmp_path: Path) -> None:
    """Looking makes nothing and raises nothing."""
    folder = KvFolder(tmp_path / "kv")
    assert (folder.generations(), list(folder.files(PRINT)), folder.about(PRINT)) == ([], [], {})
    assert (folder.clear_damaged(), tips_in_use(folder), take_crashes(folder)) == (0, set(), [])
    assert list(tmp_path.iterdir()) == []


def test_only_one_holds_the_lock(folder: KvFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second gives up after a while with a sentence; afterwards it is free, also after an error."""
    monkeypatch.setattr(kvfolder, "_LOCK_S", 0.0)
    with folder.locked(), pytest.raises(TimeoutError, match="another program holds the KV store"):
        KvFolder(folder.root).locked().__enter__()
    for _ in range(2):
        with pytest.raises(KeyError), folder.locked():
            raise KeyError


def test_anything_can_be_set_aside(folder: KvFolder) -> None:
    """A file, a link, a folder with content; twice under the same name; and all of it is cleared."""
    for n in (3, 5):
        path = folder.root / "x.rows"
        path.write_bytes(b"x" * n)
        folder.set_aside(path)
    (folder.root / "y.rows").symlink_to(folder.index_path)
    (folder.root / "z.rows").mkdir()
    (folder.root / "z.rows" / "inner").touch()
    for name in ("y.rows", "z.rows"):
        folder.set_aside(folder.root / name)
    assert {path.name for path in folder.root.iterdir()} == {"damaged"}
    assert (folder.damaged_dir / "x.rows").read_bytes() == b"x" * 5
    assert folder.clear_damaged() >= 5
    assert list(folder.damaged_dir.iterdir()) == []


def test_what_cannot_be_set_aside_is_deleted(folder: KvFolder) -> None:
    """A file in the place of the folder for damaged ones does not keep them in use."""
    folder.damaged_dir.touch()
    for name in ("a", "b"):
        (folder.root / name).mkdir() if name == "a" else (folder.root / name).touch()
        folder.set_aside(folder.root / name)
        assert not (folder.root / name).exists()


# --- small files ---


def test_a_generation_says_what_it_is(folder: KvFolder) -> None:
    """The text is written only if it changes; junk is none."""
    about = {"fields": {"a": 1}, "model": {"name": "é"}}
    folder.write_about(PRINT, about)
    path = folder.generation_dir(PRINT) / "about.json"
    before = path.stat().st_ino
    folder.write_about(PRINT, about)
    assert (folder.about(PRINT), path.stat().st_ino) == (about, before)
    for junk in (b"\xff", b"[1]", b'{"a":', b"[" * 100_000):
        path.write_bytes(junk)
        assert folder.about(PRINT) == {}


# --- signs of engines ---


def test_a_sign_names_the_chain(folder: KvFolder) -> None:
    """As long as it is up, and only while it names one; taken down, nothing of it is left."""
    sign = InUse(folder)
    assert tips_in_use(folder) == set()
    sign.show(TIP, None)
    assert tips_in_use(folder) == {TIP}
    sign.show(None, None)
    assert tips_in_use(folder) == set()
    sign.close()
    assert list((folder.root / "in-use").iterdir()) == []


def test_each_engine_has_its_own_sign(folder: KvFolder) -> None:
    """Two in two processes, and one of this process."""
    sign = InUse(folder)
    sign.show(TIP, None)
    one, other = Engine(folder.root, b"1" * 32), Engine(folder.root, b"2" * 32)
    assert tips_in_use(folder) == {TIP, b"1" * 32, b"2" * 32}
    one.end()
    assert tips_in_use(folder) == {TIP, b"2" * 32}
    other.kill()
    assert tips_in_use(folder) == {TIP}
    sign.close()


def test_signs_of_the_dead_are_removed(folder: KvFolder) -> None:
    """Whoever opens the store next clears them away; those of the living stay."""
    sign = InUse(folder)
    sign.show(TIP, None)
    Engine(folder.root, b"1" * 32).kill()
    assert len(list((folder.root / "in-use").iterdir())) == 4
    assert take_crashes(folder) == []
    assert len(list((folder.root / "in-use").iterdir())) == 2
    assert tips_in_use(folder) == {TIP}
    sign.close()


def test_a_crash_while_loading_is_told_once(folder: KvFolder) -> None:
    """Which segment native code had in hand when its process died."""
    Engine(folder.root, loading=PRINT + KEY_OF_LOADED).kill()
    alive = Engine(folder.root, loading=PRINT + TIP)
    assert take_crashes(folder) == [(PRINT, KEY_OF_LOADED)]
    assert take_crashes(folder) == []
    alive.end()
    assert take_crashes(folder) == []


def test_a_sign_without_its_lock_is_one_of_the_dead(folder: KvFolder) -> None:
    """Where a lock's file goes with the lock, whoever only looked has deleted it."""
    Engine(folder.root, loading=PRINT + KEY_OF_LOADED).kill()
    for path in (folder.root / "in-use").glob("*.lock"):
        path.unlink()
    assert tips_in_use(folder) == set()
    assert take_crashes(folder) == [(PRINT, KEY_OF_LOADED)]
    assert list((folder.root / "in-use").iterdir()) == []


def test_a_sign_is_corrected_only_while_it_says_so(folder: KvFolder) -> None:
    """What another conversation's chain ends in meanwhile is left alone."""
    sign = InUse(folder)
    sign.show(TIP, (PRINT, KEY_OF_LOADED))
    sign.correct(TIP, b"1" * 32)
    assert tips_in_use(folder) == {b"1" * 32}
    sign.correct(TIP, b"2" * 32)
    assert tips_in_use(folder) == {b"1" * 32}
    sign.correct(b"1" * 32, None)
    assert tips_in_use(folder) == set()
    sign.close()


def test_a_torn_sign_is_no_crash(folder: KvFolder) -> None:
    """A note that was cut, or that is missing beside its lock, names nothing."""
    for cut in (None, 0, 40):
        Engine(folder.root, loading=PRINT + KEY_OF_LOADED).kill()
        for path in (folder.root / "in-use").glob("*"):
            if not path.suffix:
                path.unlink() if cut is None else os.truncate(path, cut)
        assert (tips_in_use(folder), take_crashes(folder)) == (set(), [])


def test_two_crashes_on_one_segment_are_enough(folder: KvFolder) -> None:
    """The first is noted, after the second the generation is not used; others are."""
    Engine(folder.root, loading=PRINT + KEY_OF_LOADED).kill()
    open_store(folder.root).close()
    Engine(folder.root, loading=PRINT + KEY_OF_LOADED).kill()
    assert folder.notes(PRINT)["crashes"] == {KEY_OF_LOADED.hex(): 1}
    with pytest.raises(KvUnusable, match="died twice"):
        open_store(folder.root)
    assert folder.notes(PRINT)["crashes"] == {KEY_OF_LOADED.hex(): 2}
