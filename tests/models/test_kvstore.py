import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import kvcare, misses
from models.engine import MemoryKind
from models.kvbudget import KvFull
from models.kvfolder import KvFolder
from models.kvformat import PARTS, Part, ReadTimes, SegmentDamaged, SegmentId, key_id
from models.kvindex import Loss
from models.kvsettings import KvSettings
from models.kvstore import KvStore, KvUnusable, load_mac_key, plan_segments, today
from models.stats import common_prefix
from tests.models import mutants
from tests.models.helpers import FIELD_NAMES, FINGERPRINT, changed, damage, other_in, segment_files

KEY = b"k" * 32
OTHER_KEY = b"o" * 32
KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)
Open = Callable[..., KvStore]
# What has to be there at the end of a chain.
NEEDED: dict[MemoryKind, set[Part]] = {
    "dense": {"rows"},
    "sliding window": {"rows"},
    "hybrid": {"rows", "state"},
    "recurrent": {"state"},
}


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Open]:
    """Opens stores over one folder, as several engines would."""
    opened: list[KvStore] = []

    def make(fingerprint: Any = FINGERPRINT, key: bytes = KEY, clock: float = 1.0, **more: Any) -> KvStore:
        store = KvStore(tmp_path / "kv", key, fingerprint, clock=lambda: clock, **more)
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


def chain_of(store: KvStore, *pieces: Sequence[int]) -> list[SegmentId]:
    """The segments of a conversation that is cut in these pieces."""
    chain: list[SegmentId] = []
    for piece in pieces:
        parent, start = (chain[-1].key, chain[-1].end) if chain else (store.root_key, 0)
        chain.append(SegmentId(store.digest, parent, start, tuple(piece)))
    return chain


def payload_of(segment: SegmentId, part: Part = "rows") -> bytes:
    """A payload that says whose it is."""
    return f"{part} of {segment.tokens}".encode()


def put(store: KvStore, *pieces: Sequence[int], parts: Sequence[Part] = ("rows",)) -> list[SegmentId]:
    """Store a chain of segments."""
    chain = chain_of(store, *pieces)
    for segment in chain:
        for part in parts:
            store.write(segment, payload_of(segment, part), part)
    return chain


def found(store: KvStore, tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Start and end of each hit."""
    return [(hit.segment.start, hit.end) for hit in store.lookup(tokens).hits]


@pytest.fixture(autouse=True)
def _short_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tokens in common are a common beginning here."""
    monkeypatch.setattr("models.kvstore._COINCIDENCE", 1)


def reason(store: KvStore, tokens: Sequence[int]) -> str | None:
    """Why no more can be restored."""
    return store.why(store.lookup(tokens), tokens)


def path_of(root: Path, segment: SegmentId, part: Part = "rows") -> Path:
    """Where a segment's part lies below a test's folder."""
    return KvFolder(root / "kv").segment_path(segment.fingerprint, segment.key, part)


# --- looking up, any memory ---


def test_whole_segments_then_one_in_part(open_store: Open) -> None:
    """The chain is followed as long as segments match whole; the last may match in part."""
    store = open_store()
    put(store, (1, 2), (3, 4, 5), (6, 7, 8))
    assert found(store, (1, 2, 3, 4, 5, 6, 9)) == [(0, 2), (2, 5), (5, 6)]
    assert [hit.is_whole for hit in store.lookup((1, 2, 3, 4, 9)).hits] == [True, False]
    assert found(store, (9, 1, 2)) == []
    assert found(store, ()) == []


def test_a_hit_tells_the_sizes_of_its_files(tmp_path: Path, open_store: Open) -> None:
    """What a restore will read is known before it is decided on."""
    store = open_store(kind="hybrid")
    (segment,) = put(store, (1, 2), parts=PARTS)
    (hit,) = store.lookup((1, 2)).hits
    assert (hit.rows_bytes, hit.state_bytes) == tuple(path_of(tmp_path, segment, p).stat().st_size for p in PARTS)


def test_the_same_tokens_under_another_parent_are_not_found(open_store: Open) -> None:
    """What was computed behind one prefix is not used behind another."""
    store = open_store()
    put(store, (1, 2), (3, 4))
    put(store, (7, 8))
    assert found(store, (7, 8, 3, 4)) == [(0, 2)]
    assert found(store, (3, 4)) == []


def test_a_partial_match_does_not_hide_a_chain(open_store: Open) -> None:
    """A merged segment that matches a little further than a whole one is not taken when the whole one goes on."""
    store = open_store()
    put(store, (1, 2), (3, 4, 5, 6))
    put(store, (1, 2, 3, 9))
    assert found(store, (1, 2, 3, 4, 5, 6)) == [(0, 2), (2, 6)]


def test_of_two_equal_ends_the_whole_segment_is_taken(open_store: Open) -> None:
    """Nothing has to be loaded that is cut off again, and the chain can go on behind it."""
    store = open_store()
    put(store, (1, 2, 3, 4))
    put(store, (1, 2))
    put(store, (1, 2, 5))
    assert [(hit.end, hit.is_whole) for hit in store.lookup((1, 2)).hits] == [(2, True)]


def test_a_row_at_a_wrong_place_is_not_followed(open_store: Open) -> None:
    """A start position that was changed in the index makes its row unusable."""
    store = open_store()
    put(store, (1, 2), (3, 4))
    store._index._query("UPDATE segments SET start = 1 WHERE start = 2")
    assert found(store, (1, 2, 3, 4)) == [(0, 2)]


def test_a_lookup_is_a_use(open_store: Open) -> None:
    """Every segment of the chain was used now, and of the states only the one that is restored from."""
    put(open_store(clock=1.0), (1,), (2,), parts=PARTS)
    put(open_store(clock=1.0), (9,))
    late = open_store(clock=7.0, kind="hybrid")
    late.lookup((1, 2, 3))
    uses = {(row.n_tokens, row.last_used, row.state_used) for row in late._index.outlines()}
    assert uses == {(1, 7.0, 7.0), (1, 7.0, 1.0), (1, 1.0, 1.0)}


# --- looking up, by what the memory can go back to ---


@pytest.mark.parametrize(
    ("kind", "wanted", "expected"),
    [
        ("dense", (1, 2, 3, 4, 5, 6), 6),
        ("dense", (1, 2, 3, 4, 5, 9), 5),
        ("dense", (1, 9), 1),
        ("sliding window", (1, 2, 3, 4, 5, 6), 6),
        ("sliding window", (1, 2, 3, 4, 5, 9), 4),
        ("sliding window", (1, 9), 0),
        ("hybrid", (1, 2, 3, 4, 5, 6), 4),
        ("hybrid", (1, 2, 3, 9), 0),
        ("recurrent", (1, 2, 3, 4, 5, 6), 4),
        ("recurrent", (1, 2, 3, 9), 0),
    ],
)
def test_how_far_a_memory_can_be_restored(
    open_store: Open, kind: MemoryKind, wanted: tuple[int, ...], expected: int
) -> None:
    """Any token, a segment's end, or a stored state: a chain of three with a state behind the second."""
    store = open_store(kind=kind)
    chain = chain_of(store, (1, 2), (3, 4), (5, 6))
    for segment in chain:
        store.write(segment, b"rows")
    store.write(chain[1], b"state", "state")
    assert store.lookup(wanted).end == expected


@pytest.mark.parametrize(("kind", "expected"), [("dense", 2), ("sliding window", 2), ("hybrid", 2), ("recurrent", 6)])
def test_only_a_recurrent_state_reaches_over_lost_segments(open_store: Open, kind: MemoryKind, expected: int) -> None:
    """Where the rows of a segment are lost nothing behind it can be used, unless one state stands for all of it."""
    store = open_store(kind=kind)
    _, middle, _ = put(store, (1, 2), (3, 4), (5, 6), parts=PARTS)
    store._index.lose([(middle.key, part) for part in PARTS], "evicted")
    assert store.lookup((1, 2, 3, 4, 5, 6)).end == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_may_go_on_where_it_can_be_followed(open_store: Open, kind: MemoryKind) -> None:
    """A segment is only stored for a new one behind it if a lookup would pass it."""
    store = open_store(kind=kind)
    kept, lost = put(store, (1, 2), (3, 4), parts=PARTS)
    (unknown,) = chain_of(store, (9,))
    store._index.lose([(lost.key, part) for part in PARTS], "damaged")
    assert [store.has(one.key) for one in (kept, lost, unknown)] == [True, kind == "recurrent", False]


Pieces = tuple[tuple[int, ...], ...]
TREES = st.dictionaries(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4).map(tuple),
    st.sets(st.sampled_from(PARTS)),
    min_size=1,
    max_size=6,
)


