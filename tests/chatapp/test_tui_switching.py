from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from chatapp.modellist import ModelChoice
from chatapp.tui.dialogs import ModelsScreen, WaysScreen
from models.fake import weights_of
from sessions.loading import Shelf
from tests.chatapp.tui_window import Window, hears, sees, until

WIDE = (120, 36)
SMALL = (60, 16)
OTHER = ModelChoice("other", Path("other.gguf"), "fake · 1.0 GiB", fits=True)
BIG = ModelChoice("big", Path("big.gguf"), "fake · 99 GiB", fits=False)


async def _of_a_model_that_is_gone(folder: Path) -> str:
    """A conversation whose model, named `old`, no shelf knows."""
    earlier = Window(folder)
    async for _ in earlier.manager.switch_model(None, Path("old.gguf")):
        pass
    session_id = await earlier.ask("remember this")
    model = earlier.manager.session(session_id).model
    assert model is not None
    assert model.weights == weights_of("old")
    earlier.store.close()
    return session_id


def _window(folder: Path, session_id: str, shelf: Shelf | None = None) -> Window:
    return Window(folder, session_id=session_id, models=lambda: [OTHER, BIG], shelf=shelf)


async def test_a_conversation_whose_model_is_gone_can_be_read(tmp_path: Path) -> None:
    """It is shown, the reason is told once, and the box says why it takes no text."""
    session_id = await _of_a_model_that_is_gone(tmp_path)
    window = _window(tmp_path, session_id)
    async with window.app.run_test(size=SMALL) as pilot:
        await sees(pilot, window, "The model is gone")
        assert "Load anyway" not in window.screen_text()
        await pilot.press("enter")
        await until(pilot, lambda: not isinstance(window.app.screen, WaysScreen), "the dialog is closed")
        await sees(pilot, window, "You said: remember this")
        await sees(pilot, window, "Read only")
        await pilot.press(*"hello", "enter")
        assert len(window.manager.messages(session_id)) == 2
        assert window.app.screen_stack[-1] is window.app.screen_stack[0]


async def test_another_model_can_go_on(tmp_path: Path) -> None:
    """The chosen model is loaded, named in title and transcript, and answers with all of the text."""
    session_id = await _of_a_model_that_is_gone(tmp_path)
    window = _window(tmp_path, session_id)
    async with window.app.run_test(size=WIDE) as pilot:
        await sees(pilot, window, "The model is gone")
        await sees(pilot, window, "old")
        await pilot.press("down", "enter")
        await sees(pilot, window, "does not fit into memory")
        await pilot.press("enter")
        await sees(pilot, window, "This conversation now uses other: its text stays,")
        await until(pilot, lambda: not window.composer.read_only, "the box takes text")
        info = window.app.stage.talk.model.info
        assert info is not None
        assert (info.name, str(window.app.stage.model_name.render())) == ("other", "other")
        await pilot.press(*"more", "enter")
        await until(pilot, lambda: len(window.manager.messages(session_id)) == 4, "it is answered")
        assert window.engine.prompts[-1].entries[0].text == "remember this"


async def test_the_models_are_listed_outside_the_thread_of_the_keys(tmp_path: Path) -> None:
    """The screen says that it reads until the list is there; Escape goes back to the ways."""
    gate = threading.Event()
    threads: list[threading.Thread] = []

    def models() -> list[ModelChoice]:
        threads.append(threading.current_thread())
        gate.wait(60)
        return [OTHER]

    session_id = await _of_a_model_that_is_gone(tmp_path)
    window = Window(tmp_path, session_id=session_id, models=models)
    async with window.app.run_test(size=SMALL) as pilot:
        await sees(pilot, window, "The model is gone")
        await pilot.press("down", "enter")
        await sees(pilot, window, "reading what models there are")
        gate.set()
        await sees(pilot, window, "fake · 1.0 GiB")
        await pilot.press("escape")
        await sees(pilot, window, "The model is gone")
    assert threads[0] is not threading.main_thread()


