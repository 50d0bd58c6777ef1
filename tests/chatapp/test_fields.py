import unicodedata

import pytest
from textual import events
from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.geometry import Offset
from textual.widgets import Static

from chatapp.tui.fields import Area, Field

FAMILY = "👨\u200d👩\u200d👧"
ONES = [FAMILY, "🇰🇷", "👍🏽", "क्षि", "q\u0301", unicodedata.normalize("NFD", "한"), "漢", "a"]


class Writing(App[None]):
    """A line above an area above a field."""

    def compose(self) -> ComposeResult:
        """All three."""
        with Vertical():
            yield Static("", id="above", markup=False)
            yield Area(compact=True)
            yield Field()


@pytest.mark.parametrize("one", ONES)
async def test_keys_take_whole_characters_in_an_area(one: str) -> None:
    """Backspace, Delete and the arrows go over all code points of a character."""
    app = Writing()
    async with app.run_test() as pilot:
        area = app.query_one(Area)
        area.focus()
        area.load_text(f"x{one}y")
        area.move_cursor((0, 1))
        await pilot.press("right")
        assert area.cursor_location == (0, 1 + len(one))
        await pilot.press("left")
        assert area.cursor_location == (0, 1)
        await pilot.press("delete")
        assert area.text == "xy"
        await pilot.press("ctrl+z", "end", "left", "backspace")
        assert area.text == "xy"


@pytest.mark.parametrize("one", ONES)
async def test_keys_take_whole_characters_in_a_field(one: str) -> None:
    """The same in a field of one line."""
    app = Writing()
    async with app.run_test() as pilot:
        field = app.query_one(Field)
        field.focus()
        field.value = f"x{one}y"
        await pilot.press("home", "right", "right")
        assert field.cursor_position == 1 + len(one)
        await pilot.press("left")
        assert field.cursor_position == 1
        await pilot.press("delete")
        assert field.value == "xy"
        field.value = f"x{one}"
        await pilot.press("end", "backspace")
        assert field.value == "x"


async def test_what_is_pasted_is_composed_and_clean() -> None:
    """Decomposed Hangul becomes syllables, escapes become glyphs, in both."""
    app = Writing()
    raw = unicodedata.normalize("NFD", "한글") + "\x1b[2J\u202e"
    async with app.run_test() as pilot:
        for widget in (app.query_one(Area), app.query_one(Field)):
            widget.focus()
            await pilot.pause()
            app.post_message(events.Paste(raw))
            await pilot.pause()
        assert app.query_one(Area).text == "한글␛[2J\ufffd"
        assert app.query_one(Field).value == "한글␛[2J\ufffd"


async def test_typed_letters_become_a_syllable() -> None:
    """Three letters of decomposed Hangul, typed one by one, are one syllable."""
    app = Writing()
    async with app.run_test() as pilot:
        area = app.query_one(Area)
        area.focus()
        for letter in unicodedata.normalize("NFD", "한"):
            area.post_message(events.Key("x", letter))
        await pilot.pause()
        assert area.text == "한"
        assert area.cursor_location == (0, 1)


async def test_the_terminal_cursor_follows_a_field_that_moves() -> None:
    """When what is above grows, the position for input methods goes down with the area."""
    app = Writing()
    async with app.run_test() as pilot:
        area = app.query_one(Area)
        area.focus()
        await pilot.press("a", "b")
        before = app.cursor_position
        app.query_one("#above", Static).update("one\ntwo\nthree")
        await pilot.pause()
        assert app.cursor_position == area.cursor_screen_offset == before + Offset(0, 2)


async def test_no_cursor_blinks() -> None:
    """Nothing paints the row anew in which an input method may be composing."""
    app = Writing()
    async with app.run_test():
        assert not app.query_one(Area).cursor_blink
        assert not app.query_one(Field).cursor_blink
