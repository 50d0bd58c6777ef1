"""The terminal window: one conversation in the middle, all of them on the left, the meters on the right."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import ClassVar, TypeVar

from textual import events
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import Footer, Input, Static, TextArea
from textual.worker import Worker

from chatapp.console import lost_notice
from chatapp.safe import clean, clean_line
from chatapp.tui.composer import Composer, Count
from chatapp.tui.live import LiveAnswer, Readings
from chatapp.tui.messages import (
    DraftSent,
    ModelEvent,
    OpenEnded,
    OpenEvent,
    SessionChosen,
    TrashAsked,
    Trouble,
    TurnEnded,
    TurnEvent,
)
from chatapp.tui.meters import Meters, one_line
from chatapp.tui.screens import HelpScreen, RenameScreen
from chatapp.tui.sidebar import Sidebar
from chatapp.tui.talk import Talk
from chatapp.tui.theme import DARK, LIGHT
from chatapp.tui.transcript import Transcript, spoken
from models.engine import Failed, Finished, Loaded, ModelInfo, Prepared, Sampling
from sessions.conversation import Message, Session
from sessions.errors import SessionError
from sessions.manager import SessionManager

TICK_S = 0.25
"""How often the meters are painted."""
QUIT_AGAIN_S = 2.0
"""A second Ctrl+C within this time quits."""
STOP_WAIT_S = 2.0
"""Longest wait on quitting for the running answer to be stopped and stored."""
UNSAVED = ""
"""The id, within the window only, of a conversation that has no message yet."""

MakeCounter = Callable[[ModelInfo], Count | None]
"""Makes what counts a model's tokens; None if only its engine can."""

T = TypeVar("T")


