import asyncio
import io
import json
import os
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions import batch_input
from sessions.batch_input import Line, PrefixOrder, as_it_comes, count_rows, in_turn, lines_of
from sessions.batch_rows import Reading


def test_windows_files_are_fine() -> None:
    """A byte order mark, CR LF and blank lines change nothing but the line number."""
    content = b"\xef\xbb\xbfa\r\n\r\n  \n\tb"
    assert list(lines_of(io.BytesIO(content))) == [Line(1, 0, b"a"), Line(4, 11, b"b")]


@given(st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=20))
def test_each_line_can_be_found_again(lines: list[bytes]) -> None:
    """Its offset is where it begins, and the count agrees."""
    stream = io.BytesIO(b"\n".join(lines))
    found = list(lines_of(stream))
    assert count_rows(io.BytesIO(b"\n".join(lines))) == len(found)
    for line in found:
        stream.seek(line.offset)
        again = next(lines_of(stream))
        assert again.content == line.content


def test_a_line_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is longer than any row is read past, and the next line is found."""
    monkeypatch.setattr(batch_input, "MAX_LINE_BYTES", 100)
    stream = io.BytesIO(b"x" * 3_000_000 + b"\nnext\n")
    tracemalloc.start()
    long, after = lines_of(stream)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(long.content), after) == (101, Line(2, 3_000_001, b"next"))
    assert peak < 2_500_000


def test_rows_that_begin_alike_follow_each_other() -> None:
    """By system prompt, then by what was said before, then by the opening of the question; else in their order."""
    first, second = "f" * 300, "s" * 300

    def prompt(row_id: int, text: str) -> str:
        return json.dumps({"id": row_id, "prompt": text})

    rows = [
        prompt(0, first + " 1"),
        '{"id": 1, "messages": [{"role": "system", "content": "A"}, {"role": "user", "content": "x"}]}',
        prompt(2, second + " 1"),
        '{"id": 3, "messages": [{"role": "system", "content": "B"}, {"role": "user", "content": "x"}]}',
        '{"id": 4, "messages": [{"role": "system", "content": "A"}, {"role": "user", "content": "y"}]}',
        prompt(5, first + " 2"),
        prompt(6, second + " 2"),
    ]
    stream = io.BytesIO(("\ufeff" + "\r\n".join(rows)).encode())
    reading = Reading()
    ordered = PrefixOrder(stream, reading.row)
    read = [(reading.row(line.number, place, line.content), line.offset) for place, line in enumerate(lines_of(stream))]
    for row, offset in read:
        ordered.add(row, offset)
    found = list(ordered.rows())
    assert sorted(row.place for row in found) == list(range(7))
    assert {row.place: row for row in found} == {row.place: row for row, _ in read}
    places = [row.place for row in found]
    for pair in ((0, 5), (2, 6), (1, 4)):
        assert places.index(pair[1]) == places.index(pair[0]) + 1


async def test_a_pipe_holds_up_nobody() -> None:
    """While its writer thinks, others run; a reader that goes away leaves no task behind."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as source, os.fdopen(write_end, "wb", buffering=0) as target:
        lines = as_it_comes(lines_of(source))
        waiting = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0)
        assert not waiting.done()
        target.write(b"one\n")
        assert (await waiting).content == b"one"
        target.write(b"two\n")
        target.close()
        assert [line.content async for line in lines] == [b"two"]


async def test_what_goes_wrong_in_a_pipe_is_raised() -> None:
    """Where the rows are awaited."""

    def broken() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        assert [item async for item in as_it_comes(broken())] == []


async def test_others_run_now_and_then() -> None:
    """However fast the rows come."""
    ran: list[bool] = []
    asyncio.get_running_loop().call_soon(ran.append, True)
    seen = [bool(ran) async for _ in in_turn(range(10), every=4)]
    assert seen == [False] * 4 + [True] * 6
