from pathlib import Path

from textual.widgets import TextArea

from chatapp.tui.costscreen import CostScreen
from chatapp.tui.desk import Tools
from chatapp.tui.statscreen import StatisticsScreen
from chatapp.tui.systemscreen import SystemScreen
from tests.chatapp.tui_window import Window, hears, sees, until

SIZE = (120, 30)


async def test_the_cost_offers_a_fork_without_an_old_heavy_turn(tmp_path: Path) -> None:
    """Its messages are listed, largest first; F goes on without the one that holds most."""
    window = Window(tmp_path, reply=lambda _: "ok")
    session_id = await window.ask("pasted 로그 " + "x" * 900)
    for text in ("two", "three"):
        await window.ask(text, session_id)
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        window.app.reports.cost()
        await until(pilot, lambda: isinstance(window.app.screen, CostScreen), "the screen")
        await sees(pilot, window, "One old message holds")
        await sees(pilot, window, "last turns")
        await pilot.press("f")
        await until(pilot, lambda: window.app.stage.current != session_id, "the fork")
        texts = [message.text for message in window.manager.messages(window.app.stage.current)]
        assert texts == ["two", "ok", "three", "ok"]
        assert len(window.manager.messages(session_id)) == 6


async def test_nothing_is_offered_where_nothing_is_heavy(tmp_path: Path) -> None:
    """Escape and F leave the conversation as it is."""
    window = Window(tmp_path, reply=lambda _: "ok")
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        window.app.reports.cost()
        await until(pilot, lambda: isinstance(window.app.screen, CostScreen), "the screen")
        await pilot.press("f")
        assert isinstance(window.app.screen, CostScreen)
        await pilot.press("escape")
        assert window.app.stage.current == session_id


async def test_statistics_are_shown_by_model_and_day(tmp_path: Path) -> None:
    """They are counted beside the keys; without a turn that is said."""
    window = Window(tmp_path, reply=lambda _: "ok")
    async with window.app.run_test(size=SIZE) as pilot:
        window.app.reports.statistics()
        await sees(pilot, window, "There is no measured turn yet.")
        await pilot.press("escape")
        session_id = await window.ask("one")
        await window.ask("two", session_id)
        window.app.reports.statistics()
        await until(pilot, lambda: isinstance(window.app.screen, StatisticsScreen), "the screen")
        await sees(pilot, window, "2 turns, first text after")
        await sees(pilot, window, "fake")
        assert len(window.app.screen.query("Sparkline")) == 3


async def test_a_new_conversation_gets_its_system_prompt(tmp_path: Path) -> None:
    """It is written or chosen; what changes from run to run can be moved to the first message."""
    window = Window(tmp_path, reply=lambda _: "ok")
    window.manager.prompts.add("terse", "Be terse. 한국어로.")
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press(*"draft")
        window.app.prompting.ask("")
        await until(pilot, lambda: isinstance(window.app.screen, SystemScreen), "the dialog")
        await pilot.press("shift+tab", "enter")
        area = window.app.screen.query_one(TextArea)
        assert area.text == "Be terse. 한국어로."
        area.load_text("Be terse. Today is Monday, 2026-11-30.")
        await sees(pilot, window, "F8 moves")
        await pilot.press("f8")
        assert area.text == "Be terse."
        await pilot.press("ctrl+s")
        await sees(pilot, window, "▸ system prompt, 1 line, 9 tokens")
        assert window.composer.draft == "Today is Monday, 2026-11-30.\n\ndraft"
        await pilot.press("enter")
        await until(pilot, lambda: len(window.engine.prompts) > 0, "it is asked")
        await until(pilot, lambda: not window.app.stage.talk.live, "the end")
        messages = window.manager.messages(window.app.stage.current)
        assert [message.role for message in messages] == ["system", "user", "assistant"]
        await sees(pilot, window, "▸ system prompt")


async def test_a_conversation_with_messages_goes_on_in_a_fork(tmp_path: Path) -> None:
    """The old one keeps its prompt; an empty one is not left behind."""
    window = Window(tmp_path, reply=lambda _: "ok")
    window.manager.prompts.add("terse", "Be terse.")
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        window.composer.insert("/system @terse")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: window.app.stage.current != session_id, "the fork")
        assert window.manager.session(window.app.stage.current).system == "Be terse."
        assert window.manager.session(session_id).system is None
        await window.app.action_new()
        for text in ("first", "second"):
            window.app.prompting.ask(text)
            await sees(pilot, window, "system prompt, 1 line")
        await until(
            pilot, lambda: window.manager.session(window.app.stage.current).system == "second", "the second prompt"
        )
        assert len(window.manager.sessions()) == 3


async def test_conversations_go_to_files_and_come_back(tmp_path: Path) -> None:
    """What is there is not written over; the counts are told."""
    files = tmp_path / "files"
    files.mkdir()
    window = Window(tmp_path / "data", reply=lambda _: "ok", tools=Tools(folder=files))
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        window.composer.insert("/export all.json")
        await pilot.press("escape", "enter")
        await hears(pilot, window, "Written:")
        window.app.reports.export("all.json")
        await hears(pilot, window, "is there already")
        window.manager.delete_forever(session_id)
        await window.app.action_new()
        window.app.reports.take_in("all.json")
        await hears(pilot, window, "all.json: 1 added, 0 already there.")
        await until(pilot, lambda: len(window.manager.sessions()) == 1, "it is back")
        window.app.reports.take_in("missing.json")
        await hears(pilot, window, "missing.json")


async def test_a_prompt_given_with_the_command_is_looked_at(tmp_path: Path) -> None:
    """What changes from run to run is said in a new conversation too, where no screen shows it."""
    window = Window(tmp_path)
    async with window.app.run_test(size=(120, 36)) as pilot:
        window.composer.insert("/system Today is Monday. Be brief.")
        await pilot.press("enter")
        await hears(pilot, window, "changes from run to run")
        assert window.manager.session(window.app.stage.current).system == "Today is Monday. Be brief."