def with_ancestors(tree: Mapping[Pieces, set[Part]]) -> dict[Pieces, set[Part]]:
    """What lies in the index: each path and its ancestors; those that were not drawn have all parts."""
    paths = {path[:n] for path in tree for n in range(1, len(path) + 1)}
    return {path: tree.get(path, set(PARTS)) for path in paths}


def best_of(kind: MemoryKind, tree: Mapping[Pieces, set[Part]], wanted: Sequence[int]) -> tuple[int, int, bool]:
    """By trying everything: how far can be restored, how far anything agrees, whether a lost file is why not further.

    A second opinion on `KvStore.lookup`, from the rules in its docstrings.
    """
    end = matched = lost_to = 0
    for path, parts in tree.items():
        before = [token for piece in path[:-1] for token in piece]
        if list(wanted[: len(before)]) != before:
            continue
        if kind != "recurrent" and not all("rows" in tree[path[:n]] for n in range(1, len(path))):
            continue
        n = common_prefix(path[-1], wanted[len(before) :])
        if not n:
            continue
        is_whole = n == len(path[-1])
        reached = len(before) + n
        matched = max(matched, reached)
        if kind != "dense" and not is_whole:
            continue
        if NEEDED[kind] <= parts:
            end = max(end, reached)
        if parts != {"rows", "state"}:
            lost_to = max(lost_to, reached)
    return end, matched, lost_to > end


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(tree=TREES, wanted=st.lists(st.integers(0, 1), max_size=10))
def test_the_longest_chain_is_found(
    tmp_path_factory: pytest.TempPathFactory, kind: MemoryKind, tree: dict[Pieces, set[Part]], wanted: list[int]
) -> None:
    """Whatever is stored and lost, it is restored as far as the memory's rules allow, along one joined chain."""
    stored = with_ancestors(tree)
    store = KvStore(tmp_path_factory.mktemp("kv"), KEY, FINGERPRINT, clock=lambda: 1.0, kind=kind)
    try:
        for path, parts in stored.items():
            segment = chain_of(store, *path)[-1]
            for part in PARTS:
                store._index.add(segment, key_id(KEY), part, 10, 1.0)
            store._index.lose([(segment.key, part) for part in PARTS if part not in parts], "evicted")
        result = store.lookup(wanted)
    finally:
        store.close()
    end, matched, is_lost = best_of(kind, stored, wanted)
    assert (result.end, result.n_matched, result.loss) == (end, matched, "evicted" if is_lost else None)
    hits = result.hits
    assert [hit.segment for hit in hits] == chain_of(store, *(hit.segment.tokens for hit in hits))
    assert [hit.end for hit in hits] == [hit.segment.end for hit in hits[:-1]] + [end] * bool(hits)
    assert [t for hit in hits for t in hit.segment.tokens[: hit.n_used]] == wanted[:end]
    assert kind == "recurrent" or all(hit.rows_bytes for hit in hits)
    assert kind in ("dense", "sliding window") or not hits or hits[-1].state_bytes


