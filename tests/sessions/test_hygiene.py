import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.hygiene import tidy

ODD = st.text("a\r\n\x00\ufeff\ud83d\ude00\u200d\u202e", max_size=12)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", 0)),
        ("a\r\nb\rc\n\rd\r\r\n", ("a\nb\nc\n\nd\n\n", 0)),
        ("\ufeffa\ufeffb", ("a\ufeffb", 0)),
        ("\ufeff\ufeffa", ("a", 0)),
        ("a\x00b\ud800c\udfff", ("a\ufffdb\ufffdc\ufffd", 3)),
        ("\ud83d\ude00\ude00", ("😀\ufffd", 1)),
        ("می\u200cخواهم \u200fשלום\u200e \u202ex\u2069 👩\u200d👩\u200d👧\u200b", None),
        ("\ufffd\x1b[0m\t\x7f\x85\u2028", None),
    ],
)
def test_the_rule(text: str, expected: tuple[str, int] | None) -> None:
    """Line ends become LF, marks in front go, what cannot be stored is replaced and counted, all else stays."""
    assert tidy(text) == (expected or (text, 0))


@given(st.text() | ODD | st.lists(st.characters(), max_size=8).map("".join))
def test_tidied_text_is_stored_as_it_is(text: str) -> None:
    """It can be written as UTF-8, and the rule does not change it again."""
    once, n_replaced = tidy(text)
    assert once.encode().decode() == once
    assert tidy(once) == (once, 0)
    assert n_replaced <= once.count("\ufffd")
