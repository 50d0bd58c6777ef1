import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.query import MAX_TERMS, SNIPPET_CHARS, Query, Term, fold, parse, snippet, spans
from sessions.terms import FORMAT, indexed


def marked(text: str, query: str) -> list[str]:
    """Return what a query marks in a text."""
    return [text[start:end] for start, end, _ in spans(text, parse(query))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("plain Words", "plain Words"),
        ("회의를", "회의 의를 를"),
        ("京", "京"),
        ("AI東京x", "AI 東京 京 x"),
        ("ひらカタ漢字", "ひら らカ カタ タ漢 漢字 字"),
        ("ＡＩ ﾗｰ", "AI ラー ー"),
        ("\u1112\u116c\u110b\u1174", "회의 의"),
        ("か\u3099き", "がき き"),
        ("สวัส", "สว วั ัส ส"),
        ("𠀀𠀁", "𠀀𠀁 𠀁"),
        ("안녕, 세계", "안녕 녕 , 세계 계"),
    ],
)
def test_what_format_1_of_the_index_holds(text: str, words: str) -> None:
    """Deleting takes these very words again: a change here needs another format."""
    assert FORMAT == 1
    assert indexed(text).split() == words.split()


def test_words_phrases_and_filters_are_told_apart() -> None:
    """Each has its place; case does not matter in filters."""
    assert parse('two words "a phrase" tag:Work tag:#home in:title IS:done is:pinned') == Query(
        (Term("two", is_open=True), Term("words", is_open=True), Term("a phrase", is_open=False)),
        ("work", "home"),
        frozenset({"done", "pinned"}),
        is_in_title=True,
    )


@pytest.mark.parametrize("text", ["is:nothing", "in:text", "title:x", "tag", "x:y", "http://a.b/c", 'a"b'])
def test_everything_else_is_text(text: str) -> None:
    """What looks like a filter and is none is looked for."""
    assert parse(text).terms == (Term(text, is_open=True),)


@pytest.mark.parametrize("text", ["", "  ", '"', '""', "* ^ ( )", "-", "\0", "\ud800"])
def test_what_has_no_words_looks_for_nothing(text: str) -> None:
    """It is neither an error nor everything."""
    assert parse(text) == Query()
    assert parse(text).match is None


def test_a_query_has_limits() -> None:
    """What is more than anybody looks for is left out."""
    query = parse("word " * 100 + "x" * 10_000)
    assert len(query.terms) == MAX_TERMS
    assert max(len(term.text) for term in parse("x" * 10_000).terms) == 100


@pytest.mark.parametrize(
    ("text", "query", "found"),
    [
        ("A naïve idea, naively", "naive", ["naïve", "naive"]),
        ("cre\u0300me", "crème", ["cre\u0300me"]),
        ("Straße ÉCOLE", "école", ["ÉCOLE"]),
        ("오늘 회의를 합니다", "회의", ["회의"]),
        ("각 가", "가", ["가"]),
        ("私は東京AI館へ", "東京AI", ["東京AI"]),
        ("東京 AI", "東京AI", ["東京 AI"]),
        ("AI東京", "東京", ["東京"]),
        ("said airport AI", "ai", ["ai", "AI"]),
        ('one two "one two" onetwo', '"one two"', ["one two", "one two"]),
        ("is good, is goodness", '"is good"', ["is good"]),
        ("C++ and c", "c++", ["C", "c"]),
        ("ＡＩ", "ai", ["ＡＩ"]),
        ("İstanbul ıs", "istanbul", ["İstanbul"]),
        ("snake_case", "case", ["case"]),
        ("हिन्दी", "हिन्दी", ["हिन्दी"]),
        ("nothing here", "absent", []),
    ],
)
def test_matches_are_found_in_the_text_as_it_is_written(text: str, query: str, found: list[str]) -> None:
    """Case, marks and widths do not matter; beginnings of words do, ends only in phrases."""
    assert marked(text, query) == found


def test_a_snippet_shows_most_of_what_was_looked_for() -> None:
    """It begins at a word before the best place, and its positions count in it."""
    text = "alpha " + "filler words " * 100 + "then alpha beta gamma stand together " + "filler " * 100
    part, found = snippet(text, parse("alpha beta gamma"))
    assert [part[start:end] for start, end in found] == ["alpha", "beta", "gamma"]
    assert len(part) == SNIPPET_CHARS
    assert re.match(r"\w+ ", part)


def test_a_match_far_behind_is_found_and_a_text_without_one_begins() -> None:
    """A long message is looked through until something is found."""
    part, found = snippet("x " * 100_000 + "needle", parse("needle"))
    assert [part[start:end] for start, end in found] == ["needle"]
    assert snippet("x " * 1000, parse("needle")) == ("x " * 80, ())


@given(st.text(), st.text())
def test_no_text_and_no_query_is_wrong(text: str, typed: str) -> None:
    """Spans lie inside the snippet, in order, none over another."""
    part, found = snippet(text, parse(typed))
    assert part in text
    ends = [0, *(place for span in found for place in span), len(part)]
    assert ends == sorted(ends)


@given(st.text())
def test_folding_knows_where_each_character_comes_from(text: str) -> None:
    """Places are those of the text, and never go back."""
    folded, places = fold(text)
    assert len(folded) == len(places)
    assert list(places) == sorted(places)
    assert all(0 <= place < len(text) for place in places)