# --- why not more ---


def test_nothing_stored(open_store: Open) -> None:
    """An empty store says so."""
    store = open_store()
    assert reason(store, (1, 2)) == misses.NOTHING


@pytest.mark.parametrize("kind", ["dense", "sliding window"])
def test_all_of_it_is_no_miss(open_store: Open, kind: MemoryKind) -> None:
    """Where everything wanted is found there is no reason."""
    store = open_store(kind=kind)
    put(store, (1, 2), (3, 4))
    assert reason(store, (1, 2, 3, 4)) is None


def test_a_text_that_parts_is_for_others_to_explain(open_store: Open) -> None:
    """A dense memory goes back to the very token: why the texts part there is not known here."""
    store = open_store()
    put(store, (1, 2), (3, 4))
    assert reason(store, (1, 2, 3, 9)) is None


def test_a_conversation_that_ends_is_not_told_as_an_edit(open_store: Open) -> None:
    """What was never kept, because KV was off or full, is said so; what follows differently elsewhere is not that."""
    store = open_store()
    put(store, (1, 2), (3, 4))
    assert reason(store, (1, 2, 3, 4, 5, 6)) == "stored up to token 4"
    put(store, (1, 2), (3, 4), (7,))
    assert reason(store, (1, 2, 3, 4, 5, 6)) is None


def test_what_lies_under_another_setting_is_named(open_store: Open) -> None:
    """A conversation that went on under other settings names them, one that did not does not."""
    store, other = open_store(), open_store(changed(flash_attention=True))
    put(store, (1, 2))
    put(other, (1, 2), (3, 4))
    assert reason(store, (1, 2, 3, 4, 5)) == "stored under other settings: flash attention"
    assert reason(store, (1, 2, 9)) == "stored up to token 2"


@pytest.mark.parametrize("place", ["pages", "folder", "nothing"])
def test_a_damaged_index_is_made_anew(tmp_path: Path, open_store: Open, place: str) -> None:
    """Damage that shows only when a page is read, or a folder in its place, costs nothing that is stored."""
    store = open_store()
    chain = put(store, *[(n, n) for n in range(1, 60)])
    store.close()
    path = tmp_path / "kv" / "index.db"
    if place == "pages":
        data = bytearray(path.read_bytes())
        assert len(data) > 12_288
        data[8_192:] = b"\xa5" * (len(data) - 8_192)
        path.write_bytes(data)
    elif place == "folder":
        path.unlink()
        (path / "in it").mkdir(parents=True)
    tokens = [token for segment in chain for token in segment.tokens]
    again = open_store()
    assert again.lookup(tokens).end == len(tokens)
    put(again, (500, 501))
    assert found(again, (500, 501)) == [(0, 2)]


@pytest.mark.parametrize(("field", "name"), FIELD_NAMES.items())
def test_every_other_setting_is_refused_by_name(open_store: Open, field: str, name: str) -> None:
    """KV of a fingerprint that differs in one field is never found, and the miss names the field.

    Other weights are another model, of which nothing is stored.
    """
    put(open_store(other_in(field)), (1, 2))
    store = open_store()
    result = store.lookup((1, 2))
    assert (result.hits, result.n_matched) == ((), 0)
    assert store.why(result, (1, 2)) == (
        misses.NOTHING if field == "weights" else f"stored under other settings: {name}"
    )


def test_all_settings_that_differ_are_named(open_store: Open) -> None:
    """Not only the first."""
    put(open_store(changed(type_k="q8_0", type_v="q8_0", gpu_layers=9)), (1, 2))
    assert reason(open_store(), (1, 2)) == "stored under other settings: KV type of K, KV type of V, GPU layers"


def test_settings_under_which_nothing_is_left_explain_nothing(open_store: Open) -> None:
    """A generation whose files are all gone is no reason."""
    other = open_store(changed(gpu_layers=9))
    (segment,) = put(other, (1, 2))
    other._index.lose([(segment.key, "rows")], "evicted")
    assert reason(open_store(), (1, 2)) == misses.NOTHING


def test_a_generation_that_does_not_say_what_it_is_explains_nothing(tmp_path: Path, open_store: Open) -> None:
    """Junk in its description is not a reason either."""
    other = open_store(changed(gpu_layers=9))
    put(other, (1, 2))
    (tmp_path / "kv" / other.digest.hex() / "about.json").write_bytes(b'{"fields": 5}')
    assert reason(open_store(), (1, 2)) == misses.NOTHING


def test_what_was_evicted_is_told(open_store: Open) -> None:
    """A conversation that had to make room for another one says so."""
    store = open_store(settings=KvSettings(budget_bytes=1_000, free_floor_bytes=0))
    old, new = chain_of(store, (1, 2))[0], chain_of(store, (3, 4))[0]
    store.write(old, bytes(600))
    store.write(new, bytes(600))
    result = store.lookup((1, 2))
    assert (result.hits, result.loss, store.why(result, (1, 2))) == ((), "evicted", misses.EVICTED)
    assert found(store, (3, 4)) == [(0, 2)]


@pytest.mark.parametrize("kind", ["hybrid", "recurrent"])
def test_an_evicted_state_is_told(open_store: Open, kind: MemoryKind) -> None:
    """The rows alone are no point to go back to, and the state was there once."""
    store = open_store(kind=kind)
    _, second = put(store, (1, 2), (3, 4), parts=PARTS)
    store._index.lose([(second.key, "state")], "evicted")
    result = store.lookup((1, 2, 3, 4, 5))
    assert (result.end, store.why(result, (1, 2, 3, 4, 5))) == (2, misses.EVICTED)


