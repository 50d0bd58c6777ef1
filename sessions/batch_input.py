"""The input of a batch: its lines one by one, in the file's order or grouped by what they begin with.

A file of any size takes no memory for its rows; grouping takes about 70 bytes a row.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from hashlib import blake2b
from typing import BinaryIO, NamedTuple, TypeVar

from sessions.batch_rows import MAX_LINE_BYTES, Row

T = TypeVar("T")

BOM = b"\xef\xbb\xbf"
_OPENING_CHARS = 256
_OFFSET_BITS = 64
_LINE_BITS = 48


class Line(NamedTuple):
    """A line that is not blank: its number (from 1), where it begins (bytes), and what stands in it.

    One that is longer than any row may be has a byte more than `MAX_LINE_BYTES`.
    """

    number: int
    offset: int
    content: bytes


def lines_of(stream: BinaryIO) -> Iterator[Line]:
    """Yield the lines that are not blank, without what surrounds them (blanks, CR LF, a byte order mark)."""
    number = offset = 0
    while raw := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        begin, offset = offset, offset + len(raw)
        if _is_too_long(raw):
            offset += _skip_line(stream)
        if content := _content(raw):
            yield Line(number, begin, content)


def _is_too_long(raw: bytes) -> bool:
    return len(raw) > MAX_LINE_BYTES and not raw.endswith(b"\n")


def _content(raw: bytes) -> bytes:
    """Files that were put together have marks in their middle, too."""
    return raw if _is_too_long(raw) else raw.removeprefix(BOM).strip()


def _skip_line(stream: BinaryIO) -> int:
    """Read to the end of a line; return how many bytes that were."""
    n_bytes = 0
    while content := stream.readline(1 << 20):
        n_bytes += len(content)
        if content.endswith(b"\n"):
            break
    return n_bytes


def count_rows(stream: BinaryIO) -> int:
    """Return how many rows a file has, and go back to its beginning."""
    n_rows = sum(1 for _ in lines_of(stream))
    stream.seek(0)
    return n_rows


class PrefixOrder:
    """Rows grouped so that those which begin alike follow each other; what they begin with is then evaluated once.

    First by the first message, then by all but the last, then by the opening of the last; within that in the
    input's order.
    """

    def __init__(self, stream: BinaryIO, read: Callable[[int, int, bytes], Row]) -> None:
        """`stream` can be read again, `read` makes a row of line number, place and content."""
        self._stream = stream
        self._read = read
        self._rows: list[int] = []

    def add(self, row: Row, offset: int) -> None:
        """Take a row whose line begins at `offset`."""
        packed = int.from_bytes(_prefix(row), "big")
        packed = (packed << _OFFSET_BITS | offset) << _LINE_BITS | row.line
        self._rows.append(packed << _LINE_BITS | row.place)

    def rows(self) -> Iterator[Row]:
        """Yield the rows, read again; call once all are added."""
        self._rows.sort()
        mask = (1 << _LINE_BITS) - 1
        for packed in self._rows:
            self._stream.seek(packed >> 2 * _LINE_BITS & (1 << _OFFSET_BITS) - 1)
            number = packed >> _LINE_BITS & mask
            raw = self._stream.readline(MAX_LINE_BYTES + 1)
            yield self._read(number, packed & mask, _content(raw))


def _prefix(row: Row) -> bytes:
    """Return 12 bytes that are equal for rows which begin alike; a chance agreement only spoils the order."""
    before = [f"{entry.role}\0{entry.text}" for entry in row.entries[:-1]]
    last = row.entries[-1].text if row.entries else ""
    opening = last[:_OPENING_CHARS] if len(last) > _OPENING_CHARS else ""  # a short one is no prefix of others
    parts = ["".join(before[:1]), "\0".join(before), opening]
    return b"".join(blake2b(part.encode("utf-8"), digest_size=4).digest() if part else b"\0\0\0\0" for part in parts)


async def in_turn(items: Iterable[T], *, every: int = 256) -> AsyncGenerator[T, None]:
    """Yield what can be had at once, and let others run now and then."""
    for n, item in enumerate(items, start=1):
        yield item
        if n % every == 0:
            await asyncio.sleep(0)


async def as_it_comes(items: Iterable[T], *, ahead: int = 64) -> AsyncGenerator[T, None]:
    """Yield what a thread reads from a pipe, at most so many ahead, so that waiting for it holds up nobody.

    The thread ends with the process where nobody writes to the pipe any more.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[T | Exception | None] = asyncio.Queue()
    room = threading.Semaphore(ahead)
    is_over = threading.Event()

    def hand_over(item: T | Exception | None) -> None:
        try:
            loop.call_soon_threadsafe(queue.put_nowait, item)
        except RuntimeError:
            is_over.set()  # the loop was closed: nobody waits any more

    def read() -> None:
        try:
            for item in items:
                room.acquire()
                if is_over.is_set():
                    return
                hand_over(item)
        except (OSError, ValueError) as error:
            hand_over(error)
        hand_over(None)

    threading.Thread(target=read, name="batch input", daemon=True).start()
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            room.release()
            yield item
    finally:
        is_over.set()
        room.release()
