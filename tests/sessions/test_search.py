import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.search import Hit
from sessions.store import Store
from tests.sessions.helpers import Clock

DAY_S = 86_400.0


def ask(store: Store, text: str, *, title: str = "t") -> int:
    """Add a conversation with one question; return the question's id."""
    return store.add_question(store.create_session().id, text, title=title).id


def found(store: Store, query: str) -> list[int | None]:
    """Return the messages that match, best first; None for a title."""
    return [hit.message_id for hit in store.search(query, limit=100).hits]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Store]:
    """A store whose clock stands still."""
    with closing(Store(tmp_path, clock=Clock())) as store:
        yield store


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("오늘 회의를 합니다", "회의"),
        ("오늘 회의를 합니다", "회"),
        ("오늘 회의를 합니다", "를"),
        ("明日北京に行きます", "北京"),
        ("明日北京に行きます", "京"),
        ("明日北京に行きます", "す"),
        ("東京タワー", "東京タワー"),
        ("ﾀﾜｰ", "タワー"),
        ("about AI today", "AI"),
        ("about AI today", "ai"),
        ("about AI today", "a"),
        ("AI東京", "AI 東京"),
        ("私は東京AI館", "東京AI館"),
        ("crème brûlée", "creme BRULEE"),
        ("naive", "naïve"),
        ("extraordinary", "extra"),
        ("हिन्दी भाषा", "भा"),
        ("สวัสดีครับ", "ครับ"),
        ("the quick brown fox", '"quick brown"'),
        ("ＦＵＬＬ", "full"),
        ("x = {'a': [1]}", "'a': [1"),
    ],
)
def test_words_of_many_scripts_are_found(store: Store, text: str, query: str) -> None:
    """By their beginnings, without case and marks; characters without spaces between them by any part of a run."""
    message_id = ask(store, text)
    ask(store, "something else")
    hits = store.search(query).hits
    assert [hit.message_id for hit in hits] == [message_id]
    assert hits[0].spans


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("北 京", "北京"),
        ("東京AI", "京東"),
        ("one two", "one three"),
        ("goodness", '"good"'),
        ("unbound", "bound"),
        ("anything", "OR"),
        ("anything", "*"),
    ],
)
def test_what_does_not_match_is_not_found(store: Store, text: str, query: str) -> None:
    """All words must be there, in phrases whole and in order; operators are words."""
    ask(store, text)
    assert found(store, query) == []


@settings(max_examples=40)
@given(st.lists(st.text(max_size=60), max_size=5), st.data())
def test_no_query_is_an_error_and_every_word_is_found(texts: list[str], data: st.DataObject) -> None:
    """Whatever is typed; and a Korean or Latin word that stands in a text leads to it."""
    with tempfile.TemporaryDirectory() as folder, closing(Store(Path(folder))) as store:
        word = data.draw(st.text(alphabet="abcé회의일정京", min_size=1, max_size=6))
        for text in texts:
            ask(store, text.replace("\0", "").encode("utf-8", "replace").decode())
        message_id = ask(store, f"before {word} behind")
        store.search(data.draw(st.text(max_size=40)))
        store.search(data.draw(st.text(alphabet='"*^(){}:+-~ANDORNEAR tag:is', max_size=40)))
        assert message_id in found(store, word)


def test_titles_are_found_and_found_again_when_they_change(store: Store) -> None:
    """By the new title only; the hit names the conversation and no message."""
    ask(store, "text", title="Budget für Köln")
    (hit,) = store.search("koln").hits
    assert (hit.message_id, hit.role, hit.snippet) == (None, None, "Budget für Köln")
    assert [hit.snippet[start:end] for start, end in hit.spans] == ["Köln"]
    store.rename(hit.session.id, "北京 trip")
    assert found(store, "koln") == []
    assert found(store, "北京") == [None]


def test_all_branches_are_searched(store: Store) -> None:
    """A question that was edited is found in its old version too."""
    session = store.create_session()
    first = store.add_question(session.id, "apricot", title="t")
    second = store.add_question(session.id, "banana", title="t", version_of=first)
    assert [m.id for m in store.messages(session.id)] == [second.id]
    assert found(store, "apricot") == [first.id]


def test_reasoning_is_not_searched(store: Store) -> None:
    """What a model thought is no answer; a question may say the same."""
    session = store.create_session()
    question = store.add_question(session.id, "<think>perhaps</think> asked", title="t")
    answer = store.add_answer(question, "<think>\nsecret perhaps\n</think>\n\nThe answer", "complete", run=None)
    assert found(store, "secret") == []
    assert found(store, "perhaps") == [question.id]
    assert [(hit.message_id, hit.snippet) for hit in store.search("answer").hits] == [(answer.id, "The answer")]


