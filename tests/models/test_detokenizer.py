import codecs
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.detokenizer import Decoder, Detokenizer, StopMatcher

FAMILY = "👨‍👩‍👧‍👦"
SEQUENCES = (
    FAMILY,
    "🏳️‍🌈🇩🇪👍🏽",
    "\u1112\u1161\u11ab한글",
    "e\u0301\u0327a\u0308\u20dd",
    "\u200fשלום\u200e \u2067x\u2069",
    "क्षि\u200d",
)
FEW_LETTERS = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4).map(tuple)


def pieces(*parts: bytes | str) -> Callable[[int], bytes]:
    """Return a vocabulary in which token i stands for part i."""
    table = [part.encode() if isinstance(part, str) else part for part in parts]
    return table.__getitem__


def decode(decoder: Decoder, n_tokens: int) -> list[tuple[str, int]]:
    """Feed tokens 0, 1, ... until they end or the decoder stops; return what could be taken after each, and last."""
    taken = []
    for token_id in range(n_tokens):
        if decoder.is_stopped:
            break
        decoder.feed(token_id)
        taken.append(decoder.take())
    decoder.finish()
    return [*taken, decoder.take()]


def text_of(data: bytes) -> str:
    """The text of bytes as the rule has it: U+FFFD for what is invalid, nothing for a character cut at the end."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


def cut(data: bytes, borders: list[int]) -> list[bytes]:
    """Cut bytes into parts at the given places (any order, any size)."""
    places = sorted(border % (len(data) + 1) for border in borders)
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def first_stop(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """Return the text before the first complete stop string, by trying each end: the plain way to say it."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def test_a_character_spread_over_tokens_appears_when_complete() -> None:
    """Bytes of an incomplete character are held back, never shown as U+FFFD."""
    one_byte = bytes.__getitem__
    data = FAMILY.encode()
    detokenizer = Detokenizer(lambda i: bytes([one_byte(data, i)]))
    shown = [detokenizer.feed(i) for i in range(len(data))]
    assert shown[:4] == ["", "", "", "👨"]
    assert "".join(shown) == FAMILY
    assert detokenizer.is_between_characters


def test_tokens_that_end_inside_a_character_have_no_text_for_it() -> None:
    """Its bytes stay in the ids, where the next tokens may complete it: U+FFFD would be a lie."""
    detokenizer = Detokenizer(pieces("a", b"\xe6\xbc"))
    assert [detokenizer.feed(0), detokenizer.feed(1)] == ["a", ""]
    assert not detokenizer.is_between_characters


def test_pieces_of_any_length_are_whole() -> None:
    """A token may stand for more bytes than fit any usual buffer."""
    rule, indent = "-" * 80, " " * 128 + "漢" * 40
    detokenizer = Detokenizer(pieces(rule, indent))
    assert [detokenizer.feed(0), detokenizer.feed(1)] == [rule, indent]


def test_invalid_bytes_are_replaced_and_the_rest_survives() -> None:
    """A byte that cannot become valid is replaced at once and takes no neighbour with it."""
    detokenizer = Detokenizer(pieces(b"a\xff", b"\xe6", "b", "漢"))
    assert [detokenizer.feed(i) for i in range(4)] == ["a\ufffd", "", "\ufffdb", "漢"]


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=20))
def test_text_does_not_depend_on_token_borders(data: bytes, borders: list[int]) -> None:
    """However bytes are cut into tokens, the text is that of all bytes decoded at once."""
    parts = cut(data, borders)
    detokenizer = Detokenizer(pieces(*parts))
    assert "".join(detokenizer.feed(i) for i in range(len(parts))) == text_of(data)


@given(st.sampled_from(SEQUENCES), st.lists(st.integers(0, 60), max_size=20))
def test_what_looks_like_one_character_survives_any_borders(text: str, borders: list[int]) -> None:
    """Emoji sequences, Hangul letters, combining marks, right-to-left marks: all code points, in their order."""
    parts = cut(text.encode(), borders)
    decoder = Decoder(pieces(*parts), ("never",))
    assert "".join(shown for shown, _ in decode(decoder, len(parts))) == text


def test_each_token_is_looked_up_once() -> None:
    """Decoding a token never decodes the ones before it again."""
    seen: list[int] = []

    def piece(token_id: int) -> bytes:
        seen.append(token_id)
        return b"x"

    decode(Decoder(piece, ("never",)), 50)
    assert seen == list(range(50))