def test_a_loss_that_would_not_have_helped_is_no_reason(open_store: Open) -> None:
    """A lost segment beside the chain, which agrees no further than what was found."""
    store = open_store()
    put(store, (1, 2), (3, 4, 5))
    lost = put(store, (1, 2), (3, 9))[-1]
    store._index.lose([(lost.key, "rows")], "evicted")
    assert reason(store, (1, 2, 3, 4)) is None


def test_a_loss_that_agrees_further_than_what_is_left_is_the_reason(open_store: Open) -> None:
    """Another conversation's first token in common does not hide that the own one was evicted."""
    store = open_store()
    lost = put(store, (1, 2), (3, 4, 5))[-1]
    put(store, (1, 2), (3, 9))
    store._index.lose([(lost.key, "rows")], "evicted")
    result = store.lookup((1, 2, 3, 4, 5))
    assert (result.end, store.why(result, (1, 2, 3, 4, 5))) == (3, misses.EVICTED)


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        ("evicted", misses.EVICTED),
        ("vanished", misses.VANISHED),
        ("damaged", "damaged file set aside: found earlier"),
    ],
)
def test_every_loss_has_its_words(open_store: Open, loss: Loss, told: str) -> None:
    """What happened to a file is told at every later lookup, also by another engine."""
    store = open_store()
    put(store, (1, 2), (3, 4))
    store._index.lose([(chain_of(store, (1, 2), (3, 4))[1].key, "rows")], loss)
    assert (reason(store, (1, 2, 3, 4)), reason(open_store(), (1, 2, 3, 4))) == (told, told)


@pytest.mark.parametrize("kind", ["sliding window", "hybrid", "recurrent"])
def test_a_memory_that_cannot_go_back_says_so(open_store: Open, kind: MemoryKind) -> None:
    """What agrees further than the last point that can be restored is not the text's fault."""
    store = open_store(kind=kind)
    put(store, (1, 2), (3, 4, 5), parts=PARTS)
    assert reason(store, (1, 2, 3, 4, 9)) == "cut at token 2: this model cannot go back further on"
    assert reason(store, (1, 9)) == "no state stored to go back to"


def test_an_index_that_cannot_be_written_can_be_read(open_store: Open) -> None:
    """On a full disk a use is not recorded, and what is stored is used."""
    store = open_store()
    put(store, (1, 2), (3,))
    store._index._query("PRAGMA query_only=ON")
    assert found(store, (1, 2, 3, 4)) == [(0, 2), (2, 3)]
    assert store.lookup((1, 2, 3)).error is None


def test_an_index_that_breaks_while_open_is_made_anew(open_store: Open) -> None:
    """Tables that are gone under an open store are filled from the files again, for reading and for writing."""
    store = open_store()
    put(store, (1, 2))
    store._index._query("DROP TABLE segments")
    assert found(store, (1, 2)) == [(0, 2)]
    store._index._query("DROP TABLE segments")
    put(store, (1, 2), (3,))
    assert found(store, (1, 2, 3)) == [(0, 2), (2, 3)]


def test_an_index_that_cannot_be_read_is_a_miss_with_a_reason(open_store: Open) -> None:
    """Asked why, damage is the answer; nothing is raised."""
    store = open_store()
    put(store, (1, 2))
    before = store.lookup((8, 9))
    store._index._query("DROP TABLE segments")
    told = store.why(before, (8, 9))
    assert told is not None
    assert told.startswith("stored KV cannot be read: the KV index is damaged (")


# --- several stores over one folder ---


def test_a_payload_is_read_back(open_store: Open) -> None:
    """Reading gives what was written, for the store that wrote it and for another over the same folder."""
    chain = put(open_store(), (1, 2), (3,), parts=PARTS)
    other = open_store()
    assert found(other, (1, 2, 3)) == [(0, 2), (2, 3)]
    for segment in chain:
        for part in PARTS:
            assert bytes(other.read(segment, part)) == payload_of(segment, part)


def test_two_stores_see_each_others_segments(open_store: Open) -> None:
    """A segment written after both were opened is found by both, and either may go on with the chain."""
    one, other = open_store(), open_store()
    put(one, (1, 2))
    put(other, (1, 2), (3, 4))
    assert found(one, (1, 2, 3, 4)) == [(0, 2), (2, 4)]


def test_two_data_directories_never_meet(open_store: Open) -> None:
    """The same conversation under the same settings is nothing stored to the owner of another key."""
    ours, theirs = open_store(), open_store(key=OTHER_KEY)
    (segment,) = put(ours, (1, 2))
    assert (found(theirs, (1, 2)), reason(theirs, (1, 2))) == ([], misses.NOTHING)
    (other,) = put(theirs, (1, 2))
    assert segment.key != other.key
    assert bytes(ours.read(segment)) == bytes(theirs.read(other)) == payload_of(segment)


def test_a_file_of_another_key_that_was_planted_is_set_aside(tmp_path: Path, open_store: Open) -> None:
    """In the place of one of ours it is refused, and ours is not offered again."""
    store, theirs = open_store(), open_store(key=OTHER_KEY)
    (segment,) = put(store, (1, 2))
    theirs.write(segment, b"theirs")
    with pytest.raises(SegmentDamaged, match="another key"):
        store.read(segment)
    assert (found(store, (1, 2)), segment_files(tmp_path / "kv")) == ([], [])


def test_stores_of_several_generations_share_a_folder(tmp_path: Path, open_store: Open) -> None:
    """Each has its folder, which says what it is."""
    for n in range(3):
        put(open_store(changed(gpu_layers=n), model={"name": f"model {n}", "path": "/m"}), (1, 2))
    folder = KvFolder(tmp_path / "kv")
    assert len(folder.generations()) == 3
    about = folder.about(changed(gpu_layers=2).digest())
    assert about == {"fields": changed(gpu_layers=2).fields(), "model": {"name": "model 2", "path": "/m"}}


# --- files that are not what they should be ---


