"""The real window over hostile data, with the wall away: every text was cleaned before a widget got it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.pilot import Pilot

from chatapp.tui.app import ChatApp
from chatapp.tui.desk import Tools
from chatapp.tui.gate import GATE
from chatapp.tui.live import Notice
from chatapp.tui.markdown_text import MarkdownText
from chatapp.tui.turns import shown
from models.engine import ModelInfo
from models.fake import FakeEngine
from sessions.attachments import Part, joined
from tests.chatapp.escapes import CORPUS, LIVE, WHOLE, storable
from tests.chatapp.tui_window import ScriptedEngine, Window, sees, until

SIZE = (140, 44)
EVIL = "EVIL\x1b]52;c;UFdORUQ=\x07\x1b[2J\x9b2J\u202e\u2066\x7f\x08\r\U000e0041[/][@click=app.leave]x[/]"
"""Short enough to be seen whole in most places."""


@pytest.fixture(autouse=True)
def _no_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatApp, "get_line_filters", App.get_line_filters)

    def info(engine: FakeEngine) -> ModelInfo | None:
        known: ModelInfo | None = FakeEngine.info.__get__(engine)
        return known and replace(known, name=EVIL, path=EVIL, architecture=EVIL, notes=(EVIL,), kv_note=EVIL)

    monkeypatch.setattr(ScriptedEngine, "info", property(info))


def look(window: Window, where: str) -> None:
    """Fail if anything live is in the rows of the screen on top."""
    rows = window.screen_text().replace("\n", "")
    found = LIVE.search(rows)
    assert found is None, f"{found[0]!r} {where}:\n{rows[max(0, found.start() - 60) : found.start() + 60]!r}"


async def evil_window(folder: Path) -> tuple[Window, str]:
    """A window with a conversation of which everything is hostile."""
    (folder / "snippets").mkdir()
    (folder / "snippets" / "EVIL[2J.md").write_text(f"{EVIL} {{{{name}}}}", encoding="utf-8")
    (folder / "files").mkdir()
    (folder / "files" / "EVIL\x1b[2J\u202e.txt").write_text(EVIL, encoding="utf-8")
    window = Window(
        folder / "data",
        reply=lambda text: f"<think>{EVIL}</think>{EVIL}\n\n{text}",
        tools=Tools(("true",), folder / "snippets", folder / "files"),
    )
    window.manager.prompts.add("evil", EVIL)
    session_id = window.manager.new(system=EVIL).id
    await window.ask(EVIL, session_id)
    await window.ask(storable(WHOLE), session_id)
    window.manager.rename(session_id, EVIL)
    window.manager.set_task(session_id, f"{EVIL} task")
    return window, session_id


async def test_the_main_window_is_clean(tmp_path: Path) -> None:
    """List, title, task, transcript with folds open, meters, notices, drafts and chips."""
    window, session_id = await evil_window(tmp_path)
    stage = window.app.stage
    async with window.app.run_test(size=SIZE, notifications=True) as pilot:
        await stage.show(session_id)
        await sees(pilot, window, "EVIL")
        look(window, "in the window")
        window.app.action_toggle_reasoning()
        await pilot.pause()
        look(window, "in reasoning")
        for scroll in (stage.transcript.action_scroll_home, stage.transcript.action_scroll_end):
            scroll()
            await pilot.pause()
            look(window, "in the transcript")
        await pilot.press("alt+up", "alt+up")
        await pilot.pause()
        look(window, "with a mark")
        await stage.transcript.say(Notice(EVIL))
        stage.warn(EVIL)
        stage.tell(EVIL)
        await pilot.pause()
        look(window, "in notices")
        stage.composer.focus()
        stage.composer.attach(Part(EVIL, EVIL), EVIL)
        stage.composer.take_paste(storable(WHOLE))
        stage.composer.put_message(joined([EVIL]))
        await pilot.pause()
        look(window, "in the box")
        stage.composer.clear_draft()
        stage.hold(session_id, EVIL)
        await pilot.pause()
        look(window, "in the placeholder")


async def _search(window: Window, pilot: Pilot[None]) -> None:
    window.app.action_search()
    await pilot.pause()
    field = window.app.stage.listing.field
    field.value = "EVIL\x1b[2J"
    await pilot.pause()
    look(window, "in the search field")
    field.value = "EVIL"
    await until(pilot, lambda: window.app.stage.listing.results.option_count > 0, "results")


async def _type(window: Window, pilot: Pilot[None], text: str) -> None:
    window.composer.focus()
    window.composer.load_text(text)
    window.composer.move_cursor((0, len(text)))
    await pilot.pause(0.3)


async def _dialog(window: Window, pilot: Pilot[None], begin: Callable[[], object]) -> None:
    stack = len(window.app.screen_stack)
    made = begin()
    if isinstance(made, Awaitable):
        await made
    await until(pilot, lambda: len(window.app.screen_stack) > stack, "the dialog")
    await pilot.pause(0.2)


async def test_the_list_of_matches_and_completions_are_clean(tmp_path: Path) -> None:
    """What is found, the field it is searched with, and what the box offers: files, snippets, prompts."""
    window, session_id = await evil_window(tmp_path)
    async with window.app.run_test(size=SIZE, notifications=True) as pilot:
        await window.app.stage.show(session_id)
        await _search(window, pilot)
        look(window, "in the matches")
        await pilot.press("escape")
        for text in ("@EV", "/snippet EV", "/system @ev", "/attach EV", "/tag EV", "/"):
            await _type(window, pilot, text)
            look(window, f"in what is offered for {text}")


@pytest.mark.parametrize(
    "name", ["help", "title", "system", "cost", "statistics", "branches", "snippets", "viewer", "palette", "task"]
)
async def test_each_dialog_is_clean(tmp_path: Path, name: str) -> None:
    """Each modal window, opened over the hostile conversation."""
    window, session_id = await evil_window(tmp_path)
    app = window.app
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await app.stage.show(session_id)
        await until(pilot, lambda: app.stage.talk.model.info is not None, "the model")
        window.composer.attach(Part(EVIL, storable(WHOLE)), EVIL)
        await pilot.pause()
        (chip,) = window.composer._chips.shown(window.composer.text).values()
        ways: dict[str, Callable[[], object]] = {
            "help": app.action_help,
            "title": app.action_rename,
            "system": lambda: app.prompting.ask(""),
            "cost": app.reports.cost,
            "statistics": app.reports.statistics,
            "branches": lambda: app.branching.do("tree"),
            "snippets": lambda: app.desk.insert_snippet(""),
            "viewer": lambda: app.desk.view(chip),
            "palette": app.action_command_palette,
            "task": lambda: app.upkeep.do("task"),
        }
        await _dialog(window, pilot, ways[name])
        look(window, f"in {name}")


class Growing(App[None]):
    """One answer that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = MarkdownText()

    def compose(self) -> ComposeResult:
        """The answer."""
        with VerticalScroll():
            yield self.answer


async def test_no_cut_of_a_stream_is_live(pytestconfig: pytest.Config) -> None:
    """An answer that arrives in two parts, cut anywhere, shows nothing live; each fifth cut without `make gate`."""
    step = 1 if pytestconfig.getoption("--every-code-point") else 5
    app = Growing()
    async with app.run_test(size=(80, 30)) as pilot:
        for name, text in CORPUS.items():
            for at in range(1, len(text), step):
                app.answer.set("")
                app.answer.grow(shown(text[:at]))
                app.answer.grow(shown(text))
                await pilot.pause()
                rows = "".join(part.text for strip in app.screen._compositor.render_strips() for part in strip)
                assert not LIVE.search(rows), f"{name}, cut at {at}"


def test_the_real_window_has_the_wall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate is the last filter of its rows."""
    monkeypatch.undo()
    assert Window(tmp_path).app.get_line_filters()[-1] is GATE
