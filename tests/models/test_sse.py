"""Events come out of a stream however it is cut and whatever ends its lines."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.sse import MAX_EVENT_BYTES, EndlessEvent, Framing

TEXTS = st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1), max_size=6)


def events_of(parts: list[bytes]) -> list[str]:
    """All events of a stream that arrives in these parts."""
    framing = Framing()
    return [event for part in parts for event in framing.feed(part)] + framing.finish()


@given(texts=TEXTS, newline=st.sampled_from(["\n", "\r\n", "\r"]), cuts=st.lists(st.integers(0, 400), max_size=8))
def test_any_cut_gives_the_same_events(texts: list[str], newline: str, cuts: list[int]) -> None:
    """Also inside of a character or between CR and LF."""
    raw = "".join(f": ping{newline}data: {text}{newline}{newline}" for text in texts).encode()
    at = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    assert events_of([raw[a:b] for a, b in pairwise(at)]) == texts


def test_byte_by_byte() -> None:
    """The finest cut of all."""
    raw = '\ufeffdata: {"a": "漢🙂"}\r\n\r\ndata:b\r\n\r\n'.encode()
    assert events_of([raw[i : i + 1] for i in range(len(raw))]) == ['{"a": "漢🙂"}', "b"]


def test_what_is_no_data_is_passed_over() -> None:
    """Comments, names, ids and unknown fields; several lines of data are one event."""
    raw = b": hello\n\nevent: x\nid: 7\nretry: 1\nfoo: bar\ndata: one\ndata\ndata: two\n\n\n\n"
    assert events_of([raw]) == ["one\n\ntwo"]


def test_bytes_that_are_no_text() -> None:
    """They become replacement characters, and the stream goes on."""
    assert events_of([b"data: a\xff\xfeb\n\ndata: c\n\n"]) == ["a\ufffd\ufffdb", "c"]


def test_a_last_event_without_its_blank_line() -> None:
    """It counts if its line ended; half a line is nothing."""
    assert events_of([b"data: whole\n"]) == ["whole"]
    assert events_of([b"data: whole\n\ndata: ha"]) == ["whole"]


@pytest.mark.parametrize("piece", [b"x" * 4096, b"data: " + b"x" * 4000 + b"\n"], ids=["line", "event"])
def test_what_never_ends_is_refused(piece: bytes) -> None:
    """Neither one endless line nor an event of endlessly many is kept."""
    framing = Framing()
    n_fed = 0
    while n_fed + len(piece) <= MAX_EVENT_BYTES:
        framing.feed(piece)
        n_fed += len(piece)
    with pytest.raises(EndlessEvent):
        framing.feed(piece * 2)
