from __future__ import annotations

from pathlib import Path

import pytest

from models.errors import ModelError
from models.similarity import Scores
from sessions.judging import Judging
from sessions.policy import TaskPolicy
from tests.chatapp.tui_window import Window, hears, sees, until

WIDE = (100, 30)
OTHER = Scores(3.0, 0.1, 0.1, 0.1)
UNSURE = Scores(0.5, 0.1, 0.05, 0.0)
SAME = Scores(-4.0, 0.5, 0.5, 0.5)


class Scorer:
    """Scores drafts by their first word; notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, draft: str, _task: str, _question: str, _answer: str) -> Scores | None:
        """Return the scores that the word stands for."""
        self.asked.append(draft)
        if draft.startswith("broken"):
            raise ModelError("The judge is broken.")
        return OTHER if draft.startswith("other") else UNSURE if draft.startswith("unsure") else SAME


async def judged(tmp_path: Path, policy: TaskPolicy = "ask", system: str | None = None) -> tuple[Window, Scorer, str]:
    """A window on a conversation of one turn whose drafts are judged."""
    window = Window(tmp_path, reply=lambda _: "ok")
    scorer = Scorer()
    window.manager.judging = Judging(policy, scorer)
    key = window.manager.new(system=system).id
    await window.ask("the task", key)
    window.app.stage.current = key
    return window, scorer, key


def said(window: Window, key: str) -> list[str]:
    """What the user said in a conversation."""
    return [message.text for message in window.manager.messages(key) if message.role == "user"]


async def test_a_draft_of_the_same_task_is_sent(tmp_path: Path) -> None:
    """Without a question; the judge was started by the first key, and its verdict is kept."""
    window, scorer, key = await judged(tmp_path)
    async with window.app.run_test(size=WIDE) as pilot:
        await pilot.press("s", "o")
        await until(pilot, lambda: scorer.asked == [""], "the judge has started")
        await pilot.press("enter")
        await until(pilot, lambda: len(window.manager.messages(key)) == 4, "the draft is answered")
    assert scorer.asked == ["", "so"]
    assert [kind for kind, _ in window.store.verdicts(key).values()] == ["same"]


async def test_a_draft_of_another_task_goes_to_a_new_conversation(tmp_path: Path) -> None:
    """The first way: it is sent there, and this one stays what it is about."""
    window, _, key = await judged(tmp_path)
    async with window.app.run_test(size=WIDE) as pilot:
        window.composer.insert("other things")
        await pilot.press("enter")
        await sees(pilot, window, "Another task?")
        assert "The task here: the task" in window.screen_text()
        assert "with this system prompt" not in window.screen_text()
        await pilot.press("enter")
        await until(pilot, lambda: window.app.stage.current not in ("", key), "it was sent")
        new = window.app.stage.current
        await until(pilot, lambda: len(window.manager.messages(new)) == 2, "it is answered")
    assert (said(window, key), said(window, new)) == (["the task"], ["other things"])


async def test_a_draft_of_another_task_can_take_the_system_prompt_along(tmp_path: Path) -> None:
    """A fork with nothing but that."""
    window, _, key = await judged(tmp_path, system="Be brief.")
    async with window.app.run_test(size=WIDE) as pilot:
        window.composer.insert("other things")
        await pilot.press("enter")
        await sees(pilot, window, "with this system prompt")
        await pilot.press("down", "enter")
        await until(pilot, lambda: window.app.stage.current != key, "the fork is shown")
        fork = window.app.stage.current
        await until(pilot, lambda: len(window.manager.messages(fork)) == 3, "it is answered")
    assert window.manager.session(fork).system == "Be brief."
    assert (said(window, key), said(window, fork)) == (["the task"], ["other things"])


async def test_a_draft_of_another_task_can_be_kept(tmp_path: Path) -> None:
    """It is sent here, and what the judge said is kept with it; Escape leaves it in the box."""
    window, _, key = await judged(tmp_path)
    async with window.app.run_test(size=WIDE) as pilot:
        window.composer.insert("other things")
        await pilot.press("enter")
        await sees(pilot, window, "Another task?")
        await pilot.press("escape")
        await until(pilot, lambda: "Another task?" not in window.screen_text(), "the dialog is closed")
        assert window.composer.draft == "other things"
        await pilot.press("enter")
        await sees(pilot, window, "Keep it here")
        await pilot.press("down", "enter")
        await until(pilot, lambda: len(window.manager.messages(key)) == 4, "it is answered here")
    assert [kind for kind, _ in window.store.verdicts(key).values()] == ["other"]


async def test_a_strict_policy_wants_another_task_line(tmp_path: Path) -> None:
    """There is no keeping without it; an unchanged line sends nothing."""
    window, _, key = await judged(tmp_path, "strict")
    async with window.app.run_test(size=WIDE) as pilot:
        window.composer.insert("other things")
        await pilot.press("enter")
        await sees(pilot, window, "Change the task line")
        assert "Keep it here" not in window.screen_text()
        await pilot.press("down", "enter")
        await sees(pilot, window, "from now on")
        await pilot.press("enter")
        await until(pilot, lambda: "from now on" not in window.screen_text(), "the line is not changed")
        assert said(window, key) == ["the task"]
        await pilot.press("enter")
        await sees(pilot, window, "Change the task line")
        await pilot.press("down", "enter")
        await sees(pilot, window, "from now on")
        await pilot.press("end", *" too", "enter")
        await until(pilot, lambda: len(window.manager.messages(key)) == 4, "it is answered here")
    assert window.manager.session(key).task == "the task too"
    assert [before for _, before in window.store.task_changes(key)] == ["the task"]


@pytest.mark.parametrize(("draft", "notice"), [("unsure thing", "new task"), ("broken thing", "judge is broken")])
async def test_what_is_not_sure_is_sent_with_a_hint(tmp_path: Path, draft: str, notice: str) -> None:
    """Nobody is asked; a judge that cannot run is told once."""
    window, _, key = await judged(tmp_path)
    async with window.app.run_test(size=WIDE) as pilot:
        window.composer.insert(draft)
        await pilot.press("enter")
        await hears(pilot, window, notice)
        await until(pilot, lambda: len(window.manager.messages(key)) == 4, "it is answered")
    assert said(window, key) == ["the task", draft]


async def test_without_a_policy_nothing_is_judged(tmp_path: Path) -> None:
    """No scorer is started, and nothing is asked."""
    window, scorer, key = await judged(tmp_path, "off")
    async with window.app.run_test(size=WIDE) as pilot:
        window.composer.insert("other things")
        await pilot.press("enter")
        await until(pilot, lambda: len(window.manager.messages(key)) == 4, "it is answered")
    assert scorer.asked == []
