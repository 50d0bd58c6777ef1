import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from models.kvfolder import KvFolder
from models.kvformat import PARTS
from models.kvindex import KvIndex
from models.kvsettings import KvSettings
from models.kvstatus import KvStatus, Tips, in_words, status, stored_by_flash_attention
from models.kvstore import KvStore
from models.sqlite import sqlite3
from tests.models.helpers import FINGERPRINT, changed, damage
from tests.models.kvstock import BUILD, PLENTY, Clock, content, open_store, path_of, put

CLOCK = Clock()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The KV folder, not made yet."""
    return tmp_path / "cache" / "kv"


@pytest.fixture
def store(root: Path) -> Iterator[KvStore]:
    """An engine at work."""
    with closing(open_store(root, clock=CLOCK)) as opened:
        yield opened


def look(root: Path, tips: Tips | None = None, settings: KvSettings = PLENTY) -> KvStatus:
    """The figures, by a program of the tests' build."""
    return status(root, clock=CLOCK, settings=settings, tips=tips, build=BUILD)


def test_without_a_folder_everything_is_zero(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking makes nothing; the limits are those that the disk would give."""
    monkeypatch.setattr(KvFolder, "free_bytes", lambda _: 100 << 30)
    monkeypatch.setattr(KvFolder, "disk_bytes", lambda _: 10 << 30)
    found = look(root, {"a": [("f", "ab" * 32)]}, KvSettings())
    assert (found.total_bytes, found.n_segments, found.models, found.damaged_bytes) == (0, 0, (), 0)
    assert (found.budget_bytes, found.free_floor_bytes) == (10 << 30, 512 << 20)
    assert (found.written_today_bytes, found.written_total_bytes, found.daily_limit_bytes) == (0, 0, None)
    assert [(one.session_id, one.n_bytes, one.last_used) for one in found.sessions] == [("a", 0, None)]
    assert list(tmp_path.iterdir()) == []


def test_looking_changes_nothing(root: Path, store: KvStore) -> None:
    """No byte, no time of last use, no lock; while an engine works."""
    put(store, (1,))
    before = content(root)
    with KvFolder(root).locked():
        assert look(root).n_segments == 1
    assert content(root) == before


def test_an_index_opened_to_read_cannot_be_changed(root: Path, store: KvStore) -> None:
    """Not even by a mistake of ours."""
    put(store, (1,))
    with closing(KvIndex(root / "index.db", read_only=True)) as index, pytest.raises(OSError, match="readonly"):
        index.mark("x", 1.0)


def test_totals_are_those_of_the_files(root: Path, store: KvStore) -> None:
    """Segments with files and their bytes, what was set aside, and what was written."""
    chain = put(store, (1,), (2, 3), kinds=("rows", "state"))
    lost = put(store, (4,))[0]
    damage(path_of(root, lost))
    store.reject(lost)
    found = look(root, settings=KvSettings(budget_bytes=7, free_floor_bytes=8, daily_bytes=9))
    sizes = {(segment.key, part): path_of(root, segment, part).stat().st_size for segment in chain for part in PARTS}
    assert (found.total_bytes, found.n_segments) == (sum(sizes.values()), 2)
    assert found.damaged_bytes == 1136
    assert (found.budget_bytes, found.free_floor_bytes, found.daily_limit_bytes) == (7, 8, 9)
    assert found.written_today_bytes == found.written_total_bytes == sum(sizes.values()) + 1136
    (model,) = found.models
    assert (model.n_tokens, model.n_segments, model.n_bytes) == (3, 2, sum(sizes.values()))
    assert model.state_bytes == sum(size for (_, part), size in sizes.items() if part == "state")


def test_what_was_written_before_today_is_told_apart(root: Path, store: KvStore) -> None:
    """The day is that of the clock."""
    put(store, (1,))
    found = status(root, clock=Clock(CLOCK.now + 10 * 86_400), settings=PLENTY)
    assert (found.written_today_bytes, found.written_total_bytes) == (0, 1136)


def test_each_generation_is_a_model(root: Path, store: KvStore) -> None:
    """Largest first, by name, settings and self-test; one of another build cannot be used."""
    store.remember("self_test", {"passed": True, "state_bytes": 5})
    put(store, (1,))
    others = [
        changed(flash_attention=True, type_k="q8_0", type_v="q8_0", llama_build="older"),
        changed(gpu_layers=3, loras="abc*1.0 def*0.5"),
    ]
    for n, fingerprint in enumerate(others):
        with closing(open_store(root, fingerprint, clock=CLOCK)) as other:
            other.remember("self_test", {"passed": False})
            put(other, *((m,) for m in range(n + 2)))
    found = {model.fingerprint: model for model in look(root).models}
    ours, older, gpu = (found[one.digest().hex()] for one in (FINGERPRINT, *others))
    assert list(found.values()) == [gpu, older, ours]
    assert (ours.name, ours.path, ours.is_usable, ours.self_test) == ("m", "/m.gguf", True, True)
    assert ours.last_used == CLOCK.now
    assert (older.is_usable, older.self_test) == (False, False)
    assert ours.settings == "flash attention off, KV f16"
    assert older.settings == "flash attention on, KV q8_0"
    assert gpu.settings == "flash attention off, KV f16, GPU layers 3, 2 LoRAs"


def test_a_generation_without_segments_is_told(root: Path, store: KvStore) -> None:
    """A model whose self-test failed explains why nothing is stored."""
    store.remember("self_test", {"passed": False})
    (model,) = look(root).models
    assert (model.n_bytes, model.last_used, model.self_test) == (0, None, False)


@pytest.mark.parametrize(
    "about", [b"", b"[]", b"{", b'{"model": 5, "fields": [1]}', b'{"model": {"name": [1]}, "fields": {"type_k": {}}}']
)
def test_what_a_generation_says_of_itself_is_not_trusted(root: Path, store: KvStore, about: bytes) -> None:
    """Junk in its small files costs the name, nothing else."""
    put(store, (1,))
    folder = KvFolder(root).generation_dir(store.digest)
    (folder / "about.json").write_bytes(about)
    (folder / "notes.json").write_bytes(about)
    (model,) = look(root).models
    assert (model.n_segments, model.self_test) == (1, None)
    assert isinstance(model.name, str)


def test_settings_in_words() -> None:
    """What a user chose, not what follows from the model."""
    assert in_words({}) == ""
    assert in_words({"type_k": "f16", "type_v": "q8_0", "loras": "x*1.0"}) == (
        "flash attention off, K f16, V q8_0, 1 LoRA"
    )


def test_a_conversation_has_its_chain(root: Path, store: KvStore) -> None:
    """Bytes, tokens and last use of all chains it has; bytes that another one reaches are told."""
    (shared,) = put(store, (1, 2))
    (one,) = put(store, (3, 4, 5), after=shared)
    (two,) = put(store, (6,), after=shared)
    store._index.touch([one.key], CLOCK.now + 5)
    with closing(open_store(root, changed(gpu_layers=1), clock=CLOCK)) as other:
        (elsewhere,) = put(other, (7, 8))
    tips = {
        "one": [("f", one.key.hex()), ("g", elsewhere.key.hex())],
        "two": [("f", two.key.hex())],
        "none": [("f", "no key")],
    }
    first, second, third = look(root, tips).sessions
    size = path_of(root, shared).stat().st_size
    assert (first.session_id, first.n_tokens, first.shared_bytes, first.last_used) == ("one", 7, size, CLOCK.now + 5)
    assert first.n_bytes == sum(path_of(root, segment).stat().st_size for segment in (shared, one, elsewhere))
    assert (second.session_id, second.n_tokens, second.shared_bytes) == ("two", 3, size)
    assert (third.session_id, third.n_bytes, third.last_used) == ("none", 0, None)


def test_an_unreadable_index_is_an_error(root: Path) -> None:
    """It is not taken for an empty one, and stays as it is."""
    root.mkdir(parents=True)
    (root / "index.db").write_bytes(b"junk" * 1000)
    with pytest.raises(OSError, match="cannot be read"):
        look(root)
    assert (root / "index.db").read_bytes() == b"junk" * 1000


def test_an_index_of_another_version(root: Path) -> None:
    """An older one counts for nothing, as it will be made anew; a newer one is not guessed at."""
    for version, error in ((1, None), (99, "newer")):
        root.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(root / "index.db", isolation_level=None)) as db:
            db.execute("CREATE TABLE IF NOT EXISTS segments(x)")
            db.execute(f"PRAGMA user_version = {version}")
        if error:
            with pytest.raises(OSError, match=error):
                look(root)
        else:
            assert look(root).total_bytes == 0


def test_garbage_in_a_row_is_left_out(root: Path, store: KvStore) -> None:
    """Figures come from rows that can be ours."""
    put(store, (1,), (2,))
    with closing(KvIndex(root / "index.db")) as index:
        index._query("UPDATE segments SET last_used = 'never' WHERE start = 0")
    assert look(root).n_segments == 1


def test_notes_are_json(root: Path, store: KvStore) -> None:
    """A self-test's result is found where the engine keeps it."""
    store.remember("self_test", {"passed": True})
    assert json.loads((KvFolder(root).generation_dir(store.digest) / "notes.json").read_text())["self_test"]["passed"]
    assert look(root).models[0].self_test is True


def test_stored_tokens_are_known_by_flash_attention_mode(root: Path) -> None:
    """Of one model, one type of KV and one build: what a change of the mode would leave unused."""
    assert stored_by_flash_attention(root, FINGERPRINT.weights, "f16", BUILD) == {}
    for fingerprint, parts in (
        (FINGERPRINT, [(1, 2, 3), (4, 5)]),
        (changed(rope_base=20_000.0), [(1,)]),
        (changed(flash_attention=True), [(7,)]),
        (changed(weights="cd" * 32), [(8, 9)]),
        (changed(type_k="q8_0"), [(8, 9)]),
        (changed(llama_build="another build"), [(8, 9)]),
    ):
        with closing(open_store(root, fingerprint)) as opened:
            put(opened, *parts, n_bytes=100)
    found = stored_by_flash_attention(root, FINGERPRINT.weights, "f16", BUILD)
    assert {flash: kv.n_tokens for flash, kv in found.items()} == {False: 6, True: 1}
    on_disk = {model.fingerprint: model.n_bytes for model in look(root).models}
    off = (FINGERPRINT, changed(rope_base=20_000.0))
    assert found[False].n_bytes == sum(on_disk[one.digest().hex()] for one in off)
    (root / "index.db").write_bytes(b"damaged")
    assert stored_by_flash_attention(root, FINGERPRINT.weights, "f16", BUILD) == {}
