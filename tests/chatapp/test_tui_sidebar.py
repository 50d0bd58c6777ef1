from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Input

from chatapp.tui import words
from chatapp.tui.listrows import BROAD, NARROW, Row, group_of
from chatapp.tui.overview import PAGE
from models.price import Price
from sessions.conversation import Session, SessionSummary
from sessions.forks import numbered
from sessions.store import Store
from tests.chatapp.tui_window import Window, hears, sees, until

WIDE = (120, 36)
LONG_TITLE = "한강에서 자전거를 타고 부산까지 가려면 며칠이나 걸리는지 알려 주세요 " * 3


def plant(store: Store, n: int) -> list[str]:
    """Add conversations of one turn each; return their ids, oldest first."""
    ids = []
    for at in range(n):
        session = store.create_session()
        question = store.add_question(session.id, f"question {at}", title=f"title {at}")
        store.add_answer(question, f"answer {at}", "complete", run=None)
        ids.append(session.id)
    return ids


def session_at(updated_at: float, *, pinned_at: float | None = None) -> Session:
    """A conversation that was last used then."""
    return Session(
        "s", "t", "t", "open", None, None, created_at=0, updated_at=updated_at, trashed_at=None, pinned_at=pinned_at
    )


@pytest.mark.parametrize(
    ("days", "group"), [(0, "Today"), (1, "Yesterday"), (2, "This week"), (6, "This week"), (7, "Older"), (-1, "Today")]
)
def test_groups_are_days_of_the_calendar(days: int, group: str) -> None:
    """What was said a minute before midnight belongs to yesterday, not to the last 24 hours."""
    noon = datetime(2026, 3, 18, 12, tzinfo=UTC).astimezone().replace(hour=0, minute=1)
    then = noon.replace(hour=23, minute=59) - timedelta(days=days)
    assert group_of(session_at(then.timestamp()), noon.timestamp()) == group


def test_pinned_ones_are_a_group_of_their_own() -> None:
    """However old they are."""
    assert group_of(session_at(0.0, pinned_at=5.0), 1e9) == "Pinned"


@pytest.mark.parametrize("width", [NARROW, BROAD])
@pytest.mark.parametrize("title", ["short", LONG_TITLE, "\u200bé" * 40])
def test_a_row_has_its_width(title: str, width: int) -> None:
    """Wide characters or not, a row takes exactly the cells it may."""
    row = Row("id", title, "3h", "4.0k", state="done", is_current=True)
    assert cell_len(row.content(width).plain) == width
    assert ("4.0k" in row.content(width).plain) == (width == BROAD)


@pytest.mark.parametrize("width", [NARROW, BROAD])
def test_words_of_wide_characters_keep_the_columns(width: int) -> None:
    """An age in another language is counted in cells, not in characters."""
    lines = [
        Row("id", "title", age, "4.0k", is_warm=True, seconds="12s").content(width).plain for age in ("방금", "3h")
    ]
    assert [cell_len(line) for line in lines] == [width, width]
    assert width == NARROW or lines[0].index("●") == lines[1].index("●")


@pytest.mark.parametrize("width", [NARROW, BROAD])
@pytest.mark.parametrize("title", ["short (2)", LONG_TITLE + " (12)", LONG_TITLE])
def test_a_fork_is_marked_and_keeps_its_number(title: str, width: int) -> None:
    """However little room there is, the row as wide as others: forks of one conversation are told apart."""
    line = Row("id", title, "3h", "4.0k", is_fork=True).content(width).plain
    assert line.startswith("  ↳ ")
    assert numbered(title) in line
    assert cell_len(line) == width


@pytest.mark.parametrize("width", [NARROW, BROAD])
@pytest.mark.parametrize(("is_warm", "seconds"), [(True, "0.2s"), (False, "12s"), (False, "")])
def test_a_row_tells_what_coming_back_takes(width: int, seconds: str, *, is_warm: bool) -> None:
    """By a mark of its own, and in seconds where there is room; the row stays as wide as it is."""
    line = Row("s", LONG_TITLE, "3h", "4.0k", is_warm, seconds, "done").content(width).plain
    assert cell_len(line) == width
    assert ("●" in line, "○" in line) == (is_warm, not is_warm)
    assert (seconds in line) == (width == BROAD or not seconds)


