from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from models.presets import PRESETS
from tests.chatapp.tui_window import Window, hears, sees, until

WIDE = (120, 36)


def _command(window: Window, title: str) -> Callable[[], object]:
    [found] = [one for one in window.app.get_system_commands(window.app.screen) if one.title == title]
    return found.callback


@pytest.mark.parametrize("preset", list(PRESETS))
async def test_a_conversation_is_sampled_by_its_own_preset(tmp_path: Path, preset: str) -> None:
    """What the palette chooses wins over the model's recommendation, in this conversation alone."""
    window = Window(tmp_path)
    window.app.stage.talk._sampling = None
    session_id = await window.ask("one")
    window.app.stage.current = session_id
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history is there")
        _command(window, f"Sampling: {preset}")()
        await hears(pilot, window, "sampled by")
        await pilot.press(*"two", "enter")
        await until(pilot, lambda: len(window.manager.messages(session_id)) == 4, "it is answered")
        used = window.engine.samplings[-1]
        assert {name: getattr(used, name) for name in PRESETS[preset]} == PRESETS[preset]
        _command(window, "Sampling: the model's own")()
        await pilot.press(*"three", "enter")
        await until(pilot, lambda: len(window.manager.messages(session_id)) == 6, "it is answered")
        info = window.app.stage.talk.model.info
        assert info is not None
        assert window.engine.samplings[-1] == info.sampling


async def test_sampling_given_to_the_program_wins(tmp_path: Path) -> None:
    """It is used whatever the conversation chose, and the notice says so."""
    window = Window(tmp_path)
    async with window.app.run_test(size=WIDE) as pilot:
        _command(window, "Sampling: precise")()
        await hears(pilot, window, "command line still wins")
        await pilot.press(*"one", "enter")
        await sees(pilot, window, "You said: one")
        assert window.engine.samplings == [window.app.stage.talk._sampling]


async def test_a_choice_before_the_first_message_is_kept(tmp_path: Path) -> None:
    """A conversation that has no message yet gets a row for its choice, and the message goes into it."""
    window = Window(tmp_path)
    async with window.app.run_test(size=WIDE) as pilot:
        _command(window, "Reasoning in later prompts: strip")()
        await hears(pilot, window, "leave out the reasoning")
        await pilot.press(*"hi", "enter")
        await sees(pilot, window, "You said: hi")
        await until(pilot, lambda: window.manager.running is None, "the answer is complete")
        [summary] = window.manager.sessions()
        assert (summary.session.reasoning, summary.n_messages) == ("strip", 2)
        assert window.engine.prompts[-1].reasoning == "strip"


async def test_the_last_answer_is_copied_without_its_reasoning(tmp_path: Path) -> None:
    """The clipboard gets the Markdown source of the answer, as it is stored."""
    window = Window(tmp_path, reply=lambda _: "<think>hm</think>\n\nThe **answer**.")
    async with window.app.run_test(size=WIDE) as pilot:
        _command(window, "Copy the last answer")()
        await hears(pilot, window, "There is no answer to copy yet.")
        await pilot.press(*"go", "enter")
        await until(pilot, lambda: bool(window.manager.sessions()), "a conversation")
        await until(pilot, lambda: window.manager.running is None, "the answer is complete")
        await sees(pilot, window, "The answer.")
        _command(window, "Copy the last answer")()
        assert window.app.clipboard == "The **answer**."