async def test_a_model_that_does_not_fit_can_be_loaded_anyway(tmp_path: Path) -> None:
    """The sentence on memory is shown; `Load anyway` loads it and makes the history resident."""
    session_id = await _of_a_model_that_is_gone(tmp_path)
    shelf = Shelf(lambda _: Path("old.gguf"), lambda *_: "old needs 99 GiB of memory and 1 GiB can be had.")
    window = _window(tmp_path, session_id, shelf)
    async with window.app.run_test(size=WIDE) as pilot:
        await sees(pilot, window, "needs 99 GiB")
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history is there")
        info = window.app.stage.talk.model.info
        assert info is not None
        assert info.name == "old"
        assert not window.composer.read_only


async def test_a_switch_that_does_not_fit_asks_first(tmp_path: Path) -> None:
    """A chosen model that needs too much memory is loaded only when that is wanted."""
    window = Window(tmp_path, models=lambda: [BIG], shelf=Shelf(lack=lambda *_: "big needs 99 GiB."))
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model is there")
        window.app.switching.choose()
        await sees(pilot, window, "Model of new conversations")
        await sees(pilot, window, "99 GiB")
        await pilot.press("enter")
        await sees(pilot, window, "big needs 99 GiB.")
        await pilot.press("escape")
        await hears(pilot, window, "Nothing was changed")
        assert [engine._name for engine in window.made] == ["fake"]


async def test_new_conversations_get_another_model(tmp_path: Path) -> None:
    """Without a message on the screen the palette's command changes what new conversations use."""
    window = Window(tmp_path, models=lambda: [OTHER])
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model is there")
        names = [command.title for command in window.app.get_system_commands(window.app.screen)]
        assert "Use another model" in names
        window.app.switching.choose()
        await until(pilot, lambda: isinstance(window.app.screen, ModelsScreen), "the list")
        await sees(pilot, window, "fake · 1.0 GiB")
        await pilot.press("enter")
        await until(pilot, lambda: str(window.app.stage.model_name.render()) == "other", "the title")
        await pilot.press(*"hello", "enter")
        await sees(pilot, window, "You said: hello")
        await until(pilot, lambda: window.manager.running is None, "the answer is complete")
        [summary] = window.manager.sessions()
        assert summary.session.model is not None
        assert summary.session.model.name == "other"


async def test_opening_a_conversation_of_another_model_loads_it(tmp_path: Path) -> None:
    """Title, meters and counter follow the model of the conversation that is opened."""
    session_id = await _of_a_model_that_is_gone(tmp_path)
    window = Window(tmp_path, shelf=Shelf(lambda model: Path(f"{model.name}.gguf")))
    counted: list[str] = []
    window.app._hearing._make_counter = lambda info: counted.append(info.name)
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the usual model is there")
        await window.app.stage.show(session_id)
        await until(pilot, lambda: counted == ["fake", "old"], "the counter of the other")
        assert str(window.app.stage.model_name.render()) == "old"
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history is there")


async def test_a_switch_goes_on_behind_another_conversation(tmp_path: Path) -> None:
    """Looking at another conversation while the model loads does not take the choice back."""
    window = Window(tmp_path, models=lambda: [OTHER], shelf=Shelf(lambda model: Path(f"{model.name}.gguf")))
    window.load_gates["other"] = asyncio.Event()
    first = await window.ask("first")
    second = await window.ask("second")
    window.app.stage.current = first
    async with window.app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: window.app.readings.came_back is not None, "the history is there")
        window.app.switching.choose()
        await sees(pilot, window, "fake · 1.0 GiB")
        await pilot.press("enter")
        await until(pilot, lambda: len(window.made) == 2, "the other model is being loaded")
        await window.app.stage.show(second)
        await sees(pilot, window, "You said: second")
        window.load_gates["other"].set()

        def has_changed() -> bool:
            model = window.manager.session(first).model
            return model is not None and model.name == "other"

        await until(pilot, has_changed, "the first conversation uses the other model")
        await window.app.stage.show(first)
        await sees(pilot, window, "This conversation now uses other")
