import os
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import kvformat
from models.kvformat import (
    FORMAT,
    HEADER_BYTES,
    MAGIC,
    PARTS,
    Head,
    Part,
    ReadTimes,
    SegmentDamaged,
    SegmentForeign,
    SegmentId,
    check_segment,
    key_id,
    pack_tokens,
    read_head,
    read_segment,
    root_key,
    unpack_tokens,
    write_segment,
)
from tests.conftest import MUTANTS_A_RUN
from tests.models.mutants import AT_FINGERPRINT, AT_N_TOKENS, AT_OWNER, AT_PART, KEY, OTHER_KEY, Mutants, sealed

SEGMENT = SegmentId(b"f" * 32, b"p" * 32, 5, (11, 12, 13))
PAYLOAD = bytes(range(40))
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=20).map(tuple)
PART = st.sampled_from(PARTS)


def room(n_bytes: int) -> memoryview:
    """Fresh memory."""
    return memoryview(bytearray(n_bytes))


def never(n_bytes: int) -> memoryview:
    """Memory that nobody may ask for."""
    raise AssertionError(f"{n_bytes} bytes asked for")


def read(path: Path, expected: SegmentId = SEGMENT, part: Part = "rows", key: bytes = KEY) -> bytes:
    """The payload as bytes."""
    return bytes(read_segment(path, expected, part, key, room))


def is_refused(path: Path, expected: SegmentId = SEGMENT, part: Part = "rows") -> bool:
    """True when reading it raises one of our errors."""
    try:
        read_segment(path, expected, part, KEY, room)
    except (SegmentDamaged, SegmentForeign):
        return True
    return False


def check(path: Path, n_buffer: int = 64) -> Head:
    """What a whole file says of itself, verified."""
    return check_segment(path, KEY, room(n_buffer))


READERS: list[Callable[[Path], object]] = [read, read_head, check]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A written segment's rows."""
    path = tmp_path / "kv" / "aa" / "segment.rows"
    write_segment(path, SEGMENT, "rows", PAYLOAD, KEY)
    return path


# --- what is written ---


@given(tokens=TOKENS, start=st.integers(0, 2**32 - 1), part=PART, payload=st.binary(min_size=1, max_size=200))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, tokens: tuple[int, ...], start: int, part: Part, payload: bytes
) -> None:
    """Any tokens, start, part and payload come back, and the size told is the file's."""
    path = tmp_path_factory.getbasetemp() / "round-trip"
    segment = SegmentId(b"f" * 32, b"p" * 32, start, tokens)
    assert write_segment(path, segment, part, payload, KEY) == path.stat().st_size
    assert read(path, segment, part) == payload
    assert read_head(path) == Head(key_id(KEY), segment, part, path.stat().st_size)


@given(TOKENS)
def test_tokens_are_little_endian_numbers(tokens: tuple[int, ...]) -> None:
    """Four bytes each on any machine, and back."""
    assert pack_tokens(tokens) == struct.pack(f"<{len(tokens)}I", *tokens)
    assert unpack_tokens(pack_tokens(tokens)) == tokens


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_written(tmp_path: Path, kind: Callable[[bytes], kvformat.Buffer]) -> None:
    """What native code filled is written without a copy into another type."""
    write_segment(tmp_path / "segment", SEGMENT, "state", kind(PAYLOAD), KEY)
    assert read(tmp_path / "segment", part="state") == PAYLOAD


def test_the_payload_is_a_view_of_the_memory_it_was_verified_in(path: Path) -> None:
    """Nothing is copied or read again after the check."""
    given: list[memoryview] = []

    def allocate(n_bytes: int) -> memoryview:
        given.append(room(n_bytes))
        return given[-1]

    payload = read_segment(path, SEGMENT, "rows", KEY, allocate)
    assert [len(view) for view in given] == [4 * 3 + len(PAYLOAD)]
    assert payload.obj is given[0].obj


