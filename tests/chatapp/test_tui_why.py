from pathlib import Path

from chatapp.tui.whyscreen import WhyScreen
from tests.chatapp.tui_window import Window, hears, sees, until

SIZE = (120, 36)


async def test_one_key_explains_the_last_answer(tmp_path: Path) -> None:
    """F9 shows its numbers in sentences; the same key closes it."""
    window = Window(tmp_path, reply=lambda _: "ok")
    session_id = await window.ask("why so slow?")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        await pilot.press("f9")
        await sees(pilot, window, "Why was this slow?")
        await sees(pilot, window, "asked why so slow?")
        await sees(pilot, window, "The first text came after")
        await sees(pilot, window, "Decoding: 2 tokens at")
        await pilot.press("f9")
        await until(pilot, lambda: not isinstance(window.app.screen, WhyScreen), "closed")


async def test_the_marked_answer_is_explained(tmp_path: Path) -> None:
    """A mark on a question or an answer says which one is meant, and so does the command."""
    window = Window(tmp_path, reply=lambda text: "x" * len(text))
    session_id = await window.ask("four")
    await window.ask("sixsix", session_id)
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        for _ in range(4):
            await pilot.press("alt+up")
        marked = window.transcript.marked
        assert marked is not None
        assert marked.text == "four"
        window.app.action_why()
        await sees(pilot, window, "Decoding: 4 tokens")


async def test_without_an_answer_that_is_said(tmp_path: Path) -> None:
    """An empty conversation has nothing to explain."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press("f9")
        await hears(pilot, window, "There is no measured answer")


async def test_an_answer_that_grows_is_explained_so_far(tmp_path: Path) -> None:
    """The numbers are those until now, and it says so; a question with control characters does no harm."""
    window = Window(tmp_path, reply=lambda _: "x" * 400, tokens_per_s=200)
    async with window.app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model")
        window.composer.insert("\x1b[2Jgo")
        await pilot.press("enter")
        await until(pilot, lambda: window.app.readings.n_output > 3, "tokens")
        window.app.action_why()
        await sees(pilot, window, "the answer is still being written.")
        assert "\x1b" not in window.screen_text()


async def test_a_message_that_waits_is_explained(tmp_path: Path) -> None:
    """While another answer is written, the time so far is waiting."""
    window = Window(tmp_path, reply=lambda _: "x" * 4000, tokens_per_s=200)
    async with window.app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model")
        await pilot.press(*"hi", "enter")
        await until(pilot, lambda: window.app.readings.n_output > 3, "tokens")
        await pilot.press("ctrl+n", *"ho", "enter")
        await until(pilot, lambda: len(window.app.stage.talk.live) == 2, "it waits")
        window.app.action_why()
        await sees(pilot, window, "No text has come yet, after")
        await sees(pilot, window, "asked ho")
