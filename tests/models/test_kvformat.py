import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.kvformat import (
    HEADER_BYTES,
    MAGIC,
    SegmentDamaged,
    SegmentForeign,
    SegmentId,
    pack_tokens,
    read_segment,
    unpack_tokens,
    write_segment,
)

KEY = bytes(range(32))
SEGMENT = SegmentId(b"f" * 32, b"p" * 32, 5, (11, 12, 13))
PAYLOAD = bytes(range(40))
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=20).map(tuple)


def room(n_bytes: int) -> memoryview:
    """Fresh memory."""
    return memoryview(bytearray(n_bytes))


def read(path: Path, expected: SegmentId = SEGMENT, key: bytes = KEY) -> bytes:
    """The payload as bytes."""
    return bytes(read_segment(path, expected, key, room))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A written segment."""
    path = tmp_path / "kv" / "aa" / "segment.kv"
    write_segment(path, SEGMENT, PAYLOAD, KEY)
    return path


@given(tokens=TOKENS, start=st.integers(0, 2**32 - 1), payload=st.binary(min_size=1, max_size=200))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, tokens: tuple[int, ...], start: int, payload: bytes
) -> None:
    """Any tokens, start and payload come back, and the size told is the file's."""
    path = tmp_path_factory.getbasetemp() / "round-trip.kv"
    segment = SegmentId(b"f" * 32, b"p" * 32, start, tokens)
    assert write_segment(path, segment, payload, KEY) == path.stat().st_size
    assert read(path, segment) == payload
    assert unpack_tokens(pack_tokens(tokens)) == tokens


def test_the_file_is_private_and_nothing_else_is_left(path: Path) -> None:
    """Mode 0600 in a folder of mode 0700, and no temporary file."""
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_writing_again_replaces_the_file(path: Path) -> None:
    """The newer payload counts."""
    write_segment(path, SEGMENT, b"newer", KEY)
    assert read(path) == b"newer"


@pytest.mark.parametrize(
    "other",
    [
        replace(SEGMENT, parent=b"q" * 32),
        replace(SEGMENT, start=6),
        replace(SEGMENT, tokens=(11, 12, 14)),
        replace(SEGMENT, tokens=(11, 12)),
        replace(SEGMENT, tokens=(11, 12, 13, 14)),
    ],
)
def test_the_key_depends_on_the_place_and_the_tokens(path: Path, other: SegmentId) -> None:
    """Parent, start and tokens each change the key, and the file of one is not accepted as the other."""
    assert other.key != SEGMENT.key
    with pytest.raises(SegmentDamaged):
        read(path, other)


@given(TOKENS, TOKENS, st.binary(min_size=32, max_size=32))
def test_a_chain_cut_elsewhere_has_other_keys(one: tuple[int, ...], other: tuple[int, ...], root: bytes) -> None:
    """Two segments and the same tokens in one have different keys: nobody takes one for the other."""
    first = SegmentId(b"f" * 32, root, 0, one)
    second = SegmentId(b"f" * 32, first.key, first.end, other)
    assert second.key != SegmentId(b"f" * 32, root, 0, one + other).key
    assert (first.end, second.end) == (len(one), len(one + other))


def test_another_fingerprint_is_refused(path: Path) -> None:
    """A segment of other weights or settings is not loaded, even under the expected key."""
    with pytest.raises(SegmentDamaged, match="another place"):
        read(path, replace(SEGMENT, fingerprint=b"g" * 32))


def test_every_bit_of_the_header_counts(path: Path) -> None:
    """Each header bit flipped alone is noticed."""
    whole = path.read_bytes()
    for bit in range(8 * HEADER_BYTES):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        assert is_refused(path), f"bit {bit}"