def test_reading_and_verifying_are_timed_apart(path: Path) -> None:
    """Both are counted for what was read to its end, in addition to what was counted before, else neither."""
    times = ReadTimes(read_s=1.0, verify_s=2.0)
    read_segment(path, SEGMENT, "rows", KEY, room, times)
    assert (times.read_s > 1.0, times.verify_s > 2.0) == (True, True)
    untouched = ReadTimes()
    with pytest.raises(SegmentForeign):
        read_segment(path, SEGMENT, "rows", OTHER_KEY, room, untouched)
    assert untouched == ReadTimes()


def test_the_file_is_private_and_nothing_else_is_left(path: Path) -> None:
    """Mode 0600 in a folder of mode 0700, and no temporary file."""
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_writing_again_replaces_the_file(path: Path) -> None:
    """The newer payload counts."""
    write_segment(path, SEGMENT, "rows", b"newer", KEY)
    assert read(path) == b"newer"


def test_a_planted_temporary_file_is_not_written_through(path: Path) -> None:
    """A link where the temporary file goes is removed, and what it points to stays as it is."""
    target = path.with_name("target")
    target.write_bytes(b"kept")
    path.with_name(f".{path.name}.{os.getpid()}.tmp").symlink_to(target)
    write_segment(path, SEGMENT, "rows", b"newer", KEY)
    assert (read(path), target.read_bytes()) == (b"newer", b"kept")


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """A name that is taken by a folder cannot be written, and no temporary file stays."""
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_segment(tmp_path / "taken", SEGMENT, "rows", PAYLOAD, KEY)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


# --- keys ---


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
    assert is_refused(path, other)


@given(TOKENS, TOKENS, st.binary(min_size=32, max_size=32))
def test_a_chain_cut_elsewhere_has_other_keys(one: tuple[int, ...], other: tuple[int, ...], root: bytes) -> None:
    """Two segments and the same tokens in one have different keys: nobody takes one for the other."""
    first = SegmentId(b"f" * 32, root, 0, one)
    second = SegmentId(b"f" * 32, first.key, first.end, other)
    assert second.key != SegmentId(b"f" * 32, root, 0, one + other).key
    assert (first.end, second.end) == (len(one), len(one + other))


def test_roots_differ_by_generation_and_owner() -> None:
    """Neither other settings nor another data directory ever begin a chain at the same key."""
    roots = {root_key(fingerprint, owner) for fingerprint in (b"f" * 32, b"g" * 32) for owner in (b"o" * 8, b"p" * 8)}
    assert len(roots) == 4
    assert {len(root) for root in roots} == {32}


def test_a_key_id_does_not_tell_the_key() -> None:
    """It names a MAC key in 8 bytes that are no part of it."""
    assert len(key_id(KEY)) == 8
    assert key_id(KEY) not in KEY
    assert key_id(KEY) != key_id(OTHER_KEY)


# --- what is refused ---


