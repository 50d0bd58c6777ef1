"""The welcome: when it comes by itself, its three steps, and what becomes of the chosen model."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from chatapp.config import Settings
from chatapp.modellist import ModelChoice, keep_as_usual
from chatapp.tui.keymap import Keymap
from chatapp.tui.readouts import MARKS
from chatapp.tui.surroundings import Surroundings
from chatapp.tui.switching import Models
from chatapp.tui.timing import PARTS
from chatapp.tui.welcomescreen import WelcomeScreen
from chatapp.tui.welcometexts import meter_lines
from models.ownmodels import read_default
from sessions.loading import Shelf
from tests.chatapp.tui_window import Window, hears, sees, until

SIZE = (80, 24)
SMALL = (60, 16)
USUAL = ModelChoice("usual", Path("fake.gguf"), "fake · 94 MiB · starter", fits=True, is_usual=True)
OTHER = ModelChoice("other", Path("other.gguf"), "fake · 1.0 GiB · Ollama", fits=True)
BIG = ModelChoice("big", Path("big.gguf"), "fake · 99 GiB · LM Studio", fits=False)


def _window(folder: Path, models: Models | None = lambda: [USUAL, OTHER, BIG], shelf: Shelf | None = None) -> Window:
    return Window(folder, models=models, shelf=shelf, surroundings=Surroundings(folder=folder / "window"))


def _kept(window: Window, sentence: str | None = None) -> list[str]:
    """The names of the models that are made the usual one, from now on."""
    names: list[str] = []

    def remember(choice: ModelChoice) -> str | None:
        names.append(choice.name)
        return sentence

    window.app.welcome._remember = remember
    return names


def _is_open(window: Window) -> bool:
    return isinstance(window.app.screen, WelcomeScreen)


async def _closes(pilot: Pilot[None], window: Window) -> None:
    await until(pilot, lambda: not _is_open(window), "the welcome is closed")


async def test_the_first_start_welcomes_once(tmp_path: Path) -> None:
    """It comes by itself; Escape leads to the box, which takes text at once; the next start has none."""
    window = _window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        await sees(pilot, window, "Welcome to chatapp · 1 of 3")
        await pilot.press("escape")
        await _closes(pilot, window)
        await pilot.press(*"hi")
        assert window.composer.text == "hi"
        await pilot.press("ctrl+u")
    window.store.close()
    again = _window(tmp_path)
    async with again.app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: again.app.stage.talk.model.info is not None, "the model is there")
        assert not _is_open(again)


async def test_it_does_not_come_by_itself_where_somebody_knows_it(tmp_path: Path) -> None:
    """With conversations, or over an engine that has no models to choose from."""
    knows, has_none = _window(tmp_path / "a"), _window(tmp_path / "b", models=None)
    await knows.ask("one")
    for window in (knows, has_none):
        async with window.app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda window=window: window.app.stage.talk.model.info is not None, "it is loaded")  # type: ignore[misc]
            assert not _is_open(window)


async def test_a_command_shows_it_again(tmp_path: Path) -> None:
    """Also where there is nothing to choose: it has two steps then, and Enter walks through them."""
    window = Window(tmp_path)
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press(*"/welcome", "enter")
        await sees(pilot, window, "Welcome to chatapp · 1 of 2")
        assert "TTFT" in window.screen_text()
        await pilot.press("enter")
        await sees(pilot, window, "2 of 2")
        await pilot.press("left")
        await sees(pilot, window, "1 of 2")
        await pilot.press("right", "enter")
        await _closes(pilot, window)


async def test_models_are_looked_for_beside_the_keys(tmp_path: Path) -> None:
    """A line says so meanwhile; Enter goes on without choosing, and the list is there when the user comes back."""
    gate = threading.Event()
    threads: list[threading.Thread] = []

    def models() -> list[ModelChoice]:
        threads.append(threading.current_thread())
        gate.wait(60)
        return [USUAL, OTHER]

    window = Window(tmp_path, models=models)
    kept = _kept(window)
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press(*"/welcome", "enter")
        await sees(pilot, window, "Looking for models")
        await pilot.press("enter")
        await sees(pilot, window, "2 of 3")
        gate.set()
        await pilot.press("left")
        await sees(pilot, window, "fake · 94 MiB · starter")
    assert threads[0] is not threading.main_thread()
    assert kept == []


async def test_enter_uses_a_model_from_now_on(tmp_path: Path) -> None:
    """It is loaded for new conversations while the user reads on, kept for the next start, and marked."""
    window = Window(tmp_path, models=lambda: [USUAL, OTHER])
    kept = _kept(window)
    async with window.app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model is there")
        await pilot.press(*"/welcome", "enter")
        await sees(pilot, window, "other")
        await pilot.press("down", "enter")
        await sees(pilot, window, "2 of 3")
        await hears(pilot, window, "New conversations use other.")
        await until(pilot, lambda: kept == ["other"], "it is kept")
        await pilot.press("left")
        await sees(pilot, window, "other · in use")
        await pilot.press("escape")
        await _closes(pilot, window)
        await pilot.press(*"hi", "enter")
        await until(pilot, lambda: len(window.engine.prompts) == 1, "it answers")
        assert window.app.stage.talk.model.info is not None
        assert window.app.stage.talk.model.info.name == "other"


async def test_the_usual_model_is_highlighted(tmp_path: Path) -> None:
    """Enter on it loads nothing."""
    window = Window(tmp_path, models=lambda: [OTHER, USUAL])
    kept = _kept(window)
    async with window.app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model is there")
        await pilot.press(*"/welcome", "enter")
        await sees(pilot, window, "usual · in use")
        await pilot.press("enter")
        await until(pilot, lambda: kept == ["usual"], "it is kept")
    assert len(window.made) == 1


async def test_a_model_that_cannot_be_had_is_not_kept(tmp_path: Path) -> None:
    """One that does not fit is loaded only when that is wanted anyway; Escape changes nothing."""
    window = Window(tmp_path, models=lambda: [USUAL, BIG], shelf=Shelf(lack=lambda *_: "big needs 99 GiB."))
    kept = _kept(window)
    async with window.app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model is there")
        await pilot.press(*"/welcome", "enter")
        await sees(pilot, window, "big · does not fit into memory")
        await pilot.press("down", "enter")
        await sees(pilot, window, "big needs 99 GiB.")
        await pilot.press("escape")
        await hears(pilot, window, "Nothing was changed.")
        assert _is_open(window)
    assert kept == []


async def test_in_a_conversation_a_model_is_for_the_next_start(tmp_path: Path) -> None:
    """The conversation's own stays loaded, and a sentence names the way to exchange it."""
    window = Window(tmp_path, models=lambda: [USUAL, OTHER])
    kept = _kept(window)
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        await pilot.press(*"/welcome", "enter")
        await sees(pilot, window, "other")
        await pilot.press("down", "enter")
        await hears(pilot, window, "other is used from the next start on")
    assert kept == ["other"]
    assert len(window.made) == 1