def test_the_trash_is_left_out_and_the_archive_is_not(store: Store) -> None:
    """What is restored is found again."""
    kept, gone = ask(store, "plum one"), ask(store, "plum two")
    sessions = {hit.message_id: hit.session.id for hit in store.search("plum").hits}
    store.set_archived(sessions[kept], archived=True)
    store.set_trashed(sessions[gone], trashed=True)
    assert found(store, "plum") == [kept]
    store.set_trashed(sessions[gone], trashed=False)
    assert set(found(store, "plum")) == {kept, gone}


def test_filters_narrow(store: Store) -> None:
    """Tags, state, place, and titles; alone they list conversations."""
    ids = [ask(store, f"plum {n}", title=f"title {n}") for n in range(4)]
    done, pinned, archived, tagged = (
        next(hit.session.id for hit in store.search(f'"plum {n}"').hits) for n in range(4)
    )
    store.set_state(done, "done")
    store.set_pinned(pinned, pinned=True)
    store.set_archived(archived, archived=True)
    store.set_tags(tagged, ["work", "home"])
    for query, expected in (
        ("is:done", 0),
        ("is:pinned", 1),
        ("is:archived", 2),
        ("tag:work", 3),
        ("tag:#WORK tag:home", 3),
    ):
        assert found(store, f"plum {query}") == [ids[expected]]
        assert [hit.snippet for hit in store.search(query).hits] == [f"title {expected}"]
    assert set(found(store, "plum is:open")) == set(ids[1:])
    assert found(store, "plum tag:nothing") == []
    assert found(store, "plum is:done is:open") == []
    assert found(store, "plum in:title") == []
    assert found(store, "title in:title") == [None] * 4


def test_the_newer_of_two_equal_messages_comes_first(opened: Store) -> None:
    """Age takes at most half of a rank, so a much better match stays ahead of a newer one."""
    clock = Clock()
    with closing(Store(opened.path.parent, clock=clock)) as store:
        old = ask(store, "walnut cake")
        clock.now += 90 * DAY_S
        new = ask(store, "walnut cake")
        weak = ask(store, "walnut " + "and many other words " * 40)
        assert found(store, "walnut") == [new, old, weak]


def test_a_title_stands_among_the_best(opened: Store) -> None:
    """It counts as much as the best message."""
    best = ask(opened, "walnut")
    others = [ask(opened, f"walnut and other things {n}") for n in range(5)]
    ask(opened, "something", title="walnut")
    assert set(found(opened, "walnut")[:2]) == {best, None}
    assert set(found(opened, "walnut")[2:]) == set(others)


def test_pages_have_everything_once(store: Store) -> None:
    """Page by page in one order; the last one says that there is no more."""
    everything = {ask(store, f"pear {n}", title=f"no {n}") for n in range(7)}
    seen: list[Hit] = []
    for offset in range(0, 9, 3):
        page = store.search("pear", limit=3, offset=offset)
        assert page.has_more is (offset < 6)
        seen += page.hits
    assert len(seen) == 7
    assert {hit.message_id for hit in seen} == everything
    assert [len(store.search("is:open", limit=4, offset=offset).hits) for offset in (0, 4)] == [4, 3]


def test_what_another_window_says_is_found(store: Store) -> None:
    """Both index, neither twice."""
    ask(store, "grape one")
    with closing(Store(store.path.parent)) as other:
        assert len(found(other, "grape")) == 1
        ask(other, "grape two")
        assert len(found(store, "grape")) == 2
        ask(store, "grape three")
        assert len(found(other, "grape")) == len(found(store, "grape")) == 3


def test_a_search_says_what_it_could_not_look_into(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It indexes so much and no more before it answers."""
    monkeypatch.setattr("sessions.search.AT_ONCE", 2)
    ids = [ask(store, f"fig {n}", title="") for n in range(5)]
    left = []
    for _ in range(3):
        page = store.search("fig")
        left.append((page.n_unindexed, {hit.message_id for hit in page.hits}))
    assert left == [(3, set(ids[:2])), (1, set(ids[:4])), (0, set(ids))]


def test_hostile_titles_stay_as_they_are(store: Store) -> None:
    """Positions are those of the stored text: who shows it makes it safe."""
    title = "\x1b]0;x\x07 \u202ekumquat " + "x" * 10_000
    ask(store, "text", title=title)
    (hit,) = store.search("kumquat").hits
    assert hit.session.title == title
    assert [hit.snippet[start:end] for start, end in hit.spans] == ["kumquat"]