def test_every_bit_of_the_header_counts(path: Path) -> None:
    """Each header bit flipped alone is noticed."""
    whole = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for bit in range(8 * HEADER_BYTES):
            data = bytearray(whole)
            data[bit // 8] ^= 1 << bit % 8
            file.seek(0)
            file.write(data)
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
    for n_bytes in reversed(range(path.stat().st_size)):
        os.truncate(path, n_bytes)
        with pytest.raises(SegmentDamaged):
            read(path)


@pytest.mark.parametrize("more", [b"\0", PAYLOAD, b"\0" * 4096])
def test_an_extended_file_is_damaged(path: Path, more: bytes) -> None:
    """Bytes behind the end are noticed."""
    path.write_bytes(path.read_bytes() + more)
    with pytest.raises(SegmentDamaged, match="length"):
        read(path)


def test_an_empty_payload_is_never_accepted(path: Path) -> None:
    """A payload of no bytes would leave old rows standing in the native cache."""
    write_segment(path, SEGMENT, "rows", b"", KEY)
    with pytest.raises(SegmentDamaged, match="length"):
        read(path)


@pytest.mark.parametrize(("n_tokens", "n_payload"), [(2**31, 2**62), (3, 2**64 - 1), (2**24 + 1, 40), (2**32 - 1, 0)])
def test_a_huge_length_allocates_nothing(path: Path, n_tokens: int, n_payload: int) -> None:
    """A header that claims more than the file holds is refused before memory is asked for."""
    data = bytearray(path.read_bytes())
    struct.pack_into("<IQ", data, AT_N_TOKENS, n_tokens, n_payload)
    path.write_bytes(data)
    with pytest.raises(SegmentDamaged, match="length"):
        read_segment(path, SEGMENT, "rows", KEY, never)
    with pytest.raises(SegmentDamaged, match="length"):
        read_head(path)


def test_another_fingerprint_is_refused(path: Path) -> None:
    """A segment of other weights or settings is not loaded, even under the expected key."""
    with pytest.raises(SegmentDamaged, match="another place"):
        read_segment(path, replace(SEGMENT, fingerprint=b"g" * 32), "rows", KEY, never)


@pytest.mark.parametrize(("written", "wanted"), [("rows", "state"), ("state", "rows")])
def test_one_part_is_not_taken_for_the_other(tmp_path: Path, written: Part, wanted: Part) -> None:
    """Rows in the place of a state, and a state in the place of rows, are refused before they are read."""
    write_segment(tmp_path / "segment", SEGMENT, written, PAYLOAD, KEY)
    with pytest.raises(SegmentDamaged, match="another place"):
        read_segment(tmp_path / "segment", SEGMENT, wanted, KEY, never)


def test_a_part_that_does_not_exist_is_refused(path: Path) -> None:
    """Even under a right MAC, a third part is nothing this version knows."""
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, AT_PART, len(PARTS))
    path.write_bytes(sealed(bytes(data)))
    with pytest.raises(SegmentDamaged, match="version"):
        read(path)


def test_swapped_files_are_damaged(tmp_path: Path) -> None:
    """Two valid segments that changed places are not accepted there."""
    second = SegmentId(SEGMENT.fingerprint, SEGMENT.key, SEGMENT.end, (14, 15, 16))
    paths = (tmp_path / "one", tmp_path / "two")
    write_segment(paths[0], second, "rows", PAYLOAD, KEY)
    write_segment(paths[1], SEGMENT, "rows", PAYLOAD, KEY)
    for path, expected in zip(paths, (SEGMENT, second), strict=True):
        with pytest.raises(SegmentDamaged):
            read(path, expected)


def test_the_same_place_with_other_tokens_is_refused(path: Path) -> None:
    """Tokens are compared, not only counted."""
    write_segment(path, replace(SEGMENT, tokens=(11, 12, 99)), "rows", PAYLOAD, KEY)
    with pytest.raises(SegmentDamaged, match="tokens"):
        read(path)


def test_another_mac_key_is_foreign(path: Path) -> None:
    """A segment of another data directory is told apart from a damaged one, and its body is not read."""
    with pytest.raises(SegmentForeign):
        read_segment(path, SEGMENT, "rows", OTHER_KEY, never)


def test_a_forged_key_id_does_not_pass(path: Path) -> None:
    """Our key's public name on a segment made with another key is not enough."""
    write_segment(path, SEGMENT, "rows", PAYLOAD, OTHER_KEY)
    data = bytearray(path.read_bytes())
    data[AT_OWNER:AT_FINGERPRINT] = key_id(KEY)
    path.write_bytes(sealed(bytes(data), OTHER_KEY))
    with pytest.raises(SegmentDamaged, match="checksum"):
        read(path)


@pytest.mark.parametrize("version", [0, FORMAT - 1, FORMAT + 1, 255])
def test_another_version_is_refused(path: Path, version: int) -> None:
    """An older or newer version in the magic is not read as this one, even under a right MAC."""
    path.write_bytes(sealed(MAGIC[:-1] + bytes([version]) + path.read_bytes()[8:]))
    for reader in READERS:
        with pytest.raises(SegmentDamaged, match="version"):
            reader(path)


# --- what is no file ---


@pytest.mark.parametrize("reader", READERS)
def test_a_symbolic_link_is_not_followed(path: Path, reader: Callable[[Path], object]) -> None:
    """A link in a segment's place is damaged, wherever it leads."""
    target = path.rename(path.with_name("target"))
    path.symlink_to(target)
    with pytest.raises(SegmentDamaged, match="not a file"):
        reader(path)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.timeout(10)
