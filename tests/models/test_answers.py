"""Text and ids of answers by models that say anything: random bytes, half characters, stop strings inside tokens."""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.answers import implied_ends, implied_stops, n_reasoning_tokens, stripped, with_marks
from models.engine import Entry, Event, Finished, Piece, Prompt, Sampling, TokenRun
from models.glue import Glue
from models.loading import LocalSettings
from models.local import LocalEngine
from models.reasoning import answer_of, block_of
from tests.models.helpers import one
from tests.models.tiny_models import Tokenizer, build

STOPS: tuple[tuple[str, ...], ...] = (
    (),
    ("e",),
    ("he", "th", "\ufffd\ufffd"),
    ("a", "b", "c d"),
    ("\ufffd",),
    ("e ", "x"),
)


@dataclass(frozen=True, slots=True)
class Teller:
    """An engine over a tiny model."""

    engine: LocalEngine

    def tells(self, sampling: Sampling) -> list[Event]:
        """The events of one answer."""
        events: list[Event] = []
        self.engine.generate(Prompt((Entry("user", "hello"),), store_kv=False), sampling, events.append)
        return events

    def text_of(self, ids: tuple[int, ...]) -> str:
        """U+FFFD for what is invalid, nothing for a character cut at the end."""
        data = b"".join(self.engine._model.piece(token) for token in ids)
        return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


@pytest.fixture(scope="module", params=["bpe", "spm"])
def teller(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, native_log: list[str]
) -> Iterator[Teller]:
    """Byte-level BPE, and SentencePiece, which puts a space before each text it is given."""
    assert native_log is not None
    root = tmp_path_factory.mktemp("answers")
    tokenizer: Tokenizer = request.param
    settings = LocalSettings(
        build("dense", root, tokenizer=tokenizer), root, root, 256, threads=1, flash_attention="off"
    )
    engine = LocalEngine(settings, lambda _event: None)
    yield Teller(engine)
    engine.close()


@pytest.mark.parametrize("stops", STOPS)
def test_text_and_ids_of_any_answer_agree(teller: Teller, stops: tuple[str, ...]) -> None:
    """At each piece and at the end, and no stop string is in the text."""
    reasons = set()
    for seed in range(60):
        events = teller.tells(Sampling(temperature=1.5, seed=seed, max_tokens=60, stop=(*stops, "a long one" * 5)))
        finished = one(Finished, events)
        text, ids = "", tuple[int, ...]()
        for piece in (event for event in events if isinstance(event, Piece)):
            text, ids = text + piece.text, ids + piece.token_ids
            assert teller.text_of(ids) == text
        assert (text, ids) == (finished.text, finished.run.body)
        assert not any(stop in text for stop in stops)
        reasons.add(finished.reason)
    assert ("stop" in reasons) == bool(stops)


def test_the_context_runs_out_between_two_tokens_of_a_character(teller: Teller) -> None:
    """What is held back at the end of the context is text as far as it is whole."""
    finished = one(
        Finished, teller.tells(Sampling(temperature=1.5, seed=1, stop=("a long one" * 5,), grammar="root ::= [^a]*"))
    )
    assert teller.text_of(finished.run.body) == finished.text
    assert "\ufffd" not in finished.text


# --- which tokens are reasoning, and what ends an answer ---

MARKS = ["<think>", "</think>", "[THINK]", "<|end|>"]
PIECES = [*(mark.encode() for mark in MARKS), *(bytes([byte]) for byte in range(256)), b">\n\n", b"\n\nyes", b"k>so"]
STARTS = ["", "<think>", " <think>so</think>", "<think>\n</think>\n\nyes", "<|channel|>final<|message|>", "<thi"]


def piece_of(token: int) -> bytes:
    """Marks, all bytes, and some longer pieces; one more token has no text."""
    return PIECES[token] if token < len(PIECES) else b""


def bytes_of(text: str) -> list[int]:
    """A text, one token a byte."""
    return [byte + len(MARKS) for byte in text.encode()]


