"""Text and ids of answers by models that say anything: random bytes, half characters, stop strings inside tokens."""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from models.engine import Entry, Event, Finished, Piece, Prompt, Sampling
from models.local import LocalEngine, LocalSettings
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