@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_file_is_set_aside(tmp_path: Path, open_store: Open, part: Part) -> None:
    """A checksum that fails is a miss from then on; the file lies among the damaged ones until it is written anew."""
    store = open_store()
    first, second = put(store, (1, 2), (3,), parts=PARTS)
    damage(path_of(tmp_path, first, part))
    with pytest.raises(SegmentDamaged, match="checksum"):
        store.read(first, part)
    assert [path.name for path in (tmp_path / "kv" / "damaged").iterdir()] == [f"{first.key.hex()}.{part}"]
    row = store._index.get(first.key)
    assert row is not None
    assert (row.rows_bytes > 0, row.state_bytes > 0, row.loss) == (part == "state", part == "rows", "damaged")
    put(store, (1, 2), parts=[part])
    assert found(store, (1, 2, 3)) == [(0, 2), (2, 3)]
    assert bytes(store.read(first, part)) == payload_of(first, part)
    assert bytes(store.read(second)) == payload_of(second)


def test_a_refused_segment_is_set_aside(open_store: Open) -> None:
    """What the engine could not load is not offered again, and told as damaged."""
    store = open_store()
    (segment,) = put(store, (1, 2))
    store.reject(segment)
    assert found(store, (1, 2)) == []
    assert reason(store, (1, 2)) == "damaged file set aside: found earlier"


def test_a_vanished_file_is_a_miss(tmp_path: Path, open_store: Open) -> None:
    """A file that was deleted behind our back raises once; then it is told as missing."""
    store = open_store()
    (segment,) = put(store, (1, 2))
    path_of(tmp_path, segment).unlink()
    with pytest.raises(FileNotFoundError):
        store.read(segment)
    assert (found(store, (1, 2)), reason(store, (1, 2))) == ([], misses.VANISHED)


def test_a_file_that_cannot_be_opened_is_a_miss(tmp_path: Path, open_store: Open) -> None:
    """A link in its place is not followed, and is set aside like other damage."""
    store = open_store()
    (segment,) = put(store, (1, 2))
    path = path_of(tmp_path, segment)
    path.symlink_to(path.rename(tmp_path / "elsewhere"))
    with pytest.raises(SegmentDamaged, match="not a file"):
        store.read(segment)
    assert found(store, (1, 2)) == []
    assert not path.is_symlink()


@pytest.mark.parametrize("ahead", [True, False])
def test_no_mutant_reaches_the_engine(tmp_path: Path, open_store: Open, ahead: bool) -> None:
    """A damaged, spliced or displaced file yields no payload, alone or read ahead, and is not offered again."""
    store = open_store(key=mutants.KEY)
    (good,) = put(store, (1, 2))
    for wanted, data in mutants.Mutants.of(tmp_path).make(500, random.Random(1)):
        segment, part = wanted.segment, wanted.part
        path = path_of(tmp_path, segment, part)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        store._index.add(segment, key_id(mutants.KEY), part, len(data), 1.0)
        if ahead:
            payloads = store.read_each([(good, "rows"), (segment, part)])
            assert bytes(next(payloads)) == payload_of(good)
            with pytest.raises(SegmentDamaged):
                next(payloads)
        else:
            with pytest.raises(SegmentDamaged):
                store.read(segment, part)
        row = store._index.get(segment.key)
        assert row is not None
        assert (row.bytes, row.loss, path.exists()) == (0, "damaged", False)


# --- reading ahead ---


def pieces_of(n: int) -> list[tuple[int, ...]]:
    """A conversation of n segments of different sizes."""
    return [tuple(range(100 * i, 100 * i + 1 + (7 * i) % 5)) for i in range(n)]


@pytest.mark.parametrize("buffer_bytes", [1, 40, 1 << 20])
def test_payloads_come_in_order(open_store: Open, monkeypatch: pytest.MonkeyPatch, buffer_bytes: int) -> None:
    """Both parts, however many files, whether or not they fit the buffers."""
    monkeypatch.setattr("models.kvstore._BUFFER_BYTES", buffer_bytes)
    store = open_store()
    wanted = [(segment, part) for segment in put(store, *pieces_of(12), parts=PARTS) for part in PARTS]
    assert [bytes(payload) for payload in store.read_each(wanted)] == [payload_of(*one) for one in wanted]
    assert list(store.read_each([])) == []


def test_what_the_readers_took_is_counted_payload_by_payload(open_store: Open) -> None:
    """With each payload that is given, not before: what is read ahead in vain counts for nothing."""
    store = open_store()
    times, seen = ReadTimes(), [0.0]
    wanted: list[tuple[SegmentId, Part]] = [(segment, "rows") for segment in put(store, *pieces_of(6))]
    for _payload in store.read_each(wanted, times):
        seen.append(times.read_s + times.verify_s)
    assert seen == sorted(set(seen))
    assert len(seen) == 1 + len(wanted)


