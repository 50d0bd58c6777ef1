"""Server-sent events out of bytes as they arrive, however they are cut."""

from __future__ import annotations

import codecs

MAX_EVENT_BYTES = 1 << 20
"""Longest event: a token is a few hundred bytes."""
_BOM = codecs.BOM_UTF8


class EndlessEvent(Exception):
    """An event is longer than `MAX_EVENT_BYTES`; what follows is not read."""


class Framing:
    """Splits a stream into the data of its events.

    Lines end in LF, CRLF or CR; comments and fields other than `data` are passed over; several `data` lines are one
    event with line feeds between, and one without text is none. Bytes that are no UTF-8 become U+FFFD. Memory stays
    below two events.
    """

    def __init__(self) -> None:
        self._rest = b""  # the line that has begun
        self._data: list[bytes] = []  # the event that has begun
        self._n_data = 0
        self._is_first = True
        self._ended_in_cr = False  # a line feed that comes next belongs to it

    def feed(self, received: bytes) -> list[str]:
        """Take in bytes; return the data of the events that are whole now. Raises `EndlessEvent`."""
        if self._ended_in_cr and received:
            received = received.removeprefix(b"\n")
            self._ended_in_cr = False
        buffer = self._rest + received
        if self._is_first:
            if _BOM.startswith(buffer) and len(buffer) < len(_BOM):
                self._rest = buffer
                return []
            buffer, self._is_first = buffer.removeprefix(_BOM), False
        if b"\r" in received:
            self._ended_in_cr = received.endswith(b"\r")
            buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = buffer.split(b"\n")
        events: list[str] = []
        for line in lines:
            self._line(line, events)
        if len(self._rest) + self._n_data > MAX_EVENT_BYTES:
            raise EndlessEvent
        return events

    def finish(self) -> list[str]:
        """No more bytes come; an event whose blank line is missing counts if its last line ended."""
        return self._taken()

    def _line(self, line: bytes, events: list[str]) -> None:
        if not line:
            events += self._taken()
        elif line.startswith(b"data:"):
            data = line[5:].removeprefix(b" ")
            self._data.append(data)
            self._n_data += len(data)
            if self._n_data > MAX_EVENT_BYTES:
                raise EndlessEvent
        elif line == b"data":
            self._data.append(b"")

    def _taken(self) -> list[str]:
        if not self._data:
            return []
        data, self._data, self._n_data = b"\n".join(self._data), [], 0
        return [data.decode("utf-8", "replace")] if data else []
