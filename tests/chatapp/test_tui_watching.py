from pathlib import Path

from sessions.conversation import Draft
from sessions.journal import Journal, Partial
from tests.chatapp.tui_window import Window, hears, sees, until

SIZE = (130, 36)


def _journal(window: Window, session_id: str, question_id: int) -> Journal:
    """The answer of another process, which has just begun."""
    ticks = iter(range(1_000_000))
    journal = Journal(window.store.journal_dir, session_id, monotonic=lambda: float(next(ticks)))
    journal.begin(Partial(session_id, question_id, {}, (1,), (2,)))
    return journal


async def test_an_answer_of_another_window_grows_here(tmp_path: Path) -> None:
    """Its text is shown as it comes; the box takes a draft, which is sent only once that is over."""
    window, other = Window(tmp_path), Window(tmp_path)
    session_id = await window.ask("one")
    asked = other.store.add_question(session_id, "두 번째 질문", title="")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        await pilot.press(*"draft")
        with _journal(other, session_id, asked.id) as journal:
            journal.add("growing **tex", (1, 2))
            await sees(pilot, window, "being written in another window")
            await sees(pilot, window, "growing **tex")
            await sees(pilot, window, "Being written in another window · wait")
            await pilot.press("s", "enter")
            await hears(pilot, window, "Being written in another window. wait until it is done there.")
            journal.add("t** 한글", (3,))
            await sees(pilot, window, "growing text 한글")
            other.store.add_answer(asked, "the whole answer", "complete", run=None)
            journal.discard()
        await sees(pilot, window, "the whole answer")
        await until(pilot, lambda: window.app.stage.paused(session_id) is None, "messages are sent again")
        assert window.composer.draft == "drafts"
        assert "another window" not in window.screen_text()


async def test_what_a_dead_process_left_is_stored(tmp_path: Path) -> None:
    """A journal that nobody holds is an interrupted answer, and holds nobody up."""
    window, other = Window(tmp_path), Window(tmp_path)
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        await pilot.pause()
        asked = other.store.add_question(session_id, "two", title="")
        with _journal(other, session_id, asked.id) as journal:
            journal.add("cut off", (1,))
        await sees(pilot, window, "cut off")
        await until(pilot, lambda: window.app.stage.paused(session_id) is None, "messages are sent")
        assert window.manager.messages(session_id)[-1].status == "interrupted"


async def test_what_another_window_wrote_is_shown(tmp_path: Path) -> None:
    """New conversations come into the list, new messages and a new title to the conversation that is shown."""
    window, other = Window(tmp_path), Window(tmp_path)
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        await pilot.pause()
        await window.app.watching.look()
        asked = other.store.add_question(session_id, "from elsewhere", title="")
        other.store.add_answer(asked, "an answer from there", "complete", run=None)
        other.manager.rename(session_id, "another title")
        await sees(pilot, window, "an answer from there")
        await sees(pilot, window, "another title")


async def test_a_conversation_deleted_elsewhere_leaves_its_draft(tmp_path: Path) -> None:
    """The screen shows a new conversation, and what was written is in its box."""
    window, other = Window(tmp_path), Window(tmp_path)
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        await window.app.watching.look()
        await pilot.press(*"half")
        other.manager.delete_forever(session_id)
        await hears(pilot, window, "was deleted in another window")
        await until(pilot, lambda: window.app.stage.current == "", "a new conversation")
        assert window.composer.content == Draft("half")
