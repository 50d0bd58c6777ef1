from chatapp.serve.recall import Recall
from models.engine import Entry, TokenRun

RUN = TokenRun((1, 2, 3, 4), 1, 3)
ASKED = (Entry("system", "s"), Entry("user", "q"))


def after(text: str, *, question: str = "q") -> tuple[Entry, ...]:
    """The prompt of a next turn behind this answer."""
    return (ASKED[0], Entry("user", question), Entry("assistant", text), Entry("user", "next"))


def runs(recall: Recall, entries: tuple[Entry, ...]) -> list[TokenRun | None]:
    """The runs that are known of a prompt."""
    return [entry.run for entry in recall.known(entries)]


def test_an_answer_that_comes_back_has_its_tokens() -> None:
    """As it was given or trimmed, and nothing else of the prompt has any."""
    recall = Recall()
    recall.remember(ASKED, " An answer.\n\n", RUN)
    for text in (" An answer.\n\n", "An answer."):
        assert runs(recall, after(text)) == [None, None, RUN, None]


def test_line_ends_of_a_client_do_not_matter() -> None:
    """What comes in has LF; so has what is kept."""
    recall = Recall()
    recall.remember(ASKED, "a\r\nb", RUN)
    assert runs(recall, after("a\nb"))[2] == RUN


def test_another_text_or_place_is_another_answer() -> None:
    """Tokens belong to an answer behind these very messages."""
    recall = Recall()
    recall.remember(ASKED, "An answer.", RUN)
    assert runs(recall, after("An answer!")) == [None] * 4
    assert runs(recall, after("An answer.", question="other")) == [None] * 4


def test_borders_between_messages_count() -> None:
    """The same characters cut otherwise are other messages."""
    recall = Recall()
    recall.remember((Entry("user", "ab"),), "c", RUN)
    for user, answer in (("a", "bc"), ("abc", "")):
        entries = (Entry("user", user), Entry("assistant", answer), Entry("user", "next"))
        assert runs(recall, entries) == [None] * 3


def test_the_latest_of_two_equal_answers_counts() -> None:
    """Its tokens are those the context holds."""
    recall = Recall()
    later = TokenRun((5, 6), 0, 1)
    recall.remember(ASKED, "a", RUN)
    recall.remember(ASKED, "a", later)
    assert runs(recall, after("a"))[2] == later


def test_the_answer_unused_for_longest_goes_first() -> None:
    """Memory stays below its bound, and what is asked for stays."""
    recall = Recall(most_tokens=2 * len(RUN.ids))
    for text in ("a", "b"):
        recall.remember(ASKED, text, RUN)
    assert runs(recall, after("a"))[2] == RUN
    recall.remember(ASKED, "c", RUN)
    assert [runs(recall, after(text))[2] for text in ("a", "b", "c")] == [RUN, None, RUN]


def test_a_server_without_tokens_leaves_nothing() -> None:
    """An answer from elsewhere has no tokens to be kept."""
    recall = Recall()
    recall.remember(ASKED, "a", TokenRun((), 0, 0))
    assert runs(recall, after("a"))[2] is None
