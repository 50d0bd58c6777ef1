from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.fingerprint import Fingerprint
from models.kvformat import SegmentDamaged, SegmentId
from models.kvstore import KvStore, forget, load_mac_key, plan_segments, segment_path
from tests.models.helpers import FINGERPRINT, changed, damage, segment_files

KEY = b"k" * 32
Open = Callable[..., KvStore]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Open]:
    """Opens stores over one folder, as several engines would."""
    opened: list[KvStore] = []

    def make(fingerprint: Fingerprint = FINGERPRINT, key: bytes = KEY) -> KvStore:
        store = KvStore(tmp_path / "kv", key, fingerprint, clock=lambda: 1.0)
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


def put(store: KvStore, *parts: Sequence[int]) -> list[SegmentId]:
    """Store a chain of segments; the payload of each names its tokens."""
    chain: list[SegmentId] = []
    for part in parts:
        parent = chain[-1].key if chain else store.root_key
        segment = SegmentId(store.root_key, parent, chain[-1].end if chain else 0, tuple(part))
        store.write(segment, repr(tuple(part)).encode())
        chain.append(segment)
    return chain


def found(store: KvStore, tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Start and end of each hit."""
    return [(hit.segment.start, hit.end) for hit in store.lookup(tokens)]


def test_whole_segments_then_one_in_part(open_store: Open) -> None:
    """The chain is followed as long as segments match whole; the last may match in part."""
    store = open_store()
    put(store, (1, 2), (3, 4, 5), (6, 7, 8))
    assert found(store, (1, 2, 3, 4, 5, 6, 9)) == [(0, 2), (2, 5), (5, 6)]
    assert [hit.is_whole for hit in store.lookup((1, 2, 3, 4, 9))] == [True, False]
    assert found(store, (9, 1, 2)) == []
    assert found(store, ()) == []


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


CHAINS = st.lists(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=1, max_size=3), min_size=1, max_size=5
)


@settings(max_examples=60)
@given(CHAINS, st.lists(st.integers(0, 1), max_size=8))
def test_the_longest_chain_is_found(
    tmp_path_factory: pytest.TempPathFactory, chains: list[list[list[int]]], wanted: list[int]
) -> None:
    """Whatever is stored, the hits are contiguous from 0 and reach as far as any stored chain agrees."""
    store = KvStore(tmp_path_factory.mktemp("kv"), KEY, FINGERPRINT, clock=lambda: 1.0)
    try:
        for chain in chains:
            put(store, *chain)
        hits = store.lookup(wanted)
    finally:
        store.close()
    assert [hit.segment.start for hit in hits] == [0, *(hit.end for hit in hits[:-1])][: len(hits)]
    assert all(hit.is_whole for hit in hits[:-1])
    flat = [[token for part in chain for token in part] for chain in chains]
    best = max(
        next((i for i, (a, b) in enumerate(zip(s, wanted, strict=False)) if a != b), min(len(s), len(wanted)))
        for s in flat
    )
    assert (hits[-1].end if hits else 0) == best


def test_a_payload_is_read_back(open_store: Open) -> None:
    """Reading gives what was written, for the store that wrote it and for another over the same folder."""
    chain = put(open_store(), (1, 2), (3,))
    other = open_store()
    assert found(other, (1, 2, 3)) == [(0, 2), (2, 3)]
    assert bytes(other.read(chain[0])) == b"(1, 2)"
    assert bytes(other.read(chain[1])) == b"(3,)"


def test_two_stores_see_each_others_segments(open_store: Open) -> None:
    """A segment written after both were opened is found by both, and either may go on with the chain."""
    one, other = open_store(), open_store()
    put(one, (1, 2))
    put(other, (1, 2), (3, 4))
    assert found(one, (1, 2, 3, 4)) == [(0, 2), (2, 4)]


def test_a_damaged_file_is_set_aside(tmp_path: Path, open_store: Open) -> None:
    """A checksum that fails is a miss from then on; the file lies among the damaged ones."""
    store = open_store()
    first, second = put(store, (1, 2), (3,))
    damage(segment_path(tmp_path / "kv", first.key))
    with pytest.raises(SegmentDamaged, match="checksum"):
        store.read(first)
    assert found(store, (1, 2, 3)) == []
    assert [path.name for path in (tmp_path / "kv" / "damaged").iterdir()] == [f"{first.key.hex()}.kv"]
    put(store, (1, 2))
    assert found(store, (1, 2, 3)) == [(0, 2), (2, 3)]
    assert bytes(store.read(second)) == b"(3,)"


def test_a_refused_segment_is_set_aside(open_store: Open) -> None:
    """What the engine could not load is not offered again."""
    store = open_store()
    (segment,) = put(store, (1, 2))
    store.reject(segment)
    assert found(store, (1, 2)) == []


def test_a_vanished_file_is_a_miss(tmp_path: Path, open_store: Open) -> None:
    """A file that was deleted behind our back raises once and is then forgotten."""
    store = open_store()
    (segment,) = put(store, (1, 2))
    segment_path(tmp_path / "kv", segment.key).unlink()
    with pytest.raises(FileNotFoundError):
        store.read(segment)
    assert found(store, (1, 2)) == []


def test_segments_of_another_mac_key_are_not_read(tmp_path: Path, open_store: Open) -> None:
    """KV of another data directory is a miss, and its file is left where it is."""
    (segment,) = put(open_store(key=b"o" * 32), (1, 2))
    store = open_store()
    with pytest.raises(SegmentDamaged, match="another key"):
        store.read(segment)
    assert found(store, (1, 2)) == []
    assert len(segment_files(tmp_path / "kv")) == 1


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"flash_attention": True}, "flash attention"),
        ({"llama_build": "other", "type_k": "q8_0"}, "llama build, type k"),
        ({"gpu_layers": 99}, "gpu layers"),
    ],
)
def test_a_miss_names_the_settings_that_differ(open_store: Open, fields: dict[str, Any], named: str) -> None:
    """The same weights under other settings explain the miss."""
    put(open_store(changed(**fields)), (1, 2))
    store = open_store()
    assert found(store, (1, 2)) == []
    assert store.why_missing() == f"stored under other settings: {named}"


def test_other_weights_explain_nothing(open_store: Open) -> None:
    """KV of another model is not a reason."""
    put(open_store(changed(weights="cd" * 32)), (1, 2))
    assert open_store().why_missing() == "nothing stored"


def test_a_deleted_index_is_an_empty_one(tmp_path: Path, open_store: Open) -> None:
    """Without its index the store finds nothing, and works."""
    store = open_store()
    put(store, (1, 2))
    store.close()
    for path in (tmp_path / "kv").glob("index.db*"):
        path.unlink()
    again = open_store()
    assert (found(again, (1, 2)), again.why_missing()) == ([], "nothing stored")
    put(again, (1, 2))
    assert found(again, (1, 2)) == [(0, 2)]


def test_a_damaged_index_is_an_empty_one(tmp_path: Path, open_store: Open) -> None:
    """Junk in the place of the index costs a prefill, not the conversation."""
    store = open_store()
    put(store, (1, 2))
    store.close()
    (tmp_path / "kv" / "index.db").write_bytes(b"no database at all" * 100)
    again = open_store()
    assert found(again, (1, 2)) == []
    put(again, (1, 2))
    assert found(again, (1, 2)) == [(0, 2)]


def test_an_index_that_breaks_while_open_is_a_miss(tmp_path: Path, open_store: Open) -> None:
    """Damage under an open store is a miss with a reason; only writing raises, and OSError at that."""
    store = open_store()
    (segment,) = put(store, (1, 2))
    store._index._query("DROP TABLE segments")
    assert found(store, (1, 2)) == []
    assert store.why_missing() == "the index of stored KV cannot be read"
    with pytest.raises(OSError, match="KV index"):
        put(store, (1, 2))
    segment_path(tmp_path / "kv", segment.key).unlink()
    with pytest.raises(FileNotFoundError):
        store.read(segment)


def test_a_row_at_a_wrong_place_is_not_followed(open_store: Open) -> None:
    """A start position that was changed in the index makes its row unusable."""
    store = open_store()
    put(store, (1, 2), (3, 4))
    store._index._query("UPDATE segments SET start = 1 WHERE start = 2")
    assert found(store, (1, 2, 3, 4)) == [(0, 2)]


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


# --- forgetting ---


def test_only_what_no_living_tip_reaches_is_deleted(tmp_path: Path, open_store: Open) -> None:
    """The shared prefix stays, the dead branch goes, and the bytes told are those of its files."""
    store = open_store()
    shared, dead = put(store, (1, 2), (3,))
    _, alive = put(store, (1, 2), (4, 5))
    size = segment_path(tmp_path / "kv", dead.key).stat().st_size
    assert forget(tmp_path, [dead.key.hex()], [alive.key.hex()]) == size
    assert found(store, (1, 2, 3)) == [(0, 2)]
    assert found(store, (1, 2, 4, 5)) == [(0, 2), (2, 4)]
    kept = {segment_path(tmp_path / "kv", segment.key) for segment in (shared, alive)}
    assert set(segment_files(tmp_path / "kv")) == kept


def test_a_dead_tip_inside_a_living_chain_deletes_nothing(tmp_path: Path, open_store: Open) -> None:
    """A fork's ancestors belong to the fork as well."""
    store = open_store()
    first, second = put(store, (1, 2), (3,))
    assert forget(tmp_path, [first.key.hex()], [second.key.hex()]) == 0
    assert found(store, (1, 2, 3)) == [(0, 2), (2, 3)]


def test_orphans_behind_deleted_segments_go_too(tmp_path: Path, open_store: Open) -> None:
    """Nothing hangs in the air: what followed a deleted segment cannot be reached any more."""
    store = open_store()
    first, _, _ = put(store, (1, 2), (3,), (4,))
    forget(tmp_path, [first.key.hex()], [])
    assert segment_files(tmp_path / "kv") == []
    assert found(store, (1, 2)) == []


def test_forgetting_needs_no_engine(tmp_path: Path) -> None:
    """Without a KV folder, or with unknown tips, nothing happens."""
    assert forget(tmp_path, ["ab" * 32], []) == 0
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tip_is_ignored(tmp_path: Path, open_store: Open) -> None:
    """A tip whose segment is gone deletes nothing."""
    put(open_store(), (1, 2))
    assert forget(tmp_path, ["ab" * 32], []) == 0
    assert len(segment_files(tmp_path / "kv")) == 1


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