def test_durations_fit_four_cells() -> None:
    """Whatever the duration."""
    values = (0, 0.04, 9.94, 9.96, 99.4, 99.6, 5_969, 5_971, 1e6, 1e9)
    assert [words.short_seconds(value) for value in values[:6]] == ["0.0s", "0.0s", "9.9s", "10s", "99s", "2m"]
    assert max(len(words.short_seconds(value)) for value in values) == 4


async def test_all_rows_have_their_price(tmp_path: Path) -> None:
    """Asked for once, together, soon after the list is painted."""
    asked: list[int] = []

    def prices(summaries: Sequence[SessionSummary]) -> Mapping[str, Price]:
        asked.append(len(summaries))
        return {one.session.id: Price(one.session.title.endswith("1"), 0.5) for one in summaries}

    window = Window(tmp_path, prices=prices)
    plant(window.store, 3)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: "●" in window.screen_text(), "a warm one")
        assert window.screen_text().count("○") == 2
        assert 3 in asked


@pytest.mark.parametrize(
    ("n", "text"), [(0, "0"), (950, "950"), (1_000, "1.0k"), (9_960, "10k"), (999_600, "1.0M"), (12_345_678, "12M")]
)
def test_short_counts(n: int, text: str) -> None:
    """Tokens of a row take at most four cells."""
    assert words.short_count(n) == text


async def test_a_long_list_is_loaded_by_pages(tmp_path: Path) -> None:
    """Of 500 conversations one page is loaded; going to its end loads the next one; widgets do not grow."""
    window = Window(tmp_path)
    plant(window.store, 500)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.sidebar.option_count == PAGE + 1, "the first page")
        window.sidebar.focus()
        await pilot.press("end")
        await until(pilot, lambda: window.sidebar.option_count == 2 * PAGE + 1, "the second page")
        await pilot.press("end")
        await until(pilot, lambda: window.sidebar.option_count == 3 * PAGE + 1, "the third page")
        assert len(list(window.app.query("*"))) < 100
        window.app.stage.refresh_sidebar()
        assert window.sidebar.option_count == 3 * PAGE + 1


