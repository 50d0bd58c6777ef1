"""A long list in a JSON file, item by item: a file of any length is never in memory as a whole, nor parsed twice.

Only brackets and strings are looked at here; each item is then parsed by itself, so one that is damaged does not take
the others with it. Raises `BadRequest` for what is no JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

from sessions.errors import BadRequest

ITEM_BYTES = 64 << 20
"""Longest item."""
MAX_DEPTH = 32
"""Deepest nesting; exports have about 12 levels."""
CHUNK_BYTES = 1 << 20
LONGEST_READ = 4 << 20

_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[\]{}])', re.DOTALL)
_LIST_KEY = re.compile(rb'"conversations"\s*+:\s*+$')
_BETWEEN = re.compile(rb"\s*+,?+\s*+")
_SPACE = b" \t\r\n"


class Items:
    """The items of the list that a JSON file is, or that it has under "conversations"; else the file is one item.

    `None` stands for an item that is too long or nested too deeply. `envelope` is what stands around the list of an
    object (with `[]` in its place), once all items are read.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._buffer = bytearray()
        self._at = 0
        self._around = bytearray()
        self.has_list = False
        self.is_array = False

    @property
    def envelope(self) -> bytes:
        """What stands around the list, so far."""
        return bytes(self._around)

    def __iter__(self) -> Iterator[bytes | None]:
        """Read on; raises where the file is not whole, behind the last whole item."""
        first = self._first()
        if first == b"[":
            self.has_list = self.is_array = True
            self._at += 1
            yield from self._list(depth=1)
        else:
            yield from self._object()
        while self._read() or self._at < len(self._buffer):
            if self._buffer[self._at :].strip(_SPACE):
                raise BadRequest("There is something behind the end of the JSON.")
            self._at = len(self._buffer)

    def _first(self) -> bytes:
        while len(self._buffer) < 3 and self._read():
            pass
        if self._buffer.startswith(b"\xef\xbb\xbf"):
            self._at = 3
        while not (rest := self._buffer[self._at :].lstrip(_SPACE)):
            self._at = len(self._buffer)
            if not self._read():
                break
        self._at = len(self._buffer) - len(rest)
        first = bytes(rest[:1])
        if first not in (b"[", b"{"):
            raise BadRequest("It is not JSON: it begins with neither [ nor {.")
        return first

    def _object(self) -> Iterator[bytes | None]:
        """Read an object: the list in it, or else itself as the one item."""
        depth, deepest = 0, 0
        while True:
            before, bracket = self._next()
            self._around += before
            if bracket == b"[" and depth == 1 and not self.has_list and _LIST_KEY.search(before):
                self.has_list = True
                yield from self._list(depth=2)
                self._around += b"[]"
                continue
            self._around += bracket
            depth += 1 if bracket in b"[{" else -1
            deepest = max(deepest, depth)
            if len(self._around) > ITEM_BYTES:
                raise BadRequest(f"A conversation in it has more than {ITEM_BYTES >> 20} MiB.")
            if depth == 0:
                break
        if not self.has_list:
            yield bytes(self._around) if deepest <= MAX_DEPTH else None

    def _list(self, depth: int) -> Iterator[bytes | None]:
        """Read the items of a list whose bracket is read, up to the one that closes it; it stands at `depth`."""
        level, deepest = depth, depth
        item = bytearray()
        is_kept = True
        while True:
            before, bracket = self._next()
            if level == depth:
                if not _BETWEEN.fullmatch(before):
                    raise BadRequest("The list in it holds something else than conversations.")
                before = b""
                if bracket == b"]":
                    return
            if is_kept:
                item += before + bracket
                is_kept = len(item) <= ITEM_BYTES
                if not is_kept:
                    item.clear()
            level += 1 if bracket in b"[{" else -1
            deepest = max(deepest, level)
            if level == depth:
                yield bytes(item) if is_kept and deepest <= MAX_DEPTH else None
                item.clear()
                is_kept, deepest = True, depth
            elif level < depth:
                self._torn()

    def _next(self) -> tuple[bytes, bytes]:
        """Return what stands before the next bracket outside of strings, and the bracket."""
        while not (found := _BRACKET.match(self._buffer, self._at)):
            if len(self._buffer) - self._at > ITEM_BYTES:
                raise BadRequest(f"A text in it has more than {ITEM_BYTES >> 20} MiB.")
            if not self._read():
                self._torn()
        before = bytes(self._buffer[self._at : found.start(1)])
        self._at = found.end()
        return before, found[1]

    def _read(self) -> bool:
        """Take in more of the file, as much again as waits (to a limit): long strings are scanned a few times only."""
        del self._buffer[: self._at]
        self._at = 0
        more = self._file.read(min(max(CHUNK_BYTES, len(self._buffer)), LONGEST_READ))
        self._buffer += more
        return bool(more)

    def _torn(self) -> NoReturn:
        raise BadRequest("The JSON is damaged, or ends in the middle.")


def parse(item: bytes) -> Any:
    """Return the value of an item. Raises `BadRequest` unless it is strict JSON in UTF-8, each key named once."""
    try:
        return json.loads(item.decode("utf-8-sig"), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError too
        raise BadRequest(f"It is not valid JSON ({str(error)[:80]}).") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