def test_a_stop_string_over_token_borders_is_never_shown() -> None:
    """The head of a stop string is held back until it is complete."""
    matcher = StopMatcher(("\nUser:",))
    assert matcher.feed("fine.\nUs") == ("fine.", False)
    assert matcher.feed("er") == ("", False)
    assert matcher.feed(": x") == ("", True)


def test_what_only_looked_like_a_stop_string_is_shown_complete() -> None:
    """Held text is released by the character that rules the stop string out."""
    matcher = StopMatcher(("\nUser:",))
    assert matcher.feed("\nUs") == ("", False)
    assert matcher.feed("ual") == ("\nUsual", False)


def test_held_text_is_shown_at_the_end() -> None:
    """An answer that ends in half a stop string keeps it."""
    matcher = StopMatcher(("###",))
    assert matcher.feed("a##") == ("a", False)
    assert matcher.flush() == "##"
    assert matcher.feed("#") == ("", False)


def test_only_what_could_be_a_stop_string_is_held() -> None:
    """After a failed match the longest head that is still possible is held, no more."""
    assert StopMatcher(("aab",)).feed("aaa") == ("a", False)
    assert StopMatcher(("abac", "bad")).feed("xaba") == ("x", False)


def test_the_first_complete_stop_string_wins() -> None:
    """Of two stop strings the one complete first counts; of two that end together the longer."""
    assert StopMatcher(("abc", "b")).feed("xabc") == ("xa", True)
    assert StopMatcher(("b", "ab")).feed("xab") == ("x", True)


def test_empty_stop_strings_never_match() -> None:
    """An empty stop string is the same as none."""
    assert StopMatcher(("",)).feed("text") == ("text", False)


@given(FEW_LETTERS, STOPS, st.lists(st.integers(0, 12), max_size=12))
def test_stops_do_not_depend_on_chunks(text: str, stops: tuple[str, ...], borders: list[int]) -> None:
    """However the text is cut, what is shown is the text before the first stop string to be complete."""
    matcher = StopMatcher(stops)
    shown, matched = "", False
    for part in cut(text.encode(), borders):
        if not matched:
            safe, matched = matcher.feed(part.decode())
            shown += safe
    if not matched:
        shown += matcher.flush()
    assert (shown, matched) == first_stop(text, stops)


def test_a_long_repetitive_stop_string_takes_linear_time() -> None:
    """Near misses of a long stop string do not multiply the work."""
    matcher = StopMatcher(("a" * 100_000 + "b",))
    shown = "".join(matcher.feed("a" * 1000)[0] for _ in range(300))
    assert len(shown) == 200_000


def test_a_stop_inside_a_token_leaves_a_tail() -> None:
    """Tokens wholly before the stop string are kept; the rest of the text must be tokenized anew."""
    decoder = Decoder(pieces("Hello", " wor", "ld. END", "more"), ("END",))
    assert decode(decoder, 4) == [("Hello", 1), (" wor", 1), ("", 0), ("", 0)]
    assert (decoder.is_stopped, decoder.kept, decoder.tail) == (True, 2, "ld. ")
    assert decoder.text == "Hello world. "


def test_a_stop_at_a_token_border_leaves_no_tail() -> None:
    """When the stop string begins with a token, the tokens before it are exactly the text."""
    decoder = Decoder(pieces("Hello", "\n", "User:", "x"), ("\nUser:",))
    assert decode(decoder, 4) == [("Hello", 1), ("", 0), ("", 0), ("", 0)]
    assert (decoder.text, decoder.kept, decoder.tail) == ("Hello", 1, "")


def test_a_token_that_shares_a_character_with_the_next_is_not_kept_alone() -> None:
    """A cut never falls inside a character: the tokens that spell it stay or go together."""
    decoder = Decoder(pieces("a", "漢".encode()[:2], "漢".encode()[2:] + b"b!c"), ("!",))
    decode(decoder, 3)
    assert (decoder.text, decoder.kept, decoder.tail) == ("a漢b", 1, "漢b")


