import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from chatapp.tui.graphemes import composed, left_of, right_of, snapped

FAMILY = "👨\u200d👩\u200d👧"
FLAGS = "🇰🇷🇯🇵"
THUMB = "👍🏽"
JAMO = unicodedata.normalize("NFD", "한글")
INDIC = "क्षि"
MARKS = "e\u0301\u0323"
KEYCAP = "1\ufe0f\u20e3"

CHARACTERS = [FAMILY, FLAGS[:2], THUMB, JAMO[:3], INDIC, MARKS, KEYCAP, "a", " ", "漢", "\u200d", "\u0301"]
LINES = st.lists(st.sampled_from(CHARACTERS), max_size=30).map("".join)


@pytest.mark.parametrize("one", [FAMILY, FLAGS[:2], THUMB, JAMO[:3], INDIC, MARKS, KEYCAP, "a", "漢", "é"])
def test_a_character_is_passed_as_a_whole(one: str) -> None:
    """From either side, a cursor goes over all code points of a character at once."""
    line = f"x{one}y"
    assert right_of(line, 1) == 1 + len(one)
    assert left_of(line, 1 + len(one)) == 1
    assert [snapped(line, at) for at in range(2, 1 + len(one))] == [1] * (len(one) - 1)


def test_flags_are_pairs_from_the_left() -> None:
    """Of two flags in a row, each is one character, wherever the cursor comes from."""
    assert [left_of(FLAGS, 4), left_of(FLAGS, 2)] == [2, 0]
    assert [right_of(FLAGS, 0), right_of(FLAGS, 2)] == [2, 4]


@given(LINES)
def test_steps_are_the_clusters_of_unicode(line: str) -> None:
    """Going right from the start and left from the end visits the same places, those of Unicode's rules."""
    borders = [match.end() for match in regex.finditer(r"\X", line)]
    at, right = 0, []
    while at < len(line):
        at = right_of(line, at)
        right.append(at)
    at, left = len(line), []
    while at > 0:
        left.append(at)
        at = left_of(line, at)
    assert right == borders
    assert left == borders[::-1]


@given(st.text(), st.integers(-2, 40))
def test_any_place_in_any_text_has_an_answer(line: str, at: int) -> None:
    """No text and no place fails; to the left is never to the right."""
    at = min(at, len(line))
    assert 0 <= left_of(line, at) <= max(at, 0)
    assert (right_of(line, max(at, 0)) > at) or at == len(line)


def test_a_long_line_is_not_read() -> None:
    """A pile of marks longer than the reach is taken apart rather than read to its end."""
    line = "a" + "\u0301" * 400_000
    assert 0 < left_of(line, 300_000) < 300_000
    assert 300_000 < right_of(line, 300_000) < 400_000


def test_typed_letters_of_hangul_become_syllables() -> None:
    """Letter by letter, decomposed Hangul grows into whole syllables, as other marks do; the rest stays as typed."""
    line = ""
    for letter in JAMO:
        start, text = composed(line, len(line), letter)
        line = line[:start] + text
    assert line == "한글"
    assert composed("e", 1, "\u0301") == (0, "é")
    assert composed("q", 1, "\u0301") == (1, "\u0301")
    assert composed("👩", 1, "\u200d") == (1, "\u200d")
    assert composed("a", 1, "b") == (1, "b")