def test_buffers_that_were_warmed_up_are_used_again(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore needs no fresh memory, and the next one neither."""
    monkeypatch.setattr("models.kvstore._BUFFER_BYTES", 1_000)
    store = open_store()
    chain = put(store, *pieces_of(8))
    store.warm_up()
    warm = {id(buffer) for buffer in store._buffers}
    for _ in range(2):
        used = {id(payload.obj) for payload in store.read_each([(segment, "rows") for segment in chain])}
        assert used <= warm


def test_a_payload_stays_while_the_next_ones_are_read(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is being loaded is not overwritten, however far the readers are ahead."""
    store = open_store()
    chain = put(store, *pieces_of(9))
    n_read = threading.Semaphore(0)
    read = store._read

    def counted(*arguments: Any) -> memoryview:
        payload = read(*arguments)
        n_read.release()
        return payload

    monkeypatch.setattr(store, "_read", counted)
    n_seen = 0
    for i, payload in enumerate(store.read_each([(segment, "rows") for segment in chain])):
        while n_seen < min(i + 3, len(chain)):
            assert n_read.acquire(timeout=10)
            n_seen += 1
        assert bytes(payload) == payload_of(chain[i])


@pytest.mark.parametrize("at", [0, 1, 4])
def test_an_error_comes_when_its_turn_comes(tmp_path: Path, open_store: Open, at: int) -> None:
    """What lies before a damaged file is given, and nothing behind it."""
    store = open_store()
    chain = put(store, *pieces_of(5))
    damage(path_of(tmp_path, chain[at]))
    payloads = store.read_each([(segment, "rows") for segment in chain])
    assert [bytes(next(payloads)) for _ in range(at)] == [payload_of(segment) for segment in chain[:at]]
    with pytest.raises(SegmentDamaged, match="checksum"):
        next(payloads)
    assert list(payloads) == []


def test_a_file_that_vanished_is_an_error_in_its_turn(tmp_path: Path, open_store: Open) -> None:
    """The same for one that is not there."""
    store = open_store()
    first, second = put(store, (1, 2), (3, 4))
    path_of(tmp_path, second).unlink()
    payloads = store.read_each([(first, "rows"), (second, "rows")])
    assert bytes(next(payloads)) == payload_of(first)
    with pytest.raises(FileNotFoundError):
        next(payloads)


@pytest.mark.parametrize("n_taken", [0, 1, 3])
def test_reading_may_end_early(open_store: Open, n_taken: int) -> None:
    """Who gives up leaves no reader behind, and the store goes on."""
    store = open_store()
    chain = put(store, *pieces_of(9))
    payloads = store.read_each([(segment, "rows") for segment in chain])
    for _ in range(n_taken):
        next(payloads)
    assert isinstance(payloads, Generator)
    payloads.close()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("kv-reader")] == []
    assert [bytes(payload) for payload in store.read_each([(chain[8], "rows")])] == [payload_of(chain[8])]


# --- writing ---


def test_a_write_tells_what_it_took(tmp_path: Path, open_store: Open) -> None:
    """The file's size, which is also what the day's counter and the index have."""
    store = open_store()
    (segment,) = chain_of(store, (1, 2))
    n_bytes = store.write(segment, b"rows")
    assert n_bytes == path_of(tmp_path, segment).stat().st_size
    assert (store._index.written(today(1.0)), store._index.total_bytes()) == (n_bytes, n_bytes)


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (KvSettings(budget_bytes=100, free_floor_bytes=0), "the budget of 100 B is smaller than what is to be stored"),
        (KvSettings(daily_bytes=100), "today's limit of 100 B of writing is reached"),
        (KvSettings(budget_bytes=1 << 60, free_floor_bytes=1 << 60), "the disk has less than 1048576 TiB free"),
    ],
)
def test_a_write_beyond_a_limit_leaves_nothing(tmp_path: Path, open_store: Open, limits: KvSettings, told: str) -> None:
    """It says which limit stands in the way; no file, no row, nothing counted."""
    store = open_store(settings=limits)
    (segment,) = chain_of(store, (1, 2))
    with pytest.raises(KvFull) as caught:
        store.write(segment, bytes(200))
    assert caught.value.strerror == told
    assert not [path for path in (tmp_path / "kv" / store.digest.hex()).rglob("*") if path.suffix != ".json"]
    assert (store._index.outlines(), store._index.written()) == ([], 0)


def test_a_new_day_may_be_written_again(tmp_path: Path) -> None:
    """The day's limit is of the day."""
    now = [1.0]
    store = KvStore(tmp_path / "kv", KEY, FINGERPRINT, clock=lambda: now[0], settings=KvSettings(daily_bytes=300))
    with closing(store):
        put(store, (1, 2))
        with pytest.raises(KvFull):
            store.write(chain_of(store, (3, 4))[0], bytes(200))
        now[0] += 48 * 3600
        store.write(chain_of(store, (3, 4))[0], bytes(100))


def test_a_write_that_fails_leaves_no_row(tmp_path: Path, open_store: Open) -> None:
    """A folder in the file's place: nothing is promised that is not there."""
    store = open_store()
    (segment,) = chain_of(store, (1, 2))
    path_of(tmp_path, segment).mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        store.write(segment, b"rows")
    assert store._index.outlines() == []


def test_a_chain_in_use_is_not_evicted(open_store: Open) -> None:
    """Another engine's conversation stays, whatever room is needed; once it moves on, it may go."""
    limits = KvSettings(budget_bytes=1_200, free_floor_bytes=0)
    working, other = open_store(settings=limits), open_store(settings=limits)
    first, tip = chain_of(working, (1, 2), (3, 4))
    for segment in (first, tip):
        working.write(segment, bytes(300))
    working.use(tip)
    with pytest.raises(KvFull, match="in use"):
        other.write(chain_of(other, (9,))[0], bytes(900))
    assert found(other, (1, 2, 3, 4)) == [(0, 2), (2, 4)]
    working.use(None)
    other.write(chain_of(other, (9,))[0], bytes(900))
    assert found(other, (1, 2, 3, 4)) == []


# --- a folder or an index that goes away ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("junk", [None, b"no database at all" * 100])
def test_an_index_is_filled_from_the_files(
    tmp_path: Path, open_store: Open, kind: MemoryKind, junk: bytes | None
) -> None:
    """Deleted or damaged, it costs nothing: everything is found again, and is what it was."""
    store = open_store(kind=kind)
    chain = put(store, (1, 2), (3, 4), parts=PARTS)
    store.close()
    for path in (tmp_path / "kv").glob("index.db*"):
        path.unlink()
    if junk is not None:
        (tmp_path / "kv" / "index.db").write_bytes(junk)
    again = open_store(kind=kind)
    assert found(again, (1, 2, 3, 4)) == [(0, 2), (2, 4)]
    wanted = [(segment, part) for segment in chain for part in PARTS]
    assert [bytes(again.read(*one)) for one in wanted] == [payload_of(*one) for one in wanted]