async def test_a_list_that_did_not_change_is_not_painted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh replaces the rows that look otherwise than before, and touches no other."""
    window = Window(tmp_path)
    ids = plant(window.store, 30)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.sidebar.option_count == 31, "the list is filled")
        touched: list[int] = []
        monkeypatch.setattr(window.sidebar, "set_options", lambda options: touched.extend(range(len(options))))
        monkeypatch.setattr(window.sidebar, "replace_option_prompt_at_index", lambda at, _: touched.append(at))
        window.app.stage.refresh_sidebar()
        assert touched == []
        window.manager.mark_done(ids[-1])
        window.app.stage.refresh_sidebar()
        assert touched == [1]


async def test_pins_stand_first_and_are_taken_back(tmp_path: Path) -> None:
    """P pins the highlighted conversation, P again or U takes the pin away."""
    window = Window(tmp_path)
    ids = plant(window.store, 3)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.sidebar.option_count == 4, "the list is filled")
        window.sidebar.focus()
        window.sidebar.highlighted = window.sidebar.get_option_index(ids[0])
        await pilot.press("p")
        await sees(pilot, window, "Pinned")
        assert window.manager.sessions()[0].session.id == ids[0]
        await pilot.press("u")
        await until(pilot, lambda: window.manager.session(ids[0]).pinned_at is None, "the pin is gone")
        await until(pilot, lambda: "Pinned" not in window.screen_text(), "so is its group")


async def test_archive_and_trash_have_views(tmp_path: Path) -> None:
    """A archives, V shows the archive and then the trash, R restores; the open one gives way to a new one."""
    window = Window(tmp_path)
    ids = plant(window.store, 3)
    window.app.stage.current = ids[2]
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.sidebar.option_count == 4, "the list is filled")
        window.sidebar.focus()
        window.sidebar.highlighted = window.sidebar.get_option_index(ids[1])
        await pilot.press("a")
        await until(pilot, lambda: window.sidebar.option_count == 3, "one is archived")
        window.sidebar.highlighted = window.sidebar.get_option_index(ids[2])
        await pilot.press("delete")
        await until(pilot, lambda: window.app.stage.current == "", "a new one is shown")
        await pilot.press("v")
        await sees(pilot, window, "Archive ·")
        await sees(pilot, window, "title 1")
        await pilot.press("v")
        await sees(pilot, window, "Trash ·")
        await sees(pilot, window, "title 2")
        window.sidebar.highlighted = window.sidebar.get_option_index(ids[2])
        await pilot.press("r")
        await until(pilot, lambda: window.manager.session(ids[2]).trashed_at is None, "it is restored")
        await sees(pilot, window, "The trash is empty")
        await pilot.press("v")
        await sees(pilot, window, "title 2")


async def test_deleting_for_good_asks_first(tmp_path: Path) -> None:
    """In the trash, Delete names the title and begins with the way that keeps it."""
    window = Window(tmp_path)
    ids = plant(window.store, 1)
    window.manager.rename(ids[0], "Secret [bold] plans")
    window.manager.trash(ids[0])
    async with window.app.run_test(size=WIDE) as pilot:
        window.sidebar.focus()
        await pilot.press("v", "v")
        await sees(pilot, window, "Secret [bold] plans")
        window.sidebar.highlighted = 0
        await pilot.press("delete")
        await sees(pilot, window, "Delete “Secret [bold] plans” for good?")
        await pilot.press("enter")
        await pilot.pause()
        assert window.store.has_session(ids[0])
        await pilot.press("delete")
        await sees(pilot, window, "No way back")
        await pilot.press("down", "enter")
        await until(pilot, lambda: not window.store.has_session(ids[0]), "it is gone")
        await sees(pilot, window, "The trash is empty")


async def test_tags_and_task_are_written_in_dialogs(tmp_path: Path) -> None:
    """What the dialogs are given is stored, and stands in the title line and under it."""
    window = Window(tmp_path)
    ids = plant(window.store, 1)
    window.app.stage.current = ids[0]
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.sidebar.option_count == 2, "the list is filled")
        window.sidebar.focus()
        await pilot.press("number_sign")
        await sees(pilot, window, "Words with spaces between them")
        await pilot.press(*"#Bike trip", "enter")
        await until(pilot, lambda: window.manager.session(ids[0]).tags == ("bike", "trip"), "both tags")
        await sees(pilot, window, "#bike #trip")
        await pilot.press("number_sign")
        await pilot.press("ctrl+u", *"trip", "enter")
        await until(pilot, lambda: window.manager.session(ids[0]).tags == ("trip",), "one tag")
        await pilot.press("t")
        await sees(pilot, window, "What this conversation is for")
        await pilot.press("ctrl+u", *"plan it", "enter")
        await sees(pilot, window, "task plan it")
        assert window.manager.session(ids[0]).task == "plan it"


async def test_the_model_suggests_a_title(tmp_path: Path) -> None:
    """Ctrl+G puts the model's title into the line, without its quotes; Enter keeps it."""
    window = Window(tmp_path, reply=lambda _: '"Cycling to Busan."')
    session_id = await window.ask("how far is it?")
    window.app.stage.current = session_id
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.sidebar.option_count == 2, "the list is filled")
        await pilot.press("f2")
        await sees(pilot, window, "lets the model suggest")
        await pilot.press("ctrl+g")
        await until(pilot, lambda: window.app.screen.query_one(Input).value == "Cycling to Busan", "the suggestion")
        await pilot.press("enter")
        await until(pilot, lambda: window.manager.session(session_id).title == "Cycling to Busan", "the title")
        assert len(window.manager.messages(session_id)) == 2