def text_of_tokens(ids: Sequence[int]) -> str:
    """Their text."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(map(piece_of, ids)))


@given(st.sampled_from(STARTS), st.lists(st.integers(0, len(PIECES)), max_size=20))
def test_a_stripped_answer_is_the_text_behind_the_block(start: str, rest: list[int]) -> None:
    """Whatever tokens it is made of; the ids at its end are those it had."""
    ids = (*bytes_of(start), *rest)
    text = text_of_tokens(ids)
    run = TokenRun((9, *ids, 7, 8), 1, 1 + len(ids))
    shorter = stripped(run, text, (9,), piece_of, bytes_of)
    n_block = n_reasoning_tokens(ids, text, piece_of)
    assert (n_block is None) == (not block_of(text).is_reasoning)
    assert n_block is None or text_of_tokens(ids[:n_block]).startswith(text[: block_of(text).end])
    if shorter is None:
        respelt = len(PIECES[-1]) + len(PIECES[-2]) + len(PIECES[-3])
        assert not block_of(text).end or len(answer_of(text).encode()) + respelt >= len(ids) - len(start)
        return
    assert text_of_tokens(shorter.body) == answer_of(text)
    assert (shorter.ids[:1], shorter.ids[-2:], len(shorter.ids) < len(run.ids)) == ((9,), (7, 8), True)
    n_same = len(shorter.body) - len(PIECES[-2])
    assert n_same <= 0 or ids[-n_same:] == shorter.body[-n_same:]


def test_a_silent_token_behind_the_block_goes_with_it() -> None:
    """A mark of the answer's own: what the template opens earlier answers with says it again."""
    silent = len(PIECES)
    text = "<think>so</think>\n"
    ids = (*bytes_of(text), silent, *bytes_of("yes"), silent)
    run = TokenRun((9, *ids), 1, 1 + len(ids))
    shorter = stripped(run, f"{text}yes", (9,), piece_of, bytes_of)
    assert shorter is not None
    assert list(shorter.body) == [*bytes_of("yes"), silent]


def test_nothing_is_left_of_an_answer_cut_inside_its_reasoning() -> None:
    """Not even the bytes of a character that was not whole."""
    ids = (*bytes_of("<think>so"), bytes_of("é")[0])
    shorter = stripped(TokenRun((9, *ids, 7), 1, 1 + len(ids)), "<think>so", (9, 9), piece_of, bytes_of)
    assert shorter == TokenRun((9, 9, 7), 2, 2)
    assert n_reasoning_tokens(ids, "<think>so", piece_of) == len(ids)


def special(text: str, special: bool) -> list[int]:
    """Marks as single tokens if they are meant, all else as bytes."""
    ids: list[int] = []
    while text:
        at = next((i for i, mark in enumerate(MARKS) if special and text.startswith(mark)), None)
        ids += bytes_of(text[0]) if at is None else [at]
        text = text[1 if at is None else len(MARKS[at]) :]
    return ids


def test_only_marks_of_the_family_without_a_text_get_one() -> None:
    """Those that have a text keep it, others stay silent."""

    def silent(token: int) -> bytes:
        return b"" if token in (0, 2, 3) else piece_of(token)

    spoken = with_marks(silent, "<think>", special)
    assert [spoken(token) for token in range(4)] == [b"<think>", b"</think>", b"", b""]
    assert [with_marks(silent, None, special)(token) for token in range(4)] == [b"", b"</think>", b"", b""]
    assert with_marks(silent, "channels", special)(3) == b"<|end|>"


GLUE = Glue(
    bos_token="",
    first_user="",
    answer_user="",
    user_close="",
    assistant="",
    past_assistant="",
    assistant_close="",
)


@pytest.mark.parametrize(
    ("closing", "following", "stops"),
    [
        ("<|im_end|>\n", "<|im_start|>user\n", ("<|im_end|>",)),
        ("<|end|>\n", "<|im_start|>user\n", ()),
        ("\n\n<|end|>", "USER: ", ()),
        ("", "### Instruction:\n", ("### Instruction:",)),
        ("\n\n", "### Instruction:\n", ("### Instruction:",)),
        ("", "<|im_start|>user\n", ("<|im_start|>user",)),
        ("", "<|end|>### Instruction:\n", ()),
        ("", "Question ", ()),
        ("", "Q: ", ()),
        ("", "\n\n", ()),
        ("", "", ()),
    ],
)
def test_what_ends_an_answer_as_text(closing: str, following: str, stops: tuple[str, ...]) -> None:
    """The closing, unless a token in it ends the answer; else the next opening, unless it may be anything."""
    glue = replace(GLUE, assistant_close=closing, answer_user=following)
    assert implied_stops(glue, special, piece_of, lambda token: token == 3) == stops
    assert implied_ends(glue, special, piece_of, lambda token: token == 3) == frozenset()


def test_a_silent_closing_is_a_token_that_ends() -> None:
    """Only if it is all of the closing, and the vocabulary does not call it an end."""
    glue = replace(GLUE, assistant_close="<|end|>\n")

    def silent(token: int) -> bytes:
        return b"" if token == 3 else piece_of(token)

    assert implied_ends(glue, special, silent, lambda _token: False) == {3}
    assert implied_stops(glue, special, silent, lambda _token: False) == ()
    assert implied_ends(glue, special, silent, lambda token: token == 3) == frozenset()
    assert implied_ends(glue, special, piece_of, lambda _token: False) == frozenset()
