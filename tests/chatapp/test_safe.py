import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from chatapp.safe import clean, clean_line, decode_input, scrub

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))
LIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u206f\ufff9-\ufffb\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
ZERO_WIDTH_SPACE, JOINER, NON_JOINER, RLM = "\u200b", "\u200d", "\u200c", "\u200f"


def test_every_code_point_comes_out_harmless() -> None:
    """Of all 1,114,112 code points, none leaves clean() as one a terminal might obey."""
    for start in range(0, sys.maxunicode + 1, 0x1000):
        text = "".join(map(chr, range(start, start + 0x1000)))
        cleaned = clean(text)
        assert not LIVE.search(cleaned)
        assert len(cleaned) == len(text)
        cleaned.encode()


def test_every_code_point_alone_comes_out_as_in_company() -> None:
    """The fast path for harmless text and the table agree on each code point."""
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        assert clean(char) == clean(f"\x1b{char}")[1:]


def test_all_categories_but_controls_and_formats_are_kept() -> None:
    """Letters, marks, digits, symbols and spaces of all scripts pass unchanged."""
    text = "".join(
        char
        for char in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(char)[0] in "LMNPS" or unicodedata.category(char) == "Zs"
    )
    assert clean(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[2J", "␛[2J"),
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("\x00\x08\x7f", "␀␈␡"),
        ("\x9b31m", "\ufffd31m"),
        ("a\u202egpj.exe", "a\ufffdgpj.exe"),
        ("\u2066x\u2069", "\ufffdx\ufffd"),
        ("hi\U000e0068\U000e0069", "hi\ufffd\ufffd"),
        ("\ud83d", "\ufffd"),
        ("one\u2028two\u2029three", "one\ntwo\nthree"),
    ],
)
def test_what_a_terminal_might_obey_is_shown(text: str, expected: str) -> None:
    """Escape sequences, controls and hidden characters become visible glyphs, the rest stays."""
    assert clean(text) == expected


@pytest.mark.parametrize("text", ["", "plain\n\ttext ~", "é 漢字 한글 👨‍👩‍👧", f"می{NON_JOINER}خواهم", f"abc{RLM}"])
def test_harmless_text_is_the_same_object(text: str) -> None:
    """Text without anything to replace is returned as it is, joiners and direction marks included."""
    assert clean(text) is text


def test_windows_line_ends_are_line_breaks() -> None:
    """CR LF is one line break; any other CR is shown, since it would overwrite its line."""
    assert clean("a\r\nb\rc\r") == "a\nb␍c␍"


@given(ANY_TEXT, ANY_TEXT)
def test_chunks_may_be_cut_anywhere(left: str, right: str) -> None:
    """Cleaning chunk by chunk gives the whole text's result; only a divided CR LF shows its CR."""
    whole, chunks = clean(left + right), clean(left) + clean(right)
    if left.endswith("\r") and right.startswith("\n"):
        whole = clean(left[:-1]) + "␍" + clean(right)
    assert chunks == whole


@given(ANY_TEXT)
def test_cleaning_twice_changes_nothing(text: str) -> None:
    """Clean text is clean."""
    assert clean(clean(text)) == clean(text)


@given(ANY_TEXT, st.integers(-1, 40))
def test_a_title_is_one_safe_line_within_its_width(text: str, limit: int) -> None:
    """Whatever the text, its title has no line break, nothing live, and fits."""
    line = clean_line(text, limit)
    assert cell_len(line) <= max(limit, 0)
    assert not LIVE.search(line)
    assert line.splitlines() in ([], [line])


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("  one\r\n two\tthree\u2028four ", 40, "one two three four"),
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abcde…"),
        ("漢字漢字", 8, "漢字漢字"),
        ("漢字漢字", 7, "漢字漢…"),
        ("漢字漢字", 6, "漢字…"),
        ("ab cd", 4, "ab…"),
        ("abc", 1, "…"),
        ("abc", 0, ""),
        (f"한{ZERO_WIDTH_SPACE}글\ufeff", 4, "한글"),
        (f"می{NON_JOINER}خواهم", 10, f"می{NON_JOINER}خواهم"),
        (f"👩{JOINER}👩{JOINER}👧 family", 3, f"👩{JOINER}👩{JOINER}👧…"),
        ("\n" * 1000 + "late", 10, "late"),
        ("a" + "\u0301" * 1000, 10, "a" + "\u0301" * 79 + "…"),
    ],
)
def test_titles_are_cut_by_cells(text: str, limit: int, expected: str) -> None:
    """Width counts in cells, whole characters stay whole, and the ellipsis is part of the width."""
    assert clean_line(text, limit) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", ("", 0)),
        ("é漢🙂".encode(), ("é漢🙂", 0)),
        ("\ufffd".encode(), ("\ufffd", 0)),
        (b"\xef\xbb\xbfhi", ("hi", 0)),
        (b"caf\xe9!", ("caf\ufffd!", 1)),
        (b"\xff\xef\xbf\xbd\xe2\x82", ("\ufffd\ufffd\ufffd", 2)),
        (b"a\x00b", ("a\ufffdb", 1)),
        (b"a\r\nb\rc\n\r", ("a\nb\nc\n\n", 0)),
        ("\u200fשלום\u200b\u2067x".encode(), ("\u200fשלום\u200b\u2067x", 0)),
    ],
)
def test_input_is_decoded_and_damage_counted(data: bytes, expected: tuple[str, int]) -> None:
    """Bytes that are not UTF-8, and NUL, become U+FFFD and are counted; a genuine U+FFFD is not."""
    assert decode_input(data) == expected


@given(st.binary())
def test_any_input_can_be_stored(data: bytes) -> None:
    """Decoded input is valid Unicode without NUL and CR, and undamaged exactly if it encodes to the same bytes."""
    text, n_damaged = decode_input(data)
    assert not {"\x00", "\r"} & set(text)
    while data.startswith(b"\xef\xbb\xbf"):
        data = data.removeprefix(b"\xef\xbb\xbf")
    assert (text.encode() == data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")) == (n_damaged == 0)


def test_surrogates_and_nul_are_scrubbed() -> None:
    """Lone surrogates, as arguments and JSON bring them, and NUL become U+FFFD and are counted."""
    assert scrub("a\udcffb\x00\ud800") == ("a\ufffdb\ufffd\ufffd", 3)
    assert scrub("😀\n\x1b") == ("😀\n\x1b", 0)
