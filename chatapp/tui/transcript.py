"""The conversation on the screen: a bounded window of widgets over the stored messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import ClassVar, Concatenate, ParamSpec

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Click
from textual.geometry import Region
from textual.strip import Strip
from textual.widgets import Static

from chatapp.safe import clean
from chatapp.texts import tr, tr_later
from chatapp.tui.column import Column, ground, virtual_size
from chatapp.tui.keymap import Keymap
from chatapp.tui.live import LiveAnswer, Notice
from chatapp.tui.marking import Marking
from chatapp.tui.messages import MessageVerbAsked
from chatapp.tui.thinking import Folds, ThoughtBlock
from chatapp.tui.turnlist import TurnList
from chatapp.tui.turns import Edge, SystemLine, UserText
from sessions.conversation import Message, Version

FIRST_PAINT = 8
"""Messages painted at once when a conversation opens, older ones one batch per idle moment."""
BATCH = 6
"""Messages mounted in one step."""
COMFORT = 12
"""Messages mounted without being asked for, if they fill the screen: each costs something with every new line."""
MAX_MOUNTED = 60
"""Messages (30 turns) mounted at most."""
PAINT_S = 0.1
BELOW = tr_later("↓ new text below · {end} shows it")

HINT = (
    tr_later("Write below and press Enter. Shift+Enter, Alt+Enter or Ctrl+J begins a new line."),
    tr_later(
        "Escape stops an answer and keeps its text. {new} starts a new conversation, {search} searches all of them."
    ),
    tr_later("Tab moves between the list, the text and the box. {help} lists all keys, {palette} all commands."),
    tr_later("Meters: resident tokens were in memory, restored ones came from disk, prefilled ones were computed."),
    tr_later("TTFT is the wait for the first token, TPOT the time for each one after it."),
)


P = ParamSpec("P")


def one_at_a_time(
    change: Callable[Concatenate[Transcript, P], Awaitable[None]],
) -> Callable[Concatenate[Transcript, P], Awaitable[None]]:
    """Let a change of the mounted widgets wait for the one before: keys, scrolling and turns are tasks of their own."""

    @wraps(change)
    async def changed(transcript: Transcript, /, *args: P.args, **kwargs: P.kwargs) -> None:
        async with transcript.changing:
            await change(transcript, *args, **kwargs)

    return changed


class Transcript(VerticalScroll):
    """Messages `[first, last)` of the conversation are mounted; the newest are painted first.

    Below the newest message stands the tail: the running turn and our notice. It follows the end until the
    user scrolls up; `follow` (the End key) follows again. One stored message may be marked, for the verbs.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "mark(-1)", tr_later("Mark the message before"), show=False, id="text.previous"),
        Binding("right_square_bracket", "mark(1)", tr_later("Mark the message behind"), show=False, id="text.next"),
        Binding("ctrl+z", "verb('undo')", tr_later("Take back the last turn"), show=False, id="text.undo"),
        Binding("escape", "unmark", tr_later("Unmark"), show=False),
        Binding("e", "verb('edit')", tr_later("Edit"), id="message.edit"),
        Binding("r", "verb('regenerate')", tr_later("Answer again"), id="message.again"),
        Binding("c", "verb('continue')", tr_later("Go on"), id="message.continue"),
        Binding("left", "verb('older')", tr_later("Versions"), key_display="← →", id="message.older"),
        Binding("right", "verb('newer')", tr_later("Next version"), show=False, id="message.newer"),
        Binding("f", "verb('fork')", tr_later("Fork"), id="message.fork"),
        Binding("y", "verb('copy')", tr_later("Copy"), id="message.copy"),
        Binding("k", "verb('code')", tr_later("Copy code"), id="message.code"),
        Binding("o", "verb('links')", tr_later("Links"), id="message.links"),
        Binding("t", "verb('tree')", tr_later("Tree"), id="message.tree"),
        Binding("enter", "unfold", tr_later("Unfold")),
    ]

    virtual_size = virtual_size()

    def __init__(self, versions: Callable[[str], Mapping[int, Version]], keys: Keymap) -> None:
        """`versions` returns the versions of a conversation's messages that have several."""
        super().__init__(id="transcript")
        self.marking = Marking()
        self._ask_versions = versions
        self._keys = keys
        self._is_moving = False
        self.changing = asyncio.Lock()
        self._all_folds: dict[str, Folds] = {}
        self._older = Edge("older")
        self._newer = Edge("newer")
        self._below = Static(clean(keys.fill(tr(BELOW))), id="below", markup=False)
        self._hint = Static("", id="hint", markup=False)
        self._turns = TurnList(self.marking, keys)
        self._system = Column(id="system")
        self._system_text = ""
        self._page = Column(self._system, self._turns, id="page")

    def compose(self) -> ComposeResult:
        """The borders of the window, the hint, and the place of the messages."""
        yield self._older
        yield self._page
        yield self._hint
        yield self._newer
        yield self._below

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw what is around the messages: nothing."""
        return ground(self, crop)

    def on_mount(self) -> None:
        """Follow the end and paint running answers ten times a second."""
        self._below.display = False
        self.anchor()
        self.set_interval(PAINT_S, self._paint)

    def _paint(self) -> None:
        if self._turns.paint():
            self._tell_new_text()

    @property
    def is_following(self) -> bool:
        """True while new text scrolls what is on the screen."""
        return self.is_anchored and not self._anchor_released

    def _tell_new_text(self) -> None:
        self._below.display = not self.is_following and self.max_scroll_y > 0

    @property
    def has_reasoning(self) -> bool:
        """True if a block of reasoning was shown in this conversation."""
        return self._turns.folds.has_blocks

    def toggle_reasoning(self) -> None:
        """Unfold all blocks of reasoning, or fold them."""
        self._turns.folds.toggle_all()
        for block in self.query(ThoughtBlock):
            block.repaint()

    def _choose_folds(self) -> None:
        """Each conversation has its own; one without a message has none to remember."""
        session_id = self._session_id
        self._turns.folds = self._all_folds.setdefault(session_id, Folds()) if session_id else Folds()
        self.marking.versions = self._ask_versions(session_id) if session_id else {}

    @property
    def _session_id(self) -> str | None:
        return (
            self._turns.live.session_id if self._turns.live else self.messages[0].session_id if self.messages else None
        )

    @property
    def marked(self) -> Message | None:
        """The marked message."""
        return self.marking.message

    @property
    def messages(self) -> Sequence[Message]:
        """The stored messages that are shown, oldest first."""
        return self.marking.messages

    @property
    def n_mounted(self) -> int:
        """Messages that have a widget now."""
        return self._turns.n_mounted

    @one_at_a_time
    async def show(
        self,
        messages: Sequence[Message],
        live: LiveAnswer | None,
        notice: Notice | None,
        *,
        at: int | None = None,
    ) -> None:
        """Paint a conversation from its end, the answer that is being written in it, and a notice, if any.

        `at` is a message that is marked and scrolled to.
        """
        await self._show_system(next((message.text for message in messages if message.role == "system"), ""))
        self.marking.messages = spoken(messages)[: live.n_before if live else None]
        self._turns.live, self._turns.notice = live, notice
        self._choose_folds()
        self.marking.message_id = at
        self._below.display = False
        place = self.marking.position(at)
        with self.app.batch_update():
            await self._remount(self._window_at(place))
        if place is None:
            self.follow()
            self.call_after_refresh(self._fill)
        else:
            self.release_anchor()
            self.call_after_refresh(self._scroll_to_mark, top=True)

    def _window_at(self, place: int | None) -> range:
        """Positions to mount first: the end, or what stands around one of them."""
        last = len(self.messages)
        if place is None or place >= last - FIRST_PAINT:
            return range(max(0, last - FIRST_PAINT), last)
        return range(max(0, place - BATCH), min(last, place + BATCH + 1))

    # --- the marked message ---

    @one_at_a_time
    async def mark(self, step: int) -> None:
        """Mark the next or the previous message; without a mark, the last one."""
        at = self.marking.beside(step)
        if at is None:
            return
        self.unmark()
        self.marking.message_id = self.messages[at].id
        if self._turns.widget_at(at) is None:
            with self.app.batch_update():
                await self._remount(self._window_at(at))
        elif widget := self._turns.widget_at(at):
            widget.add_class("-marked")
        self.release_anchor()
        self.call_after_refresh(self._scroll_to_mark)
        self.refresh_bindings()

    def unmark(self) -> None:
        """Mark no message."""
        widget = self._turns.widget_at(self.marking.at)
        self.marking.message_id = None
        if widget is not None:
            widget.remove_class("-marked")
        self.refresh_bindings()

    def _scroll_to_mark(self, *, top: bool = False) -> None:
        at = self.marking.at
        widget = self._turns.widget_at(at)
        if widget is None:
            return
        if at == len(self.messages) - 1 and self._turns.live is None and not top:
            self.follow()
        else:
            self.scroll_to_widget(widget, animate=False, top=top, force=True)

    async def action_mark(self, step: int) -> None:
        """Choose a message for the verbs."""
        await self.mark(step)

    def action_unmark(self) -> None:
        """Choose none."""
        self.unmark()

    def action_verb(self, name: str) -> None:
        """Ask for something to be done with the marked message."""
        self.post_message(MessageVerbAsked(name))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The verbs are keys while a message is marked; without a mark letters belong to the box."""
        if action == "verb" and parameters[0] != "undo":
            return self.marking.can(str(parameters[0]))
        if action == "unfold":
            return (found := self._marked_question()) is not None and found.has_attachments
        if action == "unmark":
            return self.marking.message_id is not None and self._turns.live is None
        return super().check_action(action, parameters)

    def _marked_question(self) -> UserText | None:
        found = self._turns.widget_at(self.marking.at)
        return found if isinstance(found, UserText) else None

    def action_unfold(self) -> None:
        """Unfold what is attached to the marked message, or fold it."""
        if (found := self._marked_question()) is not None:
            found.unfold_all()

    def is_verb(self, key: str) -> bool:
        """True for a key that does something here, with the message that is marked or none."""
        found = self.screen.active_bindings.get(key)
        return found is not None and found.node is self

    @one_at_a_time
    async def add_question(self, live: LiveAnswer) -> None:
        """A turn begins: show its question and the answer to come, in the place of what stood behind it."""
        is_at_end = self._turns.is_at_end
        self._turns.live, self._turns.notice = live, None
        self.unmark()
        self.marking.messages = self.messages[: live.n_before]
        self._choose_folds()
        last = len(self.messages)
        with self.app.batch_update():
            if is_at_end and (self._turns.first < last or last == 0):
                await self._turns.cut()
                await self._turns.trim(COMFORT)
                self._tell_edges()
            else:
                await self._remount(range(max(0, last - FIRST_PAINT), last))
        self.follow()

    @one_at_a_time
    async def settle(self, messages: Sequence[Message], notice: Notice | None) -> None:
        """The turn is over: its stored messages take the place of the growing answer, in one full update."""
        is_at_end = self._turns.is_at_end
        growing = self._turns.end_turn()
        self.marking.messages, self._turns.notice = spoken(messages), notice
        self.marking.versions = self._ask_versions(self._session_id) if self._session_id else {}
        last = len(self.messages)
        if is_at_end and last - self._turns.last > COMFORT:  # it came to nothing: what it took the place of is back
            with self.app.batch_update():
                await self._remount(range(last - COMFORT, last))
        elif is_at_end:
            with self.app.batch_update():
                await self._turns.settle(growing)
        self._tell_edges()

    @one_at_a_time
    async def say(self, notice: Notice) -> None:
        """Put one notice of ours under the conversation."""
        self._turns.notice = notice
        await self._turns.renew_tail()
        self._tell_edges()

    def follow(self) -> None:
        """Stay at the end from now on."""
        self._below.display = False
        self.anchor()

    async def to_answer(self) -> None:
        """Show where the marked answer begins, or the last one; what follows it grows out of sight."""
        at = self.marking.at
        if at is None and self._turns.growing is None:
            at = next((n for n in range(len(self.messages) - 1, -1, -1) if self.messages[n].role == "assistant"), None)
        widget = self._turns.growing if at is None else self._turns.widget_at(at)
        if at is not None and widget is None:
            async with self.changing:
                with self.app.batch_update():
                    await self._remount(self._window_at(at))
            widget = self._turns.widget_at(at)
        if widget is not None:
            self.release_anchor()
            self.call_after_refresh(self.scroll_to_widget, widget, animate=False, top=True, force=True)

    @one_at_a_time
    async def to_end(self) -> None:
        """Show the newest messages and follow the end."""
        last = len(self.messages)
        if not self._turns.is_at_end:
            with self.app.batch_update():
                await self._remount(range(max(0, last - COMFORT), last))
        self.follow()

    @one_at_a_time
    async def to_start(self) -> None:
        """Show the oldest messages."""
        self.release_anchor()
        if self._turns.first > 0:
            with self.app.batch_update():
                await self._remount(range(min(COMFORT, len(self.messages))))
        self.scroll_home(animate=False)

    async def older(self) -> None:
        """Mount older messages above; what is on the screen stays where it is."""
        if self._turns.first == 0 or self._is_moving or self.changing.locked():
            return
        async with self.changing:
            await self._mount_older()

    async def _mount_older(self) -> None:
        self._is_moving = True
        height, at = self.virtual_size.height, self.scroll_y
        with self.app.batch_update():
            await self._turns.mount_older(BATCH, at_most=MAX_MOUNTED)
            self._tell_edges()
        self.call_after_refresh(self._keep_place, height, at)

    async def newer(self) -> None:
        """Mount newer messages below; what is on the screen stays where it is."""
        if self._turns.is_at_end or self._is_moving or self.changing.locked():
            return
        async with self.changing:
            await self._mount_newer()

    async def _mount_newer(self) -> None:
        self._is_moving = True
        n_new = min(BATCH, len(self.messages) - self._turns.last)
        kept = self._turns.widget_at(max(self._turns.first, self._turns.last + n_new - MAX_MOUNTED))
        assert kept is not None, "what is mounted now and stays so"
        at, row = self.scroll_y, kept.virtual_region.y
        with self.app.batch_update():
            await self._turns.mount_newer(BATCH, at_most=MAX_MOUNTED)
            self._tell_edges()
        self.call_after_refresh(lambda: self._moved(at + kept.virtual_region.y - row))

    @on(Click, "#older")
    async def _click_older(self) -> None:
        await self.older()

    @on(Click, "#below")
    def _click_below(self) -> None:
        self.action_scroll_end()

    @on(Click, "#newer")
    async def _click_newer(self) -> None:
        await self.newer()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Reaching a border of the mounted window mounts what lies beyond it."""
        super().watch_scroll_y(old_value, new_value)
        if self._below.display and new_value >= self.max_scroll_y - 1:
            self._below.display = False
        if self._is_moving or not self.messages:
            return
        if new_value < old_value and new_value <= 1 and self._turns.first > 0:
            self.call_next(self.older)
        elif new_value > old_value and not self._turns.is_at_end and new_value >= self.max_scroll_y - 1:
            self.call_next(self.newer)

    def action_scroll_end(self) -> None:
        """End: the newest text, and follow it."""
        self.call_next(self.to_end)

    def action_scroll_home(self) -> None:
        """Home: the first message."""
        self.call_next(self.to_start)

    async def _fill(self) -> None:
        """Mount one more batch of older messages while there are few, then yield to everything else."""
        is_short = self._turns.n_mounted < COMFORT or self.virtual_size.height < 2 * self.size.height
        if is_short and self._turns.first > 0 and self._turns.n_mounted < MAX_MOUNTED and self._turns.is_at_end:
            await self.older()
            self.call_after_refresh(self._fill)

    async def _remount(self, window: range) -> None:
        await self._turns.remount(window)
        self._tell_edges()

    async def _show_system(self, text: str) -> None:
        if text != self._system_text:
            self._system_text = text
            await self._system.remove_children()
            if text:
                await self._system.mount(SystemLine(text))

    def _tell_edges(self) -> None:
        self._older.tell(self._turns.first, tr("{n} older messages · scroll up or click"))
        newer = tr("{n} newer messages · {key} shows them").replace("{key}", self._keys.shown("end"))
        self._newer.tell(len(self.messages) - self._turns.last, newer)
        self._hint.display = not self.messages and not self._turns.has_tail
        self._turns.display = not self._hint.display
        self._system.display = self._turns.first == 0 and bool(self._system.children)
        self._page.display = self._turns.display or self._system.display
        self._page.set_class(self._hint.display, "-hinted")
        if self._hint.display:
            lines = [clean(self._keys.fill(tr(line))) for line in HINT]
            self._hint.update(Content("\n").join(Content.assemble(("· ", "$accent"), line) for line in lines))

    def _keep_place(self, height: int, at: float) -> None:
        if self.is_following:
            self._is_moving = False
        else:
            self._moved(at + self.virtual_size.height - height)

    def _moved(self, at: float) -> None:
        self.scroll_to(y=at, animate=False, immediate=True)
        self._is_moving = False


def spoken(messages: Sequence[Message]) -> list[Message]:
    """The messages that are shown: all but the system prompt."""
    return [message for message in messages if message.role != "system"]
