"""Damaged KV segment files of every kind, made from valid ones."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from blake3 import blake3

from models.kvformat import FORMAT, HEADER_BYTES, Part, SegmentId, write_segment

KEY = bytes(range(32))
OTHER_KEY = b"k" * 32
# Where the fields of the header begin.
AT_OWNER, AT_FINGERPRINT, AT_PARENT, AT_PART = 8, 16, 48, 80
AT_START, AT_N_TOKENS, AT_N_PAYLOAD, AT_MAC = 84, 88, 92, 100


def sealed(data: bytes, key: bytes = KEY) -> bytes:
    """The container with a MAC that is right for what stands in it."""
    mac = blake3(key=key).update(data[:AT_MAC]).update(data[HEADER_BYTES:]).digest()
    return data[:AT_MAC] + mac + data[HEADER_BYTES:]


@dataclass(frozen=True)
class Wanted:
    """A segment's part that is asked for, and its container."""

    segment: SegmentId
    part: Part
    data: bytes


def container(segment: SegmentId, part: Part, n_payload: int, folder: Path, *, seed: int, key: bytes = KEY) -> bytes:
    """The bytes of a valid file."""
    path = folder / "container"
    write_segment(path, segment, part, random.Random(seed).randbytes(n_payload), key)
    return path.read_bytes()


def _flip_in_header(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(HEADER_BYTES)] ^= 1 << rng.randrange(8)


def _flip_anywhere(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= rng.randint(1, 255)


def _flip_in_body(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(HEADER_BYTES, len(data))] ^= 1 << rng.randrange(8)


def _truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _extend(data: bytearray, rng: random.Random) -> None:
    data += rng.randbytes(rng.randint(1, 64))


def _delete(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randint(1, 9)]


def _insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.randint(1, 9))


def _swap_blocks(data: bytearray, rng: random.Random) -> None:
    n = rng.choice((4, 16, 64, 512))
    n_blocks = len(data) // n
    if n_blocks > 1:
        one, other = (n * at for at in rng.sample(range(n_blocks), 2))
        data[one : one + n], data[other : other + n] = data[other : other + n], data[one : one + n]


def _copy_block(data: bytearray, rng: random.Random) -> None:
    n = rng.randint(1, min(64, len(data) - 1))
    source, target = rng.randrange(len(data) - n), rng.randrange(len(data) - n)
    data[target : target + n] = data[source : source + n]


def _zero_page(data: bytearray, rng: random.Random) -> None:
    n = rng.choice((16, 64, 512, 4096))
    at = n * rng.randrange(len(data) // n + 1)
    data[at : at + n] = bytes(len(data[at : at + n]))


def _zero_tail(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at:] = bytes(len(data) - at)


def _set_number(data: bytearray, rng: random.Random) -> None:
    number = rng.choice((0, 1, 2**31, 2**32 - 1, rng.getrandbits(32)))
    at = rng.choice((AT_PART, AT_START, AT_N_TOKENS, AT_N_PAYLOAD, rng.randrange(len(data) - 4)))
    struct.pack_into("<I", data, at, number)


def _other_version(data: bytearray, rng: random.Random) -> None:
    data[7] = rng.choice((0, 1, FORMAT + 1, 255))
    data[:] = sealed(bytes(data))


def _other_place(data: bytearray, rng: random.Random) -> None:
    """What only the holder of the key could make: a right MAC over a wrong place."""
    at, n_bytes = rng.choice(((AT_FINGERPRINT, 32), (AT_PARENT, 32), (AT_PART, 1), (AT_START, 4), (HEADER_BYTES, 8)))
    data[at + rng.randrange(n_bytes)] ^= 1 << rng.randrange(8)
    data[:] = sealed(bytes(data))


def _seal_with_another_key(data: bytearray, _rng: random.Random) -> None:
    data[:] = sealed(bytes(data), OTHER_KEY)


Mutation = Callable[[bytearray, random.Random], None]
BLIND: list[Mutation] = [
    _flip_in_header,
    _flip_anywhere,
    _flip_in_body,
    _truncate,
    _extend,
    _delete,
    _insert,
    _swap_blocks,
    _copy_block,
    _zero_page,
    _zero_tail,
    _set_number,
]
# Applied last: another mutation behind the new MAC would only break it.
SEALING: list[Mutation] = [_other_version, _other_place, _seal_with_another_key]


@dataclass(frozen=True)
class Mutants:
    """Makes damaged containers from valid ones: of every kind of damage, and spliced from two valid files."""

    wanted: list[Wanted]
    donors: list[bytes]

    @classmethod
    def of(cls, folder: Path) -> Mutants:
        """Containers of three sizes and both parts, and the files of other places, keys and times beside them."""
        wanted: list[Wanted] = []
        donors: list[bytes] = []
        sizes: list[tuple[int, int, Part]] = [(3, 40, "rows"), (16, 700, "state"), (64, 8_600, "rows")]
        for seed, (n_tokens, n_payload, part) in enumerate(sizes):
            tokens = tuple(range(100 * seed, 100 * seed + n_tokens))
            segment = SegmentId(b"f" * 32, b"p" * 32, 5, tokens)
            other: Part = "state" if part == "rows" else "rows"
            wanted.append(Wanted(segment, part, container(segment, part, n_payload, folder, seed=seed)))
            donors += [
                container(segment, part, n_payload, folder, seed=seed + 10),  # of another time
                container(segment, other, n_payload, folder, seed=seed),
                container(segment, part, n_payload, folder, seed=seed, key=OTHER_KEY),
                container(replace(segment, parent=b"q" * 32), part, n_payload, folder, seed=seed),
                container(replace(segment, fingerprint=b"g" * 32), part, n_payload, folder, seed=seed),
                container(replace(segment, tokens=tokens[::-1]), part, n_payload, folder, seed=seed),
            ]
        return cls(wanted, donors)

    def make(self, n: int, rng: random.Random) -> Iterator[tuple[Wanted, bytearray]]:
        """Draw `n` of them; never a valid file of the wanted place itself."""
        valid = {one.data for one in self.wanted} | {self.donors[6 * i] for i in range(len(self.wanted))}
        while n:
            wanted = rng.choices(self.wanted, (5, 4, 1))[0]
            data = bytearray(wanted.data)
            kind = rng.random()
            if kind < 0.2:
                self._splice(data, rng)
            elif kind < 0.3:
                rng.choice(SEALING)(data, rng)
            else:
                for mutate in rng.choices(BLIND, k=rng.randint(1, 2)):
                    if len(data) > HEADER_BYTES:
                        mutate(data, rng)
            if bytes(data) not in valid:
                n -= 1
                yield wanted, data

    def _splice(self, data: bytearray, rng: random.Random) -> None:
        donor = rng.choice(self.donors)
        if rng.random() < 0.3:
            data[:] = donor
        else:
            borders = (AT_OWNER, AT_FINGERPRINT, AT_PARENT, AT_PART, AT_MAC, HEADER_BYTES, rng.randrange(len(data)))
            begin, end = sorted(rng.sample((0, *borders, len(data)), 2))
            data[begin:end] = donor[begin:end]