def test_an_answer_without_a_stop_keeps_all_tokens() -> None:
    """With nothing cut off the text is that of all tokens, one without text or with half a character too."""
    decoder = Decoder(pieces("a", "", b"\xe6\xbc"))
    assert decode(decoder, 3) == [("a", 1), ("", 1), ("", 0), ("", 0)]
    assert (decoder.is_stopped, decoder.text, decoder.tail) == (False, "a", "")


def test_a_token_after_a_stop_is_a_bug() -> None:
    """Nothing may be fed to a decoder that has stopped."""
    decoder = Decoder(pieces("."), (".",))
    decoder.feed(0)
    with pytest.raises(AssertionError, match="after a stop string"):
        decoder.feed(0)


@given(st.text("ab漢🙂", max_size=12), STOPS, st.lists(st.integers(0, 40), max_size=12))
def test_kept_tokens_and_tail_make_the_text(text: str, stops: tuple[str, ...], borders: list[int]) -> None:
    """The kept tokens and the tail spell the text shown, and no more tokens could be kept."""
    parts = cut(text.encode(), borders)
    decoder = Decoder(pieces(*parts), stops)
    taken = "".join(text for text, _ in decode(decoder, len(parts)))
    shown = decoder.text
    assert shown == taken + decoder.tail == first_stop(text, stops)[0]
    assert b"".join(parts[: decoder.kept]).decode() + decoder.tail == shown
    assert all(
        not shown.encode().startswith(b"".join(parts[:n])) or not is_text(b"".join(parts[:n]))
        for n in range(decoder.kept + 1, len(parts) + 1)
    )


@given(
    st.binary(max_size=30) | st.text("ab漢🙂", max_size=8).map(str.encode),
    STOPS,
    st.lists(st.integers(0, 40), max_size=12),
)
@example(b"a\xe6\xbcb", ("b",), [2])
@example(b"aab\xe6", ("ab", "b"), [1, 2, 3])
def test_what_is_taken_is_the_text_of_its_tokens_at_any_moment(
    data: bytes, stops: tuple[str, ...], borders: list[int]
) -> None:
    """Wherever an answer breaks off, its text so far is that of its tokens so far, and neither is taken back."""
    parts = cut(data, borders)
    decoder = Decoder(pieces(*parts), stops)
    text, n_tokens = "", 0
    for more_text, n_more in decode(decoder, len(parts)):
        text, n_tokens = text + more_text, n_tokens + n_more
        assert text == text_of(b"".join(parts[:n_tokens]))
    assert n_tokens == decoder.kept
    assert text + decoder.tail == decoder.text
    if not decoder.is_stopped:
        assert decoder.text == text_of(data)


@pytest.mark.parametrize("n_tokens", range(5))
def test_held_text_is_flushed_wherever_an_answer_ends(n_tokens: int) -> None:
    """Whether the model, a limit, the context or the user ends it: half a stop string is text, with its tokens."""
    parts = ("a", "##", "#", "##")
    decoder = Decoder(pieces(*parts), ("######", "##x"))
    taken = decode(decoder, min(n_tokens, 4))
    assert ("".join(text for text, _ in taken), sum(n for _, n in taken)) == (
        "".join(parts[:n_tokens]),
        min(n_tokens, 4),
    )


def is_text(data: bytes) -> bool:
    """True when the bytes do not end inside a character."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_what_an_answer_begins_with_is_text_whatever_it_says() -> None:
    """A stop string is not found in it, nor half in it and half behind; it is taken like any other tokens."""
    pieces = [b"<think>", b"\n", b"k>", b"\nno"]
    decoder = Decoder(pieces.__getitem__, ("think", "\nk", "\n"))
    decoder.begin([0, 1])
    assert (decoder.text, decoder.is_stopped, decoder.take()) == ("<think>\n", False, ("<think>\n", 2))
    decoder.feed(2)
    assert (decoder.text, decoder.is_stopped, decoder.stop) == ("<think>\nk>", False, "")
    decoder.feed(3)
    assert (decoder.text, decoder.is_stopped, decoder.stop) == ("<think>\nk>", True, "\n")
    assert (decoder.kept, decoder.tail, decoder.take()) == (3, "", ("k>", 1))


def test_of_stop_strings_that_end_together_the_longest_was_found() -> None:
    """It is the one that is told."""
    matcher = StopMatcher(("b", "ab", ""))
    assert (matcher.feed("xab"), matcher.found) == (("x", True), "ab")