def test_a_pipe_is_no_segment(tmp_path: Path, reader: Callable[[Path], object]) -> None:
    """A pipe in a segment's place is damaged, and nobody waits for what may come through it."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SegmentDamaged, match="not a file"):
        reader(tmp_path / "pipe")


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_is_no_segment(tmp_path: Path, reader: Callable[[Path], object]) -> None:
    """A folder in a segment's place is damaged."""
    with pytest.raises(SegmentDamaged, match="not a file"):
        reader(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted there")
@pytest.mark.parametrize("reader", READERS)
def test_nothing_stays_open(tmp_path: Path, path: Path, reader: Callable[[Path], object]) -> None:
    """Whatever is refused is closed."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "short").write_bytes(path.read_bytes()[:50])
    n_open = len(list(Path("/proc/self/fd").iterdir()))
    for refused in (tmp_path, tmp_path / "pipe", tmp_path / "short"):
        with pytest.raises(SegmentDamaged):
            reader(refused)
    assert len(list(Path("/proc/self/fd").iterdir())) == n_open


@pytest.mark.parametrize("reader", READERS)
def test_a_missing_file_is_an_error_of_the_system(tmp_path: Path, reader: Callable[[Path], object]) -> None:
    """A vanished file raises FileNotFoundError."""
    with pytest.raises(FileNotFoundError):
        reader(tmp_path / "none")


# --- a head alone ---


def test_a_head_is_read_without_the_key(path: Path) -> None:
    """It tells whose file it is, and what: an index is rebuilt from that."""
    write_segment(path, SEGMENT, "state", PAYLOAD, OTHER_KEY)
    assert read_head(path) == Head(key_id(OTHER_KEY), SEGMENT, "state", path.stat().st_size)


def test_every_shorter_head_is_damaged(path: Path) -> None:
    """A head is only believed if the file is as long as it says."""
    for n_bytes in reversed(range(path.stat().st_size)):
        os.truncate(path, n_bytes)
        with pytest.raises(SegmentDamaged):
            read_head(path)


def test_a_head_does_not_vouch_for_the_payload(path: Path) -> None:
    """Damage behind the tokens is found when the payload is used, not here."""
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert read_head(path).segment == SEGMENT
    assert is_refused(path)


# --- a whole file checked where it lies ---


@pytest.mark.parametrize("n_buffer", [1, 7, 40, 4096])
def test_a_valid_file_passes_the_check(path: Path, n_buffer: int) -> None:
    """It tells what the file is; a buffer of any size will do."""
    assert check(path, n_buffer) == read_head(path)


def test_a_check_refuses_what_a_reader_would(path: Path) -> None:
    """Any byte changed alone, and a file of another key."""
    with path.open("r+b", buffering=0) as file:
        for at in range(path.stat().st_size):
            os.pwrite(file.fileno(), bytes([os.pread(file.fileno(), 1, at)[0] ^ 1]), at)
            with pytest.raises((SegmentDamaged, SegmentForeign)):
                check(path)
            os.pwrite(file.fileno(), bytes([os.pread(file.fileno(), 1, at)[0] ^ 1]), at)
    assert check(path) == read_head(path)
    with pytest.raises(SegmentForeign):
        check_segment(path, OTHER_KEY, room(64))


# --- a file that changes while it is read ---


@dataclass
class Meddler:
    """Does something to a file between the reading of its header and that of its body."""

    meddle: Callable[[], object]

    def __call__(self, n_bytes: int) -> memoryview:
        """The reader asks for memory just there."""
        self.meddle()
        return room(n_bytes)


def newer(path: Path) -> bytes:
    """A valid container of the same segment with another payload of the same length."""
    beside = path.with_name("newer")
    write_segment(beside, SEGMENT, "rows", PAYLOAD[::-1], KEY)
    data = beside.read_bytes()
    beside.unlink()
    return data


def test_a_file_that_is_replaced_while_it_is_read_gives_the_old_bytes(path: Path) -> None:
    """The file that was opened is the one that is read to its end."""
    beside = path.with_name("beside")
    beside.write_bytes(newer(path))
    payload = read_segment(path, SEGMENT, "rows", KEY, Meddler(lambda: beside.replace(path)))
    assert bytes(payload) == PAYLOAD
    assert read(path) == PAYLOAD[::-1]


def test_a_file_that_is_deleted_while_it_is_read_gives_the_old_bytes(path: Path) -> None:
    """Eviction by another process does not disturb who is reading."""
    assert bytes(read_segment(path, SEGMENT, "rows", KEY, Meddler(path.unlink))) == PAYLOAD


def test_a_file_that_is_rewritten_in_place_is_damaged(path: Path) -> None:
    """A header of one valid container and the body of another are not mixed."""
    data = newer(path)
    with pytest.raises(SegmentDamaged, match="checksum"):
        read_segment(path, SEGMENT, "rows", KEY, Meddler(lambda: path.write_bytes(data)))


def test_a_file_that_is_cut_while_it_is_read_is_damaged(path: Path) -> None:
    """A body that ends before its promised length is not waited for."""
    with pytest.raises(SegmentDamaged, match="ended early"):
        read_segment(path, SEGMENT, "rows", KEY, Meddler(lambda: os.truncate(path, HEADER_BYTES + 5)))


def test_a_head_that_is_cut_while_it_is_read_is_damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that are gone when they are asked for are no tokens."""
    fields = kvformat._read_fields

    def cut_behind(file: FileIO) -> Any:
        result = fields(file)
        os.truncate(path, HEADER_BYTES + 5)
        return result

    monkeypatch.setattr(kvformat, "_read_fields", cut_behind)
    with pytest.raises(SegmentDamaged, match="ended early"):
        read_head(path)


def test_bytes_that_change_behind_the_check_are_not_the_ones_given(path: Path) -> None:
    """What was verified lies in memory: a later change of the file does not reach it."""
    payload = read_segment(path, SEGMENT, "rows", KEY, room)
    path.write_bytes(b"\xff" * path.stat().st_size)
    assert bytes(payload) == PAYLOAD


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=30))
def test_short_reads_are_put_together(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    """However few bytes the system gives at a time, the whole body is read and verified."""
    path = tmp_path_factory.getbasetemp() / "short-reads"
    write_segment(path, SEGMENT, "rows", PAYLOAD, KEY)
    left = list(sizes)

    class Slow(FileIO):
        def readinto(self, buffer: Any) -> int:
            return super().readinto(memoryview(buffer)[: left.pop()] if left else buffer) or 0

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kvformat, "_opened", lambda path: Slow(path, "rb"))
        assert read(path) == PAYLOAD