class ChatApp(App[None], inherit_bindings=False):
    """The window over a session manager.

    The model is loaded behind the first picture, so that keys are taken before it is there.
    Clocks are injected: `clock` for ages, `monotonic` for durations; so is what makes a token counter.
    """

    CSS_PATH = "app.tcss"
    TITLE = "chatapp"
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (40, "-narrow"), (80, "-medium"), (100, "-wide")]  # noqa: RUF012 - as in App
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (10, "-low"), (24, "-tall")]  # noqa: RUF012 - as in App
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop"),
        Binding("ctrl+n", "new", "New"),
        Binding("ctrl+b", "toggle_sidebar", "List"),
        Binding("f2", "rename", "Rename"),
        Binding("f3", "fold_meters", "Meters"),
        Binding("f4", "toggle_done", "Done"),
        Binding("f1", "help", "Help"),
        Binding("ctrl+q", "leave", "Quit", priority=True),
        Binding("ctrl+c", "copy_or_leave", show=False, priority=True, system=True),
        Binding("ctrl+home", "scroll_to_start", show=False),
        Binding("ctrl+end", "scroll_to_end", show=False),
    ]

    def __init__(
        self,
        manager: SessionManager,
        *,
        sampling: Sampling | None = None,
        session_id: str | None = None,
        make_counter: MakeCounter | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._make_counter = make_counter
        # Before the widgets are styled: a later change would style each of them again.
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name
        self._manager = manager
        self._current = session_id or UNSAVED
        self._clock = clock
        self._monotonic = monotonic
        self._talk = Talk(manager, sampling, post=self.post_message, monotonic=monotonic)
        self._title = Static("", id="title-text", markup=False)
        self._model_name = Static("", id="title-model", markup=False)
        self._sidebar = Sidebar()
        self._transcript = Transcript()
        self._composer = Composer()
        self._meters = Meters()
        self._meter_line = Static("", id="meter-line", markup=False)
        self._turn_workers: dict[str, Worker[None]] = {}
        self._drafts: dict[str, str] = {}
        self._trashed: list[str] = []
        self._quit_asked_at = -QUIT_AGAIN_S
        self._is_leaving = False
        self._needs_paint = True

    # --- the window ---

    def compose(self) -> ComposeResult:
        """Title, list, conversation, composer, meters, footer."""
        with Horizontal(id="title"):
            yield self._title
            yield self._model_name
        with Horizontal(id="main"):
            yield self._sidebar
            with Vertical(id="center"):
                yield self._transcript
                yield self._composer
            yield self._meters
        yield self._meter_line
        yield Footer()
        yield Static("too small\n40 x 10 cells are needed", id="too-small", markup=False)

    async def on_mount(self) -> None:
        """Paint what is stored, then load the model behind the user's back."""
        self.set_interval(TICK_S, self._tick)
        self.set_interval(30, self._refresh_sidebar)
        self._composer.focus()
        await self._show(self._current)
        # Not before the first picture: on two cores a loading model would hold it up.
        self.call_after_refresh(self._load)

    def on_key(self, event: events.Key) -> None:
        """Letters typed while the text has the focus are meant for the box."""
        if event.is_printable and event.character and self.focused is self._transcript:
            event.stop()
            self._composer.focus()
            self._composer.insert(event.character)

    def _load(self) -> None:
        # What start-up made stays: no collection need look at it again.
        gc.freeze()
        gc.enable()
        self._work(self._talk.load(), "load")

    @property
    def readings(self) -> Readings:
        """The live numbers of the conversation on the screen."""
        return self._talk.readings(self._current)

    def _work(self, body: Coroutine[object, object, None], group: str, *, exclusive: bool = True) -> Worker[None]:
        """Run beside the widgets; bodies report their failures themselves."""
        return self.run_worker(body, group=group, exclusive=exclusive, exit_on_error=False)

    @property
    def _is_standing(self) -> bool:
        """False while the window is being taken down, when late messages and timers find no widgets."""
        return self.is_running and self._composer.is_attached

    def _tick(self) -> None:
        if not self._is_standing:
            return
        now = self._monotonic()
        readings = self.readings
        readings.sample(now)
        if not (self._needs_paint or readings.activity not in ("idle", "failed") or self._talk.model.info is None):
            return
        self._needs_paint = False
        if self._meters.display:
            self._meters.show(readings, self._talk.model, now)
        if self._meter_line.display:
            line = one_line(readings, self._talk.model, now, self.size.width - 4)
            self._meter_line.update(line, layout=False)

    def on_resize(self) -> None:
        """Paint the meters in their new place."""
        self._needs_paint = True

    def _refresh_sidebar(self) -> None:
        if not self._is_standing:
            return
        summaries = self._ask(lambda: self._manager.sessions(limit=500)) or []
        self._sidebar.show(summaries, current=self._current, running=frozenset(self._talk.live), now=self._clock())

    def _refresh_title(self, session: Session | None) -> None:
        if not self._is_standing:
            return
        title = (clean_line(session.title, 200) if session else "") or "New conversation"
        done = "  ✓ done" if session and session.state == "done" else ""
        self._title.update(title + done)
        model = (
            self._talk.model.info.name
            if self._talk.model.info
            else ("no model" if self._talk.model.failure else "loading…")
        )
        self._model_name.update(clean_line(model, 60))
        is_done = session is not None and session.state == "done"
        self._composer.hold("This conversation is done · F4 reopens it" if is_done else None)

    def _session(self) -> Session | None:
        return self._ask(lambda: self._manager.session(self._current)) if self._current else None

    def _ask(self, question: Callable[[], T]) -> T | None:
        """Ask the store; what it cannot answer is told to the user."""
        try:
            return question()
        except SessionError as error:
            self._warn(str(error))
            return None

    def _warn(self, sentence: str) -> None:
        self.notify(clean(sentence), severity="error", timeout=5, markup=False)

    async def _show(self, session_id: str) -> None:
        """Put a conversation on the screen, painted from the store; make it resident in the background."""
        if session_id != self._current or self._composer.text:
            self._drafts[self._current] = self._composer.draft
        session = self._ask(lambda: self._manager.session(session_id)) if session_id else None
        self._current = session.id if session else UNSAVED
        messages = self._messages()
        live = self._talk.live.get(self._current)
        self._refresh_title(session)
        self._composer.clear_draft()
        self._composer.put_back(self._drafts.pop(self._current, ""))
        await self._transcript.show(messages, live, self._talk.notices.get(self._current))
        self._refresh_sidebar()
        self._needs_paint = True
        self.refresh_bindings()
        self.workers.cancel_group(self, "open")
        if session is None or live is not None or not messages:
            return
        self._talk.remember(session.id, messages)
        if self._talk.model.failure is None:
            self.readings.opening(self._monotonic(), queued=bool(self._talk.live))
            self._work(self._talk.open(session.id), "open")

    def _messages(self) -> list[Message]:
        return (self._ask(lambda: self._manager.messages(self._current)) or []) if self._current else []

    # --- what the workers say ---

    def on_model_event(self, message: ModelEvent) -> None:
        """Loading went on, succeeded or failed."""
        self._talk.apply_load(message.event)
        if isinstance(message.event, Loaded) and self._make_counter:
            self.run_worker(self._count_tokens(self._make_counter, message.event.info), exit_on_error=False)
        if isinstance(message.event, Failed):
            self.call_next(self._transcript.say, f"The model cannot be used. {message.event.message}")
        self._needs_paint = True
        self._refresh_title(self._session())

    async def _count_tokens(self, make_counter: MakeCounter, info: ModelInfo) -> None:
        """Let the box count; reading a vocabulary takes a moment that no key should wait for."""
        self._composer.count_with(await asyncio.to_thread(make_counter, info))

    def on_open_event(self, message: OpenEvent) -> None:
        """A history is being made resident."""
        self._talk.apply_open(message.session_id, message.event)
        self._needs_paint = True

    async def on_open_ended(self, message: OpenEnded) -> None:
        """A history is resident, or not: the next message then computes it."""
        self._talk.apply_open(message.session_id, None)
        self._needs_paint = True
        if message.failure and self._current == message.session_id and self._talk.model.failure is None:
            await self._transcript.say(f"{message.failure} The conversation is readable; a message tries again.")

    async def on_turn_event(self, message: TurnEvent) -> None:
        """A turn went on, on the screen or behind it."""
        is_first = not message.live.has_begun
        self._talk.apply_turn(message.live, message.event)
        self._needs_paint = True
        if is_first:
            self._refresh_title(self._session())
            self._refresh_sidebar()
        if isinstance(message.event, Prepared) and message.event.lost_characters:
            self.notify(lost_notice(message.event.lost_characters), severity="warning", markup=False)
        if isinstance(message.event, Finished):
            await self._end_turn(message.live, None)

    async def on_turn_ended(self, message: TurnEnded) -> None:
        """The engine is through with a turn, its KV written or not."""
        await self._end_turn(message.live, message.failure)

    async def _end_turn(self, live: LiveAnswer, failure: str | None) -> None:
        if not self._talk.end(live, failure) or not self._is_standing:
            return
        if live.session_id == self._current:
            messages = spoken(self._messages())
            await self._transcript.settle(messages, failure)
            is_kept = len(messages) > live.n_before and messages[-1].status != "failed"
            if failure and not (is_kept and messages[-1].role == "assistant"):
                self._composer.put_back(live.question)
        elif failure:
            self._drafts.setdefault(live.session_id, live.question)
            self._warn(f"In another conversation: {failure}")
        self._refresh_title(self._session())
        self._refresh_sidebar()
        self.refresh_bindings()

    def on_trouble(self, message: Trouble) -> None:
        """Something in the background went wrong."""
        self._warn(message.sentence)

    # --- what the user does ---

    async def on_draft_sent(self, message: DraftSent) -> None:
        """Send the draft, unless an answer is being written in this conversation."""
        session = self._session()
        if not message.text.strip():
            return
        if session and session.state == "done":
            self._warn("This conversation is done. F4 reopens it.")
            return
        if self._current in self._talk.live:
            self._warn("This conversation is being answered. Escape stops the answer.")
            return
        if session is None:
            session = self._ask(self._manager.new)
            if session is None:
                return
            self._talk.forget(UNSAVED)
            self._current = session.id
        live = self._talk.begin(session.id, message.text, len(spoken(self._messages())))
        self._composer.clear_draft()
        self._turn_workers[session.id] = self._work(self._talk.turn(live), "turns", exclusive=False)
        await self._transcript.add_question(live)
        self._refresh_sidebar()
        self.refresh_bindings()

    async def on_session_chosen(self, message: SessionChosen) -> None:
        """Resume a conversation."""
        self.screen_stack[0].remove_class("-show-sidebar")
        self._composer.focus()
        await self._show(message.session_id)

    async def on_trash_asked(self, message: TrashAsked) -> None:
        """Move a conversation to the trash, or take the last one out again."""
        session_id = message.session_id
        if session_id is None:
            if self._trashed:
                last = self._trashed.pop()
                self._ask(lambda: self._manager.restore(last))
                self._refresh_sidebar()
            return
        if session_id in self._talk.live:
            self._warn("This conversation is being answered. Stop the answer first.")
            return
        session = self._ask(lambda: self._manager.trash(session_id))
        if session is None:
            return
        self._trashed.append(session_id)
        self.notify(f"In the trash: {clean_line(session.title, 60)}\nU in the list takes it back.", markup=False)
        if session_id == self._current:
            await self._show(UNSAVED)
        self._refresh_sidebar()

    async def action_new(self) -> None:
        """Begin a conversation; it is stored with its first message."""
        self._talk.forget(UNSAVED)
        self._composer.focus()
        await self._show(UNSAVED)

    def action_stop(self) -> None:
        """Stop the answer, or the opening, of this conversation; a waiting message is taken back."""
        live = self._talk.live.get(self._current)
        if live is not None and live.is_queued:
            self._turn_workers[self._current].cancel()
            return
        if live is not None:
            live.stop_asked = True
        self._work(self._talk.stop(), "stop")

    def action_toggle_sidebar(self) -> None:
        """Show or hide the list; in a narrow window it lies over the conversation."""
        screen = self.screen_stack[0]
        name = "-show-sidebar" if screen.has_class("-narrow") else "-hide-sidebar"
        screen.toggle_class(name)
        if name == "-show-sidebar" and screen.has_class(name):
            self._sidebar.focus()
        elif not screen.has_class("-show-sidebar"):
            self._composer.focus()

    def action_fold_meters(self) -> None:
        """Fold the meters to one line, or unfold them."""
        self.screen_stack[0].toggle_class("-fold-meters")
        self._needs_paint = True

    def action_rename(self) -> None:
        """Ask for a new title."""
        if session := self._session():
            self.push_screen(RenameScreen(session.title), self._renamed)

    def _renamed(self, title: str | None) -> None:
        if title and self._current:
            self._refresh_title(self._ask(lambda: self._manager.rename(self._current, title)))
            self._refresh_sidebar()

    def action_toggle_done(self) -> None:
        """Mark this conversation as done, or reopen it."""
        if session := self._session():
            change = self._manager.reopen if session.state == "done" else self._manager.mark_done
            changed = self._ask(lambda: change(session.id))
            self._refresh_title(changed or session)
            self._refresh_sidebar()
            self.refresh_bindings()

    def action_help(self) -> None:
        """Show all keys."""
        self.push_screen(HelpScreen())

    def action_scroll_transcript(self, pages: int) -> None:
        """Scroll the conversation by a page while the composer has the focus."""
        if pages < 0:
            self._transcript.scroll_page_up()
        else:
            self._transcript.scroll_page_down()

    def action_scroll_to_start(self) -> None:
        """Show the first message."""
        self._transcript.action_scroll_home()

    def action_scroll_to_end(self) -> None:
        """Show the newest text and follow it."""
        self._transcript.action_scroll_end()

    async def action_copy_or_leave(self) -> None:
        """Copy what is selected; with nothing selected, the second press quits."""
        focused = self.focused
        own = focused.selected_text if isinstance(focused, TextArea | Input) else ""
        if selected := own or self.screen.get_selected_text():
            self.copy_to_clipboard(selected)
            self.screen.clear_selection()
            return
        now = self._monotonic()
        if now - self._quit_asked_at < QUIT_AGAIN_S:
            await self._quit()
            return
        self._quit_asked_at = now
        self.notify("Ctrl+C again quits.", timeout=QUIT_AGAIN_S, markup=False)

    async def action_leave(self) -> None:
        """Quit; a running answer is stopped first and kept."""
        await self._quit()

    async def _quit(self) -> None:
        if self._talk.live and not self._is_leaving:
            self._is_leaving = True
            self._work(self._leave_later(), "leave")
        else:
            self.exit()

    async def _leave_later(self) -> None:
        try:
            async with asyncio.timeout(STOP_WAIT_S):
                await self._talk.stop()
                await self._talk.all_over.wait()
        except TimeoutError:
            pass  # the text so far is journalled; waiting longer would hold the user
        self.exit()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only what can be done now."""
        if action == "stop":
            return self._current in self._talk.live or self.readings.activity in ("restore", "prefill")
        if action in ("rename", "toggle_done"):
            return self._current != UNSAVED
        return super().check_action(action, parameters)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The command palette: our verbs before Textual's own."""
        verbs = (
            ("New conversation", self.action_new),
            ("Rename", self.action_rename),
            ("Done or reopen", self.action_toggle_done),
            ("Stop the answer", self.action_stop),
            ("Show or hide the list", self.action_toggle_sidebar),
            ("Meters as panel or line", self.action_fold_meters),
            ("Keys", self.action_help),
        )
        for name, action in verbs:
            yield SystemCommand(name, (action.__doc__ or "").strip(), action)
        yield from super().get_system_commands(screen)
