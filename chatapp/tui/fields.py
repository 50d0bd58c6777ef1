"""Fields to write in: what is pasted is composed and shown as it is, and no key cuts a character in half."""

from __future__ import annotations

import unicodedata

from textual import events
from textual.document._document import EditResult, Location
from textual.screen import Screen
from textual.widgets import Input, TextArea

from chatapp.safe import clean, clean_field, scrub
from chatapp.tui.graphemes import composed, left_of, right_of, snapped


class Field(Input):
    """One line; control characters become visible glyphs the moment they come in."""

    def validate_value(self, value: str) -> str:
        """Clean what is typed, pasted or set; places in the text stay the same."""
        return clean_field(value)

    def on_mount(self) -> None:
        """A cursor that blinks would paint its row anew, under the syllable that an input method is composing."""
        self.cursor_blink = False

    def on_paste(self, event: events.Paste) -> None:
        """Compose what is pasted before it is taken."""
        event.text = unicodedata.normalize("NFC", event.text)

    def action_cursor_left(self, select: bool = False) -> None:
        """Go one character to the left."""
        if select or self.selection.is_empty:
            self._go(left_of(self.value, self.cursor_position), select)
        else:
            super().action_cursor_left(select)

    def action_cursor_right(self, select: bool = False) -> None:
        """Go one character to the right."""
        if (select or self.selection.is_empty) and not self.cursor_at_end:
            self._go(right_of(self.value, self.cursor_position), select)
        else:
            super().action_cursor_right(select)

    def action_delete_left(self) -> None:
        """Delete the character to the left, or what is selected."""
        if self.selection.is_empty:
            self.delete(left_of(self.value, self.cursor_position), self.cursor_position)
        else:
            self.delete_selection()

    def action_delete_right(self) -> None:
        """Delete the character to the right, or what is selected."""
        if self.selection.is_empty:
            self.delete(self.cursor_position, right_of(self.value, self.cursor_position))
        else:
            self.delete_selection()

    def _go(self, to: int, select: bool) -> None:
        start = self.selection.start if select else to
        self.selection = type(self.selection)(start, to)


class Area(TextArea):
    """Several lines; what is pasted is composed and cleaned, and a cursor stands between characters only."""

    def get_cursor_left_location(self) -> Location:
        """Return where the character to the left begins."""
        row, column = self.cursor_location
        if column == 0:
            return super().get_cursor_left_location()
        return row, left_of(self.document.get_line(row), column)

    def get_cursor_right_location(self) -> Location:
        """Return where the character to the right ends."""
        row, column = self.cursor_location
        line = self.document.get_line(row)
        if column >= len(line):
            return super().get_cursor_right_location()
        return row, right_of(line, column)

    def get_cursor_up_location(self) -> Location:
        """Return the place above, at the border of a character."""
        return self._snapped(super().get_cursor_up_location())

    def get_cursor_down_location(self) -> Location:
        """Return the place below, at the border of a character."""
        return self._snapped(super().get_cursor_down_location())

    def get_target_document_location(self, event: events.MouseEvent) -> Location:
        """Return the place under the pointer, at the border of a character."""
        return self._snapped(super().get_target_document_location(event))

    def _snapped(self, location: Location) -> Location:
        row, column = location
        return row, snapped(self.document.get_line(row), column)

    def _replace_via_keyboard(self, insert: str, start: Location, end: Location) -> EditResult | None:
        """Put what is typed in; a letter that completes a syllable makes it whole."""
        if start == end:
            row, column = start
            begin, insert = composed(self.document.get_line(row), column, insert)
            start = (row, begin)
        return super()._replace_via_keyboard(insert, start, end)

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        self.take_paste(event.text)

    def action_paste(self) -> None:
        """Paste what was copied in this program."""
        self.take_paste(self.app.clipboard)

    def take_paste(self, text: str) -> None:
        """Put a pasted text in the place of what is selected."""
        text = clean(unicodedata.normalize("NFC", scrub(text)[0]))
        if result := self._replace_via_keyboard(text, *self.selection):
            self.move_cursor(result.end_location)

    def on_mount(self) -> None:
        """A cursor that blinks would paint its row anew, under the syllable that an input method is composing."""
        self.cursor_blink = False
        self.screen.screen_layout_refresh_signal.subscribe(self, self._follow_cursor)

    def _follow_cursor(self, _: Screen[object]) -> None:
        """Tell the terminal where the cursor is once the field has moved: input methods open their window there."""
        if self.has_focus and self.app.cursor_position != self.cursor_screen_offset:
            self.app.cursor_position = self.cursor_screen_offset
            self.refresh()  # the position is sent with a frame