def test_files_that_are_no_segments_are_not_found_again(tmp_path: Path, open_store: Open) -> None:
    """What takes a segment's name without being it is set aside when the index is filled."""
    store = open_store()
    first, second = put(store, (1, 2), (3, 4))
    store.close()
    (tmp_path / "kv" / "index.db").unlink()
    path_of(tmp_path, first).replace(path_of(tmp_path, second))
    assert found(open_store(), (1, 2, 3, 4)) == []
    assert segment_files(tmp_path / "kv") == []


def test_a_folder_that_is_deleted_while_open_starts_anew(tmp_path: Path, open_store: Open) -> None:
    """Reading raises, writing makes it again: private, described, and with the chain in use protected."""
    store = open_store(model={"name": "m", "path": "/m"}, settings=KvSettings(budget_bytes=800, free_floor_bytes=0))
    (segment,) = put(store, (1, 2))
    store.use(segment)
    shutil.rmtree(tmp_path / "kv")
    with pytest.raises(FileNotFoundError):
        store.read(segment)
    store.write(segment, bytes(300))
    store.use(segment)
    assert found(store, (1, 2)) == [(0, 2)]
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700
    assert KvFolder(tmp_path / "kv").about(store.digest) == {
        "fields": FINGERPRINT.fields(),
        "model": {"name": "m", "path": "/m"},
    }
    with pytest.raises(KvFull):
        store.write(chain_of(store, (9,))[0], bytes(600))
    assert bytes(store.read(segment)) == bytes(300)


def test_two_stores_meet_again_in_a_folder_that_was_deleted(tmp_path: Path, open_store: Open) -> None:
    """The index that one of them makes anew is the one the other goes on with."""
    one, other = open_store(), open_store()
    put(one, (1, 2))
    shutil.rmtree(tmp_path / "kv")
    put(one, (1, 2))
    put(other, (1, 2), (3, 4))
    assert found(one, (1, 2, 3, 4)) == found(other, (1, 2, 3, 4)) == [(0, 2), (2, 4)]


def test_what_is_cleared_while_open_is_only_missing(tmp_path: Path, open_store: Open) -> None:
    """After a clear the store begins anew, and says what its generation is."""
    store = open_store(model={"name": "m", "path": "/m"})
    (segment,) = put(store, (1, 2))
    kvcare.clear(tmp_path / "kv")
    assert (found(store, (1, 2)), reason(store, (1, 2))) == ([], misses.NOTHING)
    with pytest.raises(FileNotFoundError):
        store.read(segment)
    put(store, (1, 2))
    assert found(store, (1, 2)) == [(0, 2)]
    assert KvFolder(tmp_path / "kv").about(store.digest)["model"] == {"name": "m", "path": "/m"}


def test_index_and_files_are_brought_in_line_once_a_day(tmp_path: Path) -> None:
    """What was deleted by hand is noticed by the next day's tidying, not by one on the same day."""
    now = [1.0]
    store = KvStore(tmp_path / "kv", KEY, FINGERPRINT, clock=lambda: now[0])
    with closing(store):
        (segment,) = put(store, (1, 2))
        path_of(tmp_path, segment).unlink()
        now[0] += 24 * 3600 - 1
        store.tidy()
        assert found(store, (1, 2)) == [(0, 2)]
        now[0] += 1
        store.tidy()
        assert (found(store, (1, 2)), reason(store, (1, 2))) == ([], misses.VANISHED)


def test_tidying_a_broken_index_is_no_error(open_store: Open) -> None:
    """It is tried again another day."""
    store = open_store(clock=1e9)
    store._index._query("DROP TABLE marks")
    store.tidy()


def test_a_newer_programs_index_is_left_alone(tmp_path: Path, open_store: Open) -> None:
    """A store cannot be opened over it, and says why."""
    open_store()._index._query("PRAGMA user_version=99")
    with pytest.raises(OSError, match="newer version of this program"):
        open_store()
    assert (tmp_path / "kv" / "index.db").stat().st_size


# --- engines that die ---


DIE = """
import os, sys
from pathlib import Path
from models.kvformat import SegmentId
from models.kvstore import KvStore
from tests.models.helpers import FINGERPRINT

store = KvStore(Path(sys.argv[1]), b"k" * 32, FINGERPRINT, clock=lambda: 1.0)
segment = SegmentId(store.digest, store.root_key, 0, (1, 2))
store.use(None, loading=segment)
os._exit(7)
"""


def left_behind(root: Path, name: str, loading: tuple[bytes, bytes] = (bytes(32), bytes(32))) -> None:
    """The sign of an engine that died while it loaded a segment of a generation."""
    (root / "kv" / "in-use").mkdir(parents=True, exist_ok=True)
    (root / "kv" / "in-use" / f"{name}.lock").touch()
    (root / "kv" / "in-use" / name).write_bytes(bytes(32) + b"".join(loading))


DIGEST = FINGERPRINT.digest()
TWICE = "the engine died twice while it restored this model's KV; `chatapp kv clear` lets it try again"


def test_a_segment_that_killed_two_engines_ends_the_use_of_kv(tmp_path: Path, open_store: Open) -> None:
    """Real processes that end while they load; the second time is one too many, until everything is cleared."""
    for n in (1, 2):
        died = subprocess.run([sys.executable, "-c", DIE, str(tmp_path / "kv")], timeout=60, check=False)
        assert died.returncode == 7
        if n == 1:
            open_store().close()
    for _ in range(2):
        with pytest.raises(KvUnusable) as caught:
            open_store()
        assert str(caught.value) == TWICE
    kvcare.clear(tmp_path / "kv")
    open_store()


def test_two_segments_that_killed_an_engine_each_do_not(tmp_path: Path, open_store: Open) -> None:
    """One accident is no proof."""
    for name in "ab":
        left_behind(tmp_path, name, (DIGEST, name.encode() * 32))
    open_store()


