"""The widgets of a window of the messages, and of the running turn behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.widget import Widget
from textual.widgets import Static

from chatapp.safe import clean
from chatapp.texts import tr
from chatapp.tui.column import Column
from chatapp.tui.keymap import Keymap
from chatapp.tui.live import LiveAnswer, Notice
from chatapp.tui.marking import Marking
from chatapp.tui.thinking import Folds
from chatapp.tui.turns import GO_ON, GrowingAnswer, UserText, shown, turn_widget
from sessions.conversation import Message
from sessions.hygiene import tidy


class TurnList(Column):
    """Messages `[first, last)` of those in `marking` are mounted.

    Behind the newest message, and only there, stands the tail: the running turn, else how an answer can go on, and our
    notice.
    """

    def __init__(self, marking: Marking, keys: Keymap) -> None:
        super().__init__(id="turns")
        self.first = 0
        self.last = 0
        self.folds = Folds()
        self.live: LiveAnswer | None = None
        self.notice: Notice | None = None
        self._marking = marking
        self._keys = keys
        self._mounted: dict[int, Widget] = {}  # position in the conversation -> its widget
        self._tail: list[Widget] = []
        self._growing: GrowingAnswer | None = None

    @property
    def _messages(self) -> Sequence[Message]:
        return self._marking.messages

    @property
    def is_at_end(self) -> bool:
        """True if the newest message is mounted."""
        return self.last == len(self._messages)

    @property
    def n_mounted(self) -> int:
        """Messages that have a widget now."""
        return len(self._mounted)

    @property
    def has_tail(self) -> bool:
        """True if something stands behind the newest message."""
        return bool(self._tail)

    @property
    def growing(self) -> GrowingAnswer | None:
        """The answer that is being written, if it is mounted."""
        return self._growing

    def widget_at(self, position: int | None) -> Widget | None:
        """The widget of a message, if it has one."""
        return None if position is None else self._mounted.get(position)

    async def remount(self, window: range) -> None:
        """Mount these messages and no others."""
        await self.remove_children()
        self._mounted, self._tail, self._growing = {}, [], None
        self.first, self.last = window.start, window.stop
        await self._mount_messages(window)
        if self.is_at_end:
            await self._mount_tail()

    async def mount_older(self, n: int, *, at_most: int) -> None:
        """Mount `n` more messages in front; what is too much then goes at the other end."""
        start = max(0, self.first - n)
        await self._mount_messages(range(start, self.first), before=self._mounted.get(self.first))
        self.first = start
        while len(self._mounted) > at_most:
            self.last -= 1
            await self._mounted.pop(self.last).remove()
        if not self.is_at_end:
            await self._drop_tail()

    async def mount_newer(self, n: int, *, at_most: int) -> None:
        """Mount `n` more messages behind; what is too much then goes in front."""
        end = min(len(self._messages), self.last + n)
        await self._mount_messages(range(self.last, end))
        self.last = end
        while len(self._mounted) > at_most:
            await self._mounted.pop(self.first).remove()
            self.first += 1
        if self.is_at_end:
            await self._mount_tail()

    async def trim(self, at_most: int) -> None:
        """Drop the widgets of the oldest messages that are too many."""
        first = max(self.first, self.last - at_most)
        gone = [self._mounted.pop(at) for at in range(self.first, first)]
        self.first = first
        if gone:
            await self.remove_children(gone)

    async def cut(self) -> None:
        """Messages at the end are there no more: drop their widgets, and begin the tail anew."""
        await self._drop_tail()
        self.last = len(self._messages)
        if gone := [self._mounted.pop(at) for at in list(self._mounted) if at >= self.last]:
            await self.remove_children(gone)
        await self._mount_tail()

    async def settle(self, growing: GrowingAnswer | None) -> None:
        """New messages are there: those of the turn that was `growing` take its widgets over, others get some."""
        new = range(self.last, len(self._messages))
        self.last = new.stop
        if growing is not None and self._is_turn_of(growing.live, new):
            question, answer = self._messages[-2:]
            self._tail_question().tell(self._marking.versions.get(question.id))
            growing.finish(answer, self._marking.versions.get(answer.id))
            self._mounted.update(zip(new, self._tail[:2], strict=True))
            del self._tail[:2]
        await self._drop_tail()
        await self._mount_messages(position for position in new if position not in self._mounted)
        await self._mount_tail()

    async def renew_tail(self) -> None:
        """Bring the tail up to date."""
        if self.is_at_end:
            await self._drop_tail()
            await self._mount_tail()

    def end_turn(self) -> GrowingAnswer | None:
        """The turn is over; return its growing answer."""
        growing, self.live, self._growing = self._growing, None, None
        return growing

    def paint(self) -> bool:
        """Bring the growing answer up to date; return whether it got longer."""
        return self._growing is not None and self._growing.is_mounted and self._growing.paint()

    def _is_turn_of(self, live: LiveAnswer, new: range) -> bool:
        """True if the new messages are what the tail shows: its question and an answer to it."""
        if len(new) != 2 or self._messages[-1].role != "assistant":
            return False
        return self._messages[-2].text == tidy(live.question)[0]

    def _tail_question(self) -> UserText:
        question = self._tail[0]
        assert isinstance(question, UserText), "a running turn begins the tail"
        return question

    async def _mount_messages(self, positions: Iterable[int], before: Widget | None = None) -> None:
        widgets: dict[int, Widget] = {}
        for position in positions:
            message = self._messages[position]
            widgets[position] = turn_widget(message, self.folds, self._marking.versions.get(message.id))
            widgets[position].set_class(message.id == self._marking.message_id, "-marked")
        self._mounted.update(widgets)
        if widgets and self.is_attached:
            await self.mount_all(widgets.values(), before=before)

    async def _mount_tail(self) -> None:
        if self.live is not None:
            self._growing = GrowingAnswer(self.live, self.folds)
            self._tail += [UserText(self.live.question, attachments=self.live.attachments), self._growing]
        elif self._messages and self._marking.can_go_on(self._messages[-1]):
            self._tail.append(Static(clean(self._keys.fill(tr(GO_ON))), markup=False, classes="status"))
        if self.notice:
            style = "notice" if self.notice.is_failure else "notice -done"
            self._tail.append(Static(shown(self.notice.sentence), markup=False, classes=style))
        if self._tail and self.is_attached:
            await self.mount_all(self._tail)
        self.paint()

    async def _drop_tail(self) -> None:
        for widget in self._tail:
            await widget.remove()
        self._tail, self._growing = [], None