def test_every_byte_of_the_body_counts(path: Path) -> None:
    """Each token and payload byte changed alone fails the checksum."""
    whole = path.read_bytes()
    for at in range(HEADER_BYTES, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        with pytest.raises(SegmentDamaged, match="checksum"):
            read(path)


def test_every_shorter_file_is_damaged(path: Path) -> None:
    """A file cut at any length, down to nothing, is damaged."""
    whole = path.read_bytes()
    for n_bytes in range(len(whole)):
        path.write_bytes(whole[:n_bytes])
        with pytest.raises(SegmentDamaged):
            read(path)


def test_an_extended_file_is_damaged(path: Path) -> None:
    """Bytes behind the end are noticed."""
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(SegmentDamaged, match="length"):
        read(path)


def test_an_empty_payload_is_never_accepted(path: Path) -> None:
    """A payload of no bytes would leave old rows standing in the native cache."""
    write_segment(path, SEGMENT, b"", KEY)
    with pytest.raises(SegmentDamaged, match="length"):
        read(path)


def test_a_huge_length_allocates_nothing(path: Path) -> None:
    """A header that claims more than the file holds is refused before memory is asked for."""
    data = bytearray(path.read_bytes())
    struct.pack_into("<IQ", data, HEADER_BYTES - 32 - 12, 2**31, 2**62)
    path.write_bytes(data)

    def never(n_bytes: int) -> memoryview:
        raise AssertionError(f"{n_bytes} bytes asked for")

    with pytest.raises(SegmentDamaged):
        read_segment(path, SEGMENT, KEY, never)


def test_swapped_files_are_damaged(tmp_path: Path) -> None:
    """Two valid segments that changed places are not accepted there."""
    second = SegmentId(SEGMENT.fingerprint, SEGMENT.key, SEGMENT.end, (14, 15, 16))
    paths = (tmp_path / "one.kv", tmp_path / "two.kv")
    write_segment(paths[0], second, PAYLOAD, KEY)
    write_segment(paths[1], SEGMENT, PAYLOAD, KEY)
    for path, expected in zip(paths, (SEGMENT, second), strict=True):
        with pytest.raises(SegmentDamaged):
            read(path, expected)


def test_the_same_place_with_other_tokens_is_refused(path: Path) -> None:
    """Tokens are compared, not only counted."""
    write_segment(path, replace(SEGMENT, tokens=(11, 12, 99)), PAYLOAD, KEY)
    with pytest.raises(SegmentDamaged, match="tokens"):
        read(path)


def test_another_mac_key_is_foreign(path: Path) -> None:
    """A segment of another data directory is told apart from a damaged one."""
    with pytest.raises(SegmentForeign):
        read(path, key=b"k" * 32)


def test_a_forged_key_id_does_not_pass(path: Path) -> None:
    """Our key's public name on a segment made with another key is not enough."""
    ours = path.read_bytes()[8:16]
    write_segment(path, SEGMENT, PAYLOAD, b"k" * 32)
    data = bytearray(path.read_bytes())
    data[8:16] = ours
    path.write_bytes(data)
    with pytest.raises(SegmentDamaged, match="checksum"):
        read(path)


def test_a_future_version_is_refused(path: Path) -> None:
    """Another version number in the magic is not read as this one."""
    path.write_bytes(MAGIC[:-1] + b"\x02" + path.read_bytes()[8:])
    with pytest.raises(SegmentDamaged, match="version"):
        read(path)


def test_a_symbolic_link_is_not_followed(path: Path) -> None:
    """A link in a segment's place is an error of the system, not a segment."""
    target = path.rename(path.with_name("target"))
    path.symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        read(path)


def test_a_missing_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    """A vanished file raises FileNotFoundError."""
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.kv")


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """A name that is taken by a folder cannot be written, and no temporary file stays."""
    (tmp_path / "taken.kv").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_segment(tmp_path / "taken.kv", SEGMENT, PAYLOAD, KEY)
    assert [path.name for path in tmp_path.iterdir()] == ["taken.kv"]


def is_refused(path: Path) -> bool:
    """True when reading it raises one of our errors."""
    try:
        read(path)
    except (SegmentDamaged, SegmentForeign):
        return True
    return False


def _flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= rng.randint(1, 255)


def _delete(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randint(1, 9)]


def _insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.randint(1, 9))


def _copy(data: bytearray, rng: random.Random) -> None:
    n = rng.randint(1, 16)
    source, target = rng.randrange(len(data) - n), rng.randrange(len(data) - n)
    data[target : target + n] = data[source : source + n]


def _set_number(data: bytearray, rng: random.Random) -> None:
    struct.pack_into("<I", data, rng.randrange(len(data) - 4), rng.choice([0, 1, 2**31, 2**32 - 1]))


MUTATIONS: list[Callable[[bytearray, random.Random], None]] = [_flip, _delete, _insert, _copy, _set_number]


def test_no_mutant_is_ever_accepted(path: Path) -> None:
    """Of 3,000 files with random damage not one yields a payload."""
    rng = random.Random(20)
    whole = path.read_bytes()
    n_refused = 0
    while n_refused < 3_000:
        data = bytearray(whole)
        for mutate in rng.choices(MUTATIONS, k=rng.randint(1, 2)):
            mutate(data, rng)
        if data != whole:
            path.write_bytes(data)
            assert is_refused(path), data.hex()
            n_refused += 1