async def test_what_overrules_the_choice_is_told(tmp_path: Path) -> None:
    """A sentence, while the welcome goes on."""
    window = Window(tmp_path, models=lambda: [USUAL])
    _kept(window, "The settings name another.")
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press(*"/welcome", "enter")
        await sees(pilot, window, "usual")
        await pilot.press("enter")
        await hears(pilot, window, "The settings name another.")
        assert _is_open(window)


@pytest.mark.parametrize("fails", [False, True])
async def test_without_a_model_the_ways_to_one_are_named(tmp_path: Path, fails: bool) -> None:
    """In one sentence; a list that cannot be read is one, too. Enter goes on."""

    def models() -> list[ModelChoice]:
        if fails:
            raise OSError("the disk is gone")
        return []

    window = Window(tmp_path, models=models, load_error="There is no model.")
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press(*"/welcome", "enter")
        await sees(pilot, window, "the disk is gone" if fails else "There is no model on this machine yet.")
        assert "`chatapp models add" in window.screen_text() or fails
        await pilot.press("enter")
        await sees(pilot, window, "2 of 3")


async def test_enter_that_was_meant_for_the_box_chooses_nothing(tmp_path: Path) -> None:
    """What comes unasked takes no answer before anybody could read it; Escape always works."""
    window = _window(tmp_path)
    kept = _kept(window)
    async with window.app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: _is_open(window), "the welcome")
        screen = window.app.screen
        assert isinstance(screen, WelcomeScreen)
        await sees(pilot, window, "usual")
        screen._is_ready = False
        await pilot.press("enter")
        assert "1 of 3" in window.screen_text()
        screen._be_ready()
        await sees(pilot, window, "Enter: use it")
    assert kept == []


@pytest.mark.parametrize("size", [SMALL, SIZE, (120, 36), (40, 10)])
async def test_all_of_it_can_be_read_in_a_window_of_any_size(tmp_path: Path, size: tuple[int, int]) -> None:
    """By scrolling with the keys where it has to be; a usual terminal shows the meters in one screen."""
    window = Window(tmp_path)
    async with window.app.run_test(size=size) as pilot:
        await pilot.press(*"/welcome", "enter")
        await sees(pilot, window, "TTFT")
        assert size == SMALL or size[0] < 60 or "told in sentences" in window.screen_text()
        await pilot.press("end")
        await sees(pilot, window, "sentences")
        await pilot.press("enter")
        await sees(pilot, window, "Three things")
        await pilot.press("end")
        await sees(pilot, window, "/welcome")


def test_the_meters_are_explained_with_their_own_glyphs() -> None:
    """Every glyph of the bars has a line, and no two lines look alike without colour."""
    marks = [line.mark.plain for line in meter_lines(Keymap())]
    for glyph in (*(glyph for _, glyph, _ in PARTS), *(glyph for glyph, _ in MARKS), "●", "○"):
        assert any(mark.strip().startswith(glyph) for mark in marks), glyph
    assert len(set(marks)) == len(marks)
    assert marks[-1] == "F9"


def test_a_chosen_model_is_the_default(tmp_path: Path) -> None:
    """Of every later start, under its own name; a setting that names another one is told."""
    settings = Settings(tmp_path, tmp_path, model=tmp_path / "named.gguf")
    chosen = ModelChoice("llama3.2:3b", tmp_path / "blobs" / "sha256-1", "", fits=True)
    sentence = keep_as_usual(settings, chosen)
    assert sentence is not None
    assert "named.gguf" in sentence
    chosen.path.parent.mkdir()
    chosen.path.write_bytes(b"GGUF")
    assert keep_as_usual(replace(settings, model=None), chosen) is None
    default = read_default(tmp_path / "models")
    assert default is not None
    assert (default.name, default.path) == (chosen.name, chosen.path)


def test_the_usual_model_needs_no_default(tmp_path: Path) -> None:
    """So that the starter may lie elsewhere one day."""
    path = tmp_path / "usual.gguf"
    assert keep_as_usual(Settings(tmp_path, tmp_path, model=path), replace(USUAL, path=path)) is None
    assert read_default(tmp_path / "models") is None


def test_a_default_that_cannot_be_kept_is_one_sentence(tmp_path: Path) -> None:
    """The disk's reason, without a traceback."""
    (tmp_path / "models").write_bytes(b"")
    sentence = keep_as_usual(Settings(tmp_path, tmp_path), replace(OTHER, path=tmp_path / "x.gguf"))
    assert sentence is not None
    assert sentence.endswith(".")
