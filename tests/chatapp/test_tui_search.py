from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len
from textual.widgets import Input

from chatapp.tui.results import FOUND, SNIPPET_CELLS, as_query, snippet_text
from sessions.query import parse, snippet
from sessions.search import Hit
from sessions.store import Store
from tests.chatapp.test_tui_sidebar import session_at
from tests.chatapp.tui_window import Window, hears, sees, until

WIDE = (120, 36)


def plant(store: Store, title: str, *turns: tuple[str, str]) -> str:
    """Add a conversation with these turns; return its id."""
    session = store.create_session()
    for asked, answered in turns:
        question = store.add_question(session.id, asked, title=title)
        store.add_answer(question, answered, "complete", run=None)
    return session.id


def hit_on(text: str, query: str) -> Hit:
    """A message that was found."""
    return Hit(session_at(0.0), 1, "user", 0.0, *snippet(text, parse(query)))


@pytest.mark.parametrize(
    ("typed", "query"),
    [("#bike trip", "tag:bike trip"), ("c# lib", "c# lib"), ("a #b #c", "a tag:b tag:c"), ("# a", "# a")],
)
def test_a_hash_is_short_for_a_tag(typed: str, query: str) -> None:
    """Only at the start of a word, and only with a name behind it."""
    assert as_query(typed) == query


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("short bicycle", "bicycle"),
        ("word " * 60 + "the bicycle " + "word " * 60, "bicycle"),
        ("서울에서 " * 40 + "자전거 여행을 " * 30, "자전거"),
        ("\x1b[31m\u202e" * 20 + "bicycle\n\nnext", "bicycle"),
    ],
)
def test_a_snippet_shows_its_match(text: str, query: str) -> None:
    """One line of bounded width, clean, with the match in it and marked by more than a colour."""
    content = snippet_text(hit_on(text, query))
    assert cell_len(content.plain) <= SNIPPET_CELLS + 1
    assert not {c for c in content.plain if ord(c) < 32}
    marked = [content.plain[span.start : span.end] for span in content.spans if span.style == FOUND]
    assert query in marked
    assert "bold" in FOUND
    assert "underline" in FOUND


async def test_search_as_you_type_opens_the_message(tmp_path: Path) -> None:
    """Two Korean characters find a message of a long conversation; Enter shows it, marked; Escape ends the search."""
    window = Window(tmp_path)
    turns = [(f"question {n}", f"answer {n}") for n in range(100)]
    turns[20] = ("서울에서 부산까지 자전거로 며칠 걸려?", "닷새쯤 걸립니다.")
    wanted = plant(window.store, "trips", *turns)
    plant(window.store, "other", ("hello", "bicycles"))
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.sidebar.option_count == 3, "the list is filled")
        window.sidebar.focus()
        await pilot.press("slash", *"거로")
        await until(pilot, lambda: window.listing.results.option_count == 1, "one match")
        await sees(pilot, window, "자전거로")
        assert not window.sidebar.display
        await pilot.press("enter")
        await until(pilot, lambda: window.app.stage.current == wanted, "the conversation is open")
        await sees(pilot, window, "닷새쯤")
        marked = window.transcript.marked
        assert marked is not None
        assert marked.text == turns[20][0]
        assert len(window.app.query(".-marked")) == 1
        assert window.transcript.n_mounted < 24
        await pilot.press("ctrl+f", "escape")
        await until(pilot, lambda: bool(window.sidebar.display), "the list is back")
        assert not window.listing.field.display


async def test_a_message_of_another_branch_is_shown(tmp_path: Path) -> None:
    """A match on a branch that is not shown brings that branch to the screen."""
    window = Window(tmp_path)
    session_id = plant(window.store, "t", ("first", "about zebras"))
    question = window.store.messages(session_id)[0]
    window.store.set_head(session_id, question.id)
    window.store.add_answer(question, "about lions", "complete", run=None)
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press("ctrl+f", *"zebra")
        await until(pilot, lambda: window.listing.results.option_count == 1, "one match")
        await pilot.press("enter")
        await sees(pilot, window, "about zebras")
        assert "about lions" not in window.screen_text()
        await sees(pilot, window, "1/2")


async def test_the_newest_query_wins(tmp_path: Path) -> None:
    """Results belong to what stands in the field; an empty result says so; without a query there is the list."""
    window = Window(tmp_path)
    plant(window.store, "alpha", ("alpha beta", "gamma"))
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press("ctrl+f", *"alpha")
        await sees(pilot, window, "you ·")
        await pilot.press(*"zzz")
        await sees(pilot, window, "Nothing found for alphazzz")
        window.listing.field.value = "beta"
        await until(pilot, lambda: window.listing.results.option_count == 1, "one match again")
        window.listing.field.value = ""
        await until(pilot, lambda: bool(window.sidebar.display), "the list")
        await pilot.press(*"#nosuch")
        await sees(pilot, window, "Nothing found")


async def test_tags_are_found(tmp_path: Path) -> None:
    """#tag narrows a search, and finds the conversation without a word."""
    window = Window(tmp_path)
    tagged = plant(window.store, "tagged", ("same word", "x"))
    plant(window.store, "bare", ("same word", "x"))
    window.store.set_tags(tagged, ["bike"])
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press("ctrl+f", *"same")
        await until(pilot, lambda: window.listing.results.option_count == 2, "both")
        await pilot.press(*" #bike")
        await until(pilot, lambda: window.listing.results.option_count == 1, "the tagged one")
        window.listing.field.value = "#bike"
        await sees(pilot, window, "title ·")
        await pilot.press("enter")
        await until(pilot, lambda: window.app.stage.current == tagged, "it is open")


async def test_a_narrow_window_searches_too(tmp_path: Path) -> None:
    """Where the list is hidden it comes over the text for the search, and goes when something is opened."""
    window = Window(tmp_path)
    session_id = plant(window.store, "한강 자전거", ("한강에서 자전거를 타려면?", "대여소로 가세요."))
    async with window.app.run_test(size=(60, 16)) as pilot:
        await pilot.press("ctrl+f", *"한강")
        await sees(pilot, window, "한강에서")
        await pilot.press("down", "up", "enter")
        await until(pilot, lambda: window.app.stage.current == session_id, "it is open")
        await until(pilot, lambda: not window.listing.display, "the list is out of the way")


async def test_a_search_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure reaches the user, and the next query works."""
    window = Window(tmp_path)
    plant(window.store, "alpha", ("alpha", "beta"))
    real = Store.search

    def broken(*_: object, **__: object) -> None:
        raise ValueError("no luck")

    monkeypatch.setattr(Store, "search", broken)
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press("ctrl+f", *"alp")
        await hears(pilot, window, "The search failed")
        monkeypatch.setattr(Store, "search", real)
        await pilot.press("h")
        await until(pilot, lambda: window.listing.results.option_count == 2, "title and message")
        assert window.app.screen.query_one("#search", Input).value == "alph"