async def test_a_suggestion_can_be_stopped(tmp_path: Path) -> None:
    """The first Escape stops the model, the second closes the dialog; the title stays."""
    window = Window(tmp_path)
    session_id = await window.ask("how far is it?")
    window.app.stage.current = session_id
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.sidebar.option_count == 2, "the list is filled")
        window.engine.hang_at = 3
        await pilot.press("f2", "ctrl+g")
        await sees(pilot, window, "writing…")
        await pilot.press("escape")
        await sees(pilot, window, "Stopped")
        await pilot.press("escape")
        await until(pilot, lambda: len(window.app.screen_stack) == 1, "the dialog is closed")
        assert window.manager.session(session_id).title == "how far is it?"
        window.engine.hang_at = None
        assert [event async for event in window.manager.suggest_title(session_id)] != []


async def test_the_price_of_coming_back_is_shown(tmp_path: Path) -> None:
    """Tokens and price of the highlighted conversation stand below the list; it is asked for in another thread."""
    asked: list[str] = []

    def prices(summaries: Sequence[SessionSummary]) -> Mapping[str, Price]:
        asked.extend(summary.session.id for summary in summaries)
        return {summary.session.id: Price(is_warm=False, seconds=9.04) for summary in summaries}

    earlier = Window(tmp_path)
    session_id = await earlier.ask("remember this")
    earlier.store.close()
    window = Window(tmp_path, prices=prices)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.sidebar.option_count == 2, "the list is filled")
        window.sidebar.focus()
        await pilot.press("down")
        await sees(pilot, window, "tokens · cold 9.0 s")
        assert set(asked) == {session_id}


async def test_hostile_titles_and_tags_stay_text(tmp_path: Path) -> None:
    """Control characters, marks of direction and markup in a title reach no terminal."""
    window = Window(tmp_path)
    ids = plant(window.store, 1)
    window.store.rename(ids[0], "\x1b]52;c;aGk=\x1b\\[/oops]\u202e" + LONG_TITLE * 40)
    window.store.set_tags(ids[0], ["[/x]"])
    window.app.stage.current = ids[0]
    async with window.app.run_test(size=(60, 16)) as pilot:
        await pilot.press("ctrl+b")
        await sees(pilot, window, "[/oops]")
        assert not {c for c in window.screen_text() if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0}


async def test_what_was_long_in_the_trash_is_deleted(tmp_path: Path) -> None:
    """After the start, what was trashed more than 30 days ago goes for good; the rest of the trash stays."""
    store = Store(tmp_path, clock=lambda: time.time() - 31 * 86_400)
    [old] = plant(store, 1)
    store.set_trashed(old, trashed=True)
    store.close()
    window = Window(tmp_path)
    [young] = plant(window.store, 1)
    window.manager.trash(young)
    async with window.app.run_test(size=WIDE) as pilot:
        await hears(pilot, window, "1 conversation left the trash for good")
        assert not window.store.has_session(old)
        assert window.store.has_session(young)


async def test_one_that_is_opened_from_the_trash_takes_no_message(tmp_path: Path) -> None:
    """It can be read; the title line says where it is, and restoring it frees the box."""
    window = Window(tmp_path)
    ids = plant(window.store, 1)
    window.manager.trash(ids[0])
    window.app.stage.current = ids[0]
    async with window.app.run_test(size=WIDE) as pilot:
        await sees(pilot, window, "title 0  in the trash")
        assert window.composer.read_only
        await window.app.upkeep.do("restore")
        await until(pilot, lambda: not window.composer.read_only, "the box is free")
        assert window.manager.session(ids[0]).trashed_at is None


async def test_rows_fit_the_list_when_the_window_changes(tmp_path: Path) -> None:
    """A narrower window has shorter rows at once, a wider one longer ones."""
    window = Window(tmp_path)
    plant(window.store, 3)
    async with window.app.run_test(size=(140, 36)) as pilot:
        await until(pilot, lambda: window.sidebar.option_count == 4, "the list is filled")
        for width, fitting in ((100, NARROW), (140, BROAD), (120, NARROW)):
            await pilot.resize_terminal(width, 36)
            await until(pilot, partial(_has_width, window, fitting), f"rows of {fitting} cells")
            assert window.sidebar.size.width >= fitting


def _has_width(window: Window, n_cells: int) -> bool:
    prompt = window.sidebar.get_option_at_index(1).prompt
    assert isinstance(prompt, Content)
    return prompt.cell_length == n_cells
