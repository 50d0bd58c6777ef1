from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.llama import Model
from models.spelling import lost_characters, spell
from tests.models.tiny_models import build

LETTERS = {i: bytes([i]) for i in range(256)}
NO_UMLAUT = {i: b"" if i in (0xC3, 0xA4, 0x00) else bytes([i]) for i in range(256)}


def ids_of(text: str) -> list[int]:
    """One token per byte."""
    return list(text.encode())


@given(st.text())
def test_what_a_vocabulary_can_spell_is_not_lost(text: str) -> None:
    """With a token for each byte no text loses anything, a space put in front included."""
    assert lost_characters(text, ids_of(text), LETTERS.__getitem__) == 0
    assert lost_characters(text, [0x20, *ids_of(text)], LETTERS.__getitem__) == 0


@pytest.mark.parametrize(
    ("text", "n_lost"),
    [("", 0), ("abc", 0), ("ä", 1), ("häßlich", 2), ("ääö x ä", 4), ("\0a\0", 2), (" ä", 1), ("漢\0字", 1)],
)
def test_lost_characters_are_counted_once(text: str, n_lost: int) -> None:
    """A character of which one byte is missing is lost, those around it are not."""
    assert lost_characters(text, ids_of(text), NO_UMLAUT.__getitem__) == n_lost
    assert lost_characters(text, [0x20, *ids_of(text)], NO_UMLAUT.__getitem__) == n_lost


@given(st.text(st.characters(exclude_characters="\0")), st.lists(st.integers(0, 30)))
def test_each_character_of_a_rare_kind_is_counted(text: str, places: list[int]) -> None:
    """However many are put in anywhere, so many are missing."""
    for place in places:
        at = place % (len(text) + 1)
        text = text[:at] + "\0" + text[at:]
    without_nul = {**LETTERS, 0: b""}
    assert lost_characters(text, ids_of(text), without_nul.__getitem__) == text.count("\0")


def test_the_starter_drops_bytes_it_has_no_token_for(model: Model) -> None:
    """Its vocabulary lacks 21 byte values, and its tokenizer says nothing."""
    text = "a\x0fb"
    lost = [
        char for char in map(chr, range(1, 0x20)) if lost_characters(char, model.tokenize(char, False), model.piece)
    ]
    assert lost
    text = f"a{lost[0]}b{lost[0]}"
    assert lost_characters(text, model.tokenize(text, False), model.piece) == 2


def test_a_vocabulary_with_a_space_in_front_loses_nothing(tmp_path: Path, native_log: list[str]) -> None:
    """SentencePiece: bodies with and without a space of their own, and what has no token but bytes."""
    assert native_log is not None
    spm = Model(build("dense", tmp_path, tokenizer="spm"), gpu_layers=0, progress=lambda _share: None)
    for text in ("hello", " hello", "  x", "", "漢 🙂\n", "\x01"):
        assert lost_characters(text, spm.tokenize(text, False), spm.piece) == 0
    ids = spell("hello", lambda text: spm.tokenize(text, False), spm.piece, range(spm.n_vocab))
    assert b"".join(map(spm.piece, ids)) == b"hello"
    spm.close()


def test_a_text_is_spelt_by_the_tokenizer_where_that_is_exact() -> None:
    """Its tokens are what the model knows best."""
    assert spell("ab", lambda _: [0x61, 0x62], LETTERS.__getitem__, range(256)) == [0x61, 0x62]


def test_else_it_is_spelt_by_the_longest_pieces() -> None:
    """A tokenizer that adds or drops something is not asked again."""
    pieces = {1: b" a", 2: b"ab", 3: b"a", 4: b"b", 5: b""}
    assert spell("abab", lambda _: [1, 4], pieces.__getitem__, pieces) == [2, 2]
    assert spell("aab", lambda _: [], pieces.__getitem__, pieces) == [3, 2]


def test_what_cannot_be_spelt_ends_the_text() -> None:
    """As much of its beginning as there are pieces for."""
    assert spell("aäb", lambda _: [3, 4], {3: b"a", 4: b"b"}.__getitem__, (3, 4)) == [3]
