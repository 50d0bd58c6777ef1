"""Up and Down in the box: earlier messages, newest first, of this conversation and then of all others."""

from __future__ import annotations

from collections.abc import Callable

from chatapp.tui.composer import Composer
from sessions.asked import Mark
from sessions.conversation import Draft

Page = Callable[[str | None, Mark | None], tuple[list[Draft], Mark | None] | None]
"""Asks for questions of a conversation and all others, behind a mark; None if they cannot be had."""


class Recall:
    """Walks through what was asked; the draft comes back behind the newest. A recalled text that is edited is a draft.

    Pages are read when they are reached.
    """

    def __init__(self, composer: Composer, current: Callable[[], str], page: Page) -> None:
        self._composer = composer
        self._current = current
        self._page = page
        self._draft: Draft | None = None
        self._found: list[Draft] = []
        self._mark: Mark | None = None
        self._has_more = True
        self._at = -1
        self._shown = ""

    def end(self) -> None:
        """Begin anew with the next key."""
        self._draft, self._found, self._mark, self._has_more, self._at = None, [], None, True, -1

    def older(self) -> bool:
        """Show the message before; False if there is none."""
        if self._draft is not None and self._composer.text != self._shown:
            self.end()
        begins = self._draft is None
        draft = self._composer.content if begins else self._draft
        while self._at + 1 >= len(self._found) and self._has_more:
            self._read(draft)
        if self._at + 1 >= len(self._found):
            if begins:
                self.end()
            return False
        self._draft = draft
        self._at += 1
        self._show(self._found[self._at], to_end=False)
        return True

    def newer(self) -> bool:
        """Show the message behind, at last the draft; False where nothing is recalled."""
        if self._draft is None:
            return False
        if self._composer.text != self._shown:
            self.end()
            return False
        self._at -= 1
        if self._at >= 0:
            self._show(self._found[self._at], to_end=True)
        else:
            draft = self._draft
            self.end()
            self._composer.replace_by(draft)
        return True

    def _show(self, draft: Draft, *, to_end: bool) -> None:
        self._composer.replace_by(draft)
        self._shown = self._composer.text
        if not to_end:  # the next key goes on
            self._composer.move_cursor((0, len(self._composer.document.get_line(0))))

    def _read(self, draft: Draft | None) -> None:
        page = self._page(self._current() or None, self._mark)
        found, self._mark = page if page is not None else ([], None)
        self._has_more = self._mark is not None
        known = {one.text for one in self._found} | ({draft.text} if draft else set())
        for one in found:  # forks have copies
            if one.text not in known:
                known.add(one.text)
                self._found.append(one)