def test_crashes_are_counted_over_all_starts(tmp_path: Path, open_store: Open) -> None:
    """Each is counted once, by whoever looks next, also by an engine of another model."""
    left_behind(tmp_path, "a", (DIGEST, b"s" * 32))
    open_store(changed(weights="cd" * 32))
    open_store().close()
    open_store().close()
    left_behind(tmp_path, "b", (DIGEST, b"s" * 32))
    with pytest.raises(KvUnusable):
        open_store()
    open_store(changed(weights="cd" * 32))


def test_an_engine_that_lives_has_not_crashed(open_store: Open) -> None:
    """Loading right now is no crash."""
    first = open_store()
    (segment,) = put(first, (1, 2))
    first.use(None, loading=segment)
    for _ in range(3):
        open_store().close()
    assert first.note("crashes") is None


def test_an_engine_that_died_otherwise_is_no_crash_of_kv(tmp_path: Path, open_store: Open) -> None:
    """Killed while nothing was loaded, or before it could say anything."""
    for name in "abc":
        left_behind(tmp_path, name)
    (tmp_path / "kv" / "in-use" / "a").write_bytes(b"")
    (tmp_path / "kv" / "in-use" / "b").unlink()
    assert open_store().note("crashes") is None


@pytest.mark.parametrize("junk", [[], 5, "many", {"00": "many"}, {"00": None}, {"00": [2]}])
def test_crash_counts_that_are_none_are_not_believed(tmp_path: Path, open_store: Open, junk: Any) -> None:
    """Junk in the notes does not stand in the way, and counting goes on."""
    open_store().remember("crashes", junk)
    open_store()
    for name in "ab":
        left_behind(tmp_path, name, (DIGEST, b"s" * 32))
    with pytest.raises(KvUnusable):
        open_store()


# --- notes ---


def test_notes_are_remembered_for_a_generation(open_store: Open) -> None:
    """By name, for every later engine with the same settings and for no other."""
    open_store().remember("rates", {"a": 1.5})
    open_store().remember("self_test", {"passed": True})
    assert open_store().note("rates") == {"a": 1.5}
    assert open_store().note("self_test") == {"passed": True}
    assert open_store().note("other") is None
    assert open_store(changed(gpu_layers=9)).note("rates") is None


# --- cutting into segments ---

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def ends_of(lengths: list[int]) -> list[int]:
    """Positions behind messages of these lengths."""
    return [sum(lengths[: i + 1]) for i in range(len(lengths))]


@given(lengths=LENGTHS, n_stored=st.integers(0, 12), cap=st.integers(1, 60))
def test_segments_cover_exactly_what_is_new(lengths: list[int], n_stored: int, cap: int) -> None:
    """Segments are contiguous from the start to the last message's end, none empty or above the cap."""
    ends = ends_of(lengths)
    start = ([0, *ends])[min(n_stored, len(ends))]
    cuts = plan_segments(ends, start, cap)
    borders = [start, *(end for _, end in cuts)]
    assert cuts == list(pairwise(borders))
    assert borders[-1] == ends[-1]
    assert all(0 < end - begin <= cap for begin, end in cuts)


@given(lengths=LENGTHS, cap=st.integers(1, 60))
def test_segments_end_where_messages_do(lengths: list[int], cap: int) -> None:
    """A cut inside a message is only made where the message is longer than the cap, and the first stands alone."""
    ends = ends_of(lengths)
    cuts = plan_segments(ends, 0, cap)
    for _, end in cuts:
        message = next(i for i, e in enumerate(ends) if end <= e)
        assert end == ends[message] or lengths[message] > cap or cut_in_rest(ends, cuts, message, cap)
    assert ends[0] in {end for _, end in cuts}


def cut_in_rest(ends: list[int], cuts: list[tuple[int, int]], message: int, cap: int) -> bool:
    """True when the segment that is cut in `message` began before it: it was full."""
    begin = ends[message - 1] if message else 0
    return any(b < begin < e and e - b == cap for b, e in cuts)


def test_short_messages_are_put_together() -> None:
    """After the first, messages share a segment up to the cap."""
    assert plan_segments([10, 15, 20, 45], 0, 30) == [(0, 10), (10, 20), (20, 45)]
    assert plan_segments([10, 15, 20, 45], 10, 100) == [(10, 45)]
    assert plan_segments([10, 15], 15, 100) == []


def test_a_long_first_message_stands_alone_too() -> None:
    """A system prompt above the cap shares no segment with what follows, so that other sessions can use all of it."""
    assert plan_segments([25, 30], 0, 10) == [(0, 10), (10, 20), (20, 25), (25, 30)]


# --- the MAC key ---


def test_the_mac_key_is_made_once(tmp_path: Path) -> None:
    """32 bytes, the same ones each time, readable by the owner only."""
    key = load_mac_key(tmp_path / "data")
    assert len(key) == 32
    assert load_mac_key(tmp_path / "data") == key
    assert (tmp_path / "data" / "kv.key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["kv.key"]
    assert load_mac_key(tmp_path / "other") != key


def test_a_cut_mac_key_is_replaced(tmp_path: Path) -> None:
    """A key file of a wrong length is made anew."""
    (tmp_path / "kv.key").write_bytes(b"short")
    key = load_mac_key(tmp_path)
    assert len(key) == 32
    assert load_mac_key(tmp_path) == key


def test_the_first_of_two_processes_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that appeared while ours was made is the one both use."""
    first = b"1" * 32

    def other_was_first(_n: int) -> bytes:
        (tmp_path / "kv.key").write_bytes(first)
        return b"2" * 32

    monkeypatch.setattr("models.kvstore.secrets.token_bytes", other_was_first)
    assert load_mac_key(tmp_path) == first
