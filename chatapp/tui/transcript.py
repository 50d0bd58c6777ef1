"""The conversation on the screen: a bounded window of widgets over the stored messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Click
from textual.widget import Widget
from textual.widgets import Static

from chatapp.tui.live import LiveAnswer
from chatapp.tui.turns import Edge, GrowingAnswer, UserText, shown, turn_widget
from sessions.conversation import Message

FIRST_PAINT = 8
"""Messages painted at once when a conversation opens; older ones follow one batch per idle moment."""
BATCH = 6
"""Messages mounted in one step."""
COMFORT = 24
"""Messages mounted without being asked for."""
MAX_MOUNTED = 60
"""Messages (30 turns) mounted at most."""
PAINT_S = 0.1

HINT = (
    "Write below and press Enter. Shift+Enter, Alt+Enter or Ctrl+J begins a new line.",
    "Escape stops an answer and keeps its text. Ctrl+N starts a new conversation, Ctrl+B shows the list.",
    "Tab moves between the list, the text and the box. F1 lists all keys, Ctrl+P all commands.",
    "Meters: resident tokens were in memory, restored ones came from disk, prefilled ones were computed.",
    "TTFT is the wait for the first token, TPOT the time for each one after it.",
)


class Transcript(VerticalScroll):
    """Messages `[first, last)` of the conversation are mounted; the newest are painted first.

    Below the newest message stands the tail: the running turn and our notice. It follows the end until the
    user scrolls up; `follow` (the End key) follows again.
    """

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self._messages: Sequence[Message] = ()
        self._first = 0
        self._last = 0
        self._mounted: dict[int, Widget] = {}  # position in the conversation -> its widget
        self._tail: list[Widget] = []
        self._live: LiveAnswer | None = None
        self._growing: GrowingAnswer | None = None
        self._notice: str | None = None
        self._is_moving = False
        self._older = Edge("older")
        self._newer = Edge("newer")
        self._hint = Static("", id="hint", markup=False)
        self._turns = Vertical(id="turns")

    def compose(self) -> ComposeResult:
        """The borders of the window, the hint, and the place of the messages."""
        yield self._older
        yield self._hint
        yield self._turns
        yield self._newer

    def on_mount(self) -> None:
        """Follow the end and paint running answers ten times a second."""
        self.anchor()
        self.set_interval(PAINT_S, self._paint)

    @property
    def n_mounted(self) -> int:
        """Messages that have a widget now."""
        return len(self._mounted)

    async def show(self, messages: Sequence[Message], live: LiveAnswer | None, notice: str | None) -> None:
        """Paint a conversation from its end, the answer that is being written in it, and a notice, if any."""
        self._messages = spoken(messages)[: live.n_before if live else None]
        self._live, self._notice = live, notice
        last = len(self._messages)
        with self.app.batch_update():
            await self._remount(range(max(0, last - FIRST_PAINT), last))
        self.follow()
        self.call_after_refresh(self._fill)

    async def add_question(self, live: LiveAnswer) -> None:
        """A message was sent: show it and the answer to come."""
        self._live, self._notice = live, None
        if self._last < len(self._messages):
            await self.to_end()
            return
        with self.app.batch_update():
            await self._drop_tail()
            await self._mount_tail()
            self._tell_edges()
        self.follow()

    async def settle(self, messages: Sequence[Message], notice: str | None) -> None:
        """The turn is over: its stored messages take the place of the growing answer, in one full update."""
        is_at_end = self._last == len(self._messages)
        growing, self._live, self._growing = self._growing, None, None
        self._messages, self._notice = spoken(messages), notice
        if is_at_end:
            new = range(self._last, len(self._messages))
            self._last = new.stop
            with self.app.batch_update():
                if growing is not None and len(new) == 2 and self._messages[-1].role == "assistant":
                    await growing.finish(self._messages[-1])
                    self._mounted.update(zip(new, self._tail[:2], strict=True))
                    del self._tail[:2]
                await self._drop_tail()
                await self._mount(position for position in new if position not in self._mounted)
                await self._mount_tail()
        self._tell_edges()

    async def say(self, notice: str) -> None:
        """Put one notice of ours under the conversation."""
        self._notice = notice
        if self._last == len(self._messages):
            await self._drop_tail()
            await self._mount_tail()
        self._tell_edges()

    def follow(self) -> None:
        """Stay at the end from now on."""
        self.anchor()

    async def to_end(self) -> None:
        """Show the newest messages and follow the end."""
        last = len(self._messages)
        if self._last < last:
            with self.app.batch_update():
                await self._remount(range(max(0, last - COMFORT), last))
        self.follow()

    async def to_start(self) -> None:
        """Show the oldest messages."""
        self.release_anchor()
        if self._first > 0:
            with self.app.batch_update():
                await self._remount(range(min(COMFORT, len(self._messages))))
        self.scroll_home(animate=False)

    async def older(self) -> None:
        """Mount older messages above; what is on the screen stays where it is."""
        if self._first == 0 or self._is_moving:
            return
        self._is_moving = True
        height, at = self.virtual_size.height, self.scroll_y
        start = max(0, self._first - BATCH)
        with self.app.batch_update():
            await self._mount(range(start, self._first), before=self._mounted.get(self._first))
            self._first = start
            while len(self._mounted) > MAX_MOUNTED:
                self._last -= 1
                await self._mounted.pop(self._last).remove()
            if self._last < len(self._messages):
                await self._drop_tail()
            self._tell_edges()
        self.call_after_refresh(self._keep_place, height, at)

    async def newer(self) -> None:
        """Mount newer messages below; what is on the screen stays where it is."""
        if self._last >= len(self._messages) or self._is_moving:
            return
        self._is_moving = True
        end = min(len(self._messages), self._last + BATCH)
        first_kept = max(self._first, end - MAX_MOUNTED)
        kept = self._mounted[first_kept]
        at, row = self.scroll_y, kept.virtual_region.y
        with self.app.batch_update():
            await self._mount(range(self._last, end))
            self._last = end
            while self._first < first_kept:
                await self._mounted.pop(self._first).remove()
                self._first += 1
            if self._last == len(self._messages):
                await self._mount_tail()
            self._tell_edges()
        self.call_after_refresh(lambda: self._moved(at + kept.virtual_region.y - row))

    @on(Click, "#older")
    async def _click_older(self) -> None:
        await self.older()

    @on(Click, "#newer")
    async def _click_newer(self) -> None:
        await self.newer()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Reaching a border of the mounted window mounts what lies beyond it."""
        super().watch_scroll_y(old_value, new_value)
        if self._is_moving or not self._messages:
            return
        if new_value < old_value and new_value <= 1 and self._first > 0:
            self.call_next(self.older)
        elif new_value > old_value and self._last < len(self._messages) and new_value >= self.max_scroll_y - 1:
            self.call_next(self.newer)

    def action_scroll_end(self) -> None:
        """End: the newest text, and follow it."""
        self.call_next(self.to_end)

    def action_scroll_home(self) -> None:
        """Home: the first message."""
        self.call_next(self.to_start)

    async def _paint(self) -> None:
        if self._growing is not None and self._growing.is_attached:
            await self._growing.paint()

    async def _fill(self) -> None:
        """Mount one more batch of older messages while there are few, then yield to everything else."""
        if self._first > 0 and len(self._mounted) < COMFORT and self._last == len(self._messages):
            await self.older()
            self.call_after_refresh(self._fill)

    async def _remount(self, window: range) -> None:
        await self._turns.remove_children()
        self._mounted, self._tail, self._growing = {}, [], None
        self._first, self._last = window.start, window.stop
        await self._mount(window)
        if self._last == len(self._messages):
            await self._mount_tail()
        self._tell_edges()

    async def _mount(self, positions: Iterable[int], before: Widget | None = None) -> None:
        widgets = {position: turn_widget(self._messages[position]) for position in positions}
        self._mounted.update(widgets)
        if widgets and self._turns.is_attached:
            await self._turns.mount_all(widgets.values(), before=before)

    async def _mount_tail(self) -> None:
        if self._live is not None:
            self._growing = GrowingAnswer(self._live)
            self._tail += [UserText(self._live.question), self._growing]
        if self._notice:
            self._tail.append(Static(shown(self._notice), markup=False, classes="notice"))
        if self._tail and self._turns.is_attached:
            await self._turns.mount_all(self._tail)
        await self._paint()

    async def _drop_tail(self) -> None:
        for widget in self._tail:
            await widget.remove()
        self._tail, self._growing = [], None

    def _tell_edges(self) -> None:
        self._older.tell(self._first, "older messages · scroll up or click")
        self._newer.tell(len(self._messages) - self._last, "newer messages · End shows them")
        self._hint.display = not self._messages and not self._tail
        self._turns.display = not self._hint.display
        if self._hint.display:
            self._hint.update(Content("\n").join(Content.assemble(("· ", "$accent"), line) for line in HINT))

    def _keep_place(self, height: int, at: float) -> None:
        if self._anchored and not self._anchor_released:
            self._is_moving = False
        else:
            self._moved(at + self.virtual_size.height - height)

    def _moved(self, at: float) -> None:
        self.scroll_to(y=at, animate=False, immediate=True)
        self._is_moving = False


def spoken(messages: Sequence[Message]) -> list[Message]:
    """The messages that are shown: all but the system prompt."""
    return [message for message in messages if message.role != "system"]