# --- random damage ---


def test_no_mutant_is_ever_accepted(tmp_path: Path, mutant_seed: int) -> None:
    """Of 200,000 damaged, spliced or displaced files (`--mutants N`: of N) not one yields a payload."""
    mutants = Mutants.of(tmp_path)
    memory = Path("/dev/shm")  # only for speed: the reader opens and reads a file each time
    path = (memory if os.access(memory, os.W_OK) else tmp_path) / f"chatapp-mutant-{os.getpid()}-{mutant_seed}"
    n_refused = 0
    try:
        with path.open("wb", buffering=0) as file:
            for wanted, data in mutants.make(MUTANTS_A_RUN, random.Random(mutant_seed)):
                file.seek(0)
                file.truncate()
                file.write(data)
                assert is_refused(path, wanted.segment, wanted.part), data.hex()
                n_refused += 1
    finally:
        path.unlink(missing_ok=True)
    assert n_refused == MUTANTS_A_RUN


def test_the_mutants_were_valid_before(tmp_path: Path) -> None:
    """What they are made from is accepted, so that it is the damage that is refused."""
    for wanted in Mutants.of(tmp_path).wanted:
        (tmp_path / "valid").write_bytes(wanted.data)
        assert not is_refused(tmp_path / "valid", wanted.segment, wanted.part)
