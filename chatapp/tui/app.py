"""The terminal window: one conversation in the middle, all of them on the left, the meters on the right."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from rich.console import Console
from textual import events
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.containers import Horizontal, Vertical
from textual.filter import LineFilter
from textual.screen import Screen
from textual.theme import Theme
from textual.widgets import Input, Static, TextArea

from chatapp.safe import clean, safe_stream
from chatapp.slash import as_message, is_command
from chatapp.takeover import LOOK_S
from chatapp.texts import tr, tr_later
from chatapp.tui import collecting
from chatapp.tui.branching import Branching
from chatapp.tui.chips import ChipLine
from chatapp.tui.commands import commands, find, perform
from chatapp.tui.copying import Copying
from chatapp.tui.desk import Desk, Tools
from chatapp.tui.footer import Footer
from chatapp.tui.gate import GATE
from chatapp.tui.hearing import Hearing, MakeCounter
from chatapp.tui.housekeeping import Housekeeping
from chatapp.tui.keymap import give_way, keymap
from chatapp.tui.leaving import Leaving
from chatapp.tui.limit import Limit
from chatapp.tui.live import Readings
from chatapp.tui.markdown_text import MarkdownText
from chatapp.tui.messages import (
    CountAsked,
    DraftSent,
    MessageVerbAsked,
    ModelEvent,
    MoreAsked,
    OpenEnded,
    OpenEvent,
    PartAsked,
    RowHighlighted,
    SearchClosed,
    SessionChosen,
    Trouble,
    TurnEnded,
    TurnEvent,
    VerbAsked,
)
from chatapp.tui.overview import Prices
from chatapp.tui.palette import command_palette, theme_palette, translated
from chatapp.tui.preferences import Preferences
from chatapp.tui.prefetch import Prefetch, Prefetcher
from chatapp.tui.prompting import Prompting
from chatapp.tui.reports import Reports
from chatapp.tui.searching import Searching
from chatapp.tui.sending import Sending
from chatapp.tui.stage import UNSAVED, Stage
from chatapp.tui.surroundings import Surroundings
from chatapp.tui.switching import Models, Switching
from chatapp.tui.talk import Talk
from chatapp.tui.taskcheck import TaskCheck
from chatapp.tui.theme import OWN, Themes
from chatapp.tui.typeahead import TypeAhead
from chatapp.tui.upkeep import Upkeep
from chatapp.tui.watching import WATCH_S, Watching
from chatapp.tui.welcome import Remember, Welcome
from models.engine import Finished, ModelInfo, Sampling
from sessions.manager import SessionManager

TICK_S = 0.25
"""How often the meters are painted."""
SIDEBAR_S = 30
"""How often the ages in the list are painted."""

TOO_SMALL = tr_later("The window needs 40 columns and 10 lines: make it larger.\n{quit} quits; nothing is lost.")


class ChatApp(App[None], inherit_bindings=False):
    """The window over a session manager.

    The model is loaded behind the first picture, so that keys are taken before it is there.
    Clocks are injected: `clock` for ages, `monotonic` for durations; so are the `tools` of the box, and what makes a
    token counter, lists models and knows the usual sampling of each. `sampling` wins over all of that.
    """

    CSS_PATH = "app.tcss"
    TITLE = "chatapp"
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (40, "-narrow"), (80, "-medium"), (100, "-wide"), (130, "-broad")]  # noqa: RUF012 - as in App
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (10, "-low"), (24, "-tall")]  # noqa: RUF012 - as in App
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", tr_later("Stop")),
        Binding("ctrl+n", "new", tr_later("New"), id="new"),
        Binding("ctrl+b", "toggle_sidebar", tr_later("List"), id="list"),
        Binding("ctrl+f", "search", tr_later("Search"), id="search"),
        Binding("f2", "rename", tr_later("Rename"), id="rename"),
        Binding("f3", "fold_meters", tr_later("Meters"), id="meters"),
        Binding("f4", "toggle_done", tr_later("Done"), id="done"),
        Binding("f5", "toggle_reasoning", tr_later("Reasoning"), id="reasoning"),
        Binding("f8", "take_over", tr_later("Take over"), id="takeover"),
        Binding("f9", "why", tr_later("Why slow?"), id="why"),
        Binding("f1", "help", tr_later("Help"), id="help"),
        Binding("ctrl+p", "command_palette", tr_later("Commands"), priority=True, id="palette"),
        Binding("ctrl+q", "leave", tr_later("Quit"), priority=True, id="quit"),
        Binding("ctrl+c", "copy_or_leave", show=False, priority=True, system=True),
        Binding("ctrl+home", "scroll_to_start", tr_later("To the first message"), show=False, id="start"),
        Binding("ctrl+end", "scroll_to_end", tr_later("To the newest text"), show=False, id="end"),
        Binding("alt+home", "scroll_to_answer", tr_later("To where the answer begins"), show=False, id="answer"),
        Binding("alt+up", "mark(-1)", tr_later("Mark the message before"), show=False, id="previous"),
        Binding("alt+down", "mark(1)", tr_later("Mark the message behind"), show=False, id="next"),
    ]

    def __init__(
        self,
        manager: SessionManager,
        *,
        sampling: Sampling | None = None,
        session_id: str | None = None,
        make_counter: MakeCounter | None = None,
        models: Models | None = None,
        remember: Remember | None = None,
        prices: Prices | None = None,
        recommend: Callable[[ModelInfo], Sampling] = lambda info: info.sampling,
        may_read_ahead: Callable[[], bool] | None = None,
        prefetcher: Prefetcher | None = None,
        tools: Tools = Tools(),  # noqa: B008 - frozen
        surroundings: Surroundings = Surroundings(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        # Before the widgets are styled: a later change would style each of them again.
        for theme in OWN:
            self.register_theme(theme)
        self._themes = Themes(surroundings)
        self.theme = self._themes.first(self.available_themes)
        self.keys = keymap(surroundings.keys)
        self.set_keymap(self.keys.bindings)
        # The report of a crash quotes whatever the program held then.
        self.error_console = Console(file=safe_stream(sys.stderr), color_system=None, markup=False, highlight=False)
        talk = Talk(manager, sampling, recommend=recommend, post=self.post_message, monotonic=monotonic)
        self.stage: Stage = Stage(
            self,
            manager,
            talk,
            session_id=session_id,
            prices=prices,
            keys=self.keys,
            clock=clock,
            monotonic=monotonic,
        )
        self._copying = Copying(self.stage, surroundings, super().copy_to_clipboard)
        self.switching: Switching = Switching(self.stage, models)
        self.welcome: Welcome = Welcome(
            self.stage, self.switching, self.keys, remember=remember, folder=surroundings.folder
        )
        self.preferences: Preferences = Preferences(self.stage)
        self._limit = Limit(self.stage)
        self.desk: Desk = Desk(self, self._limit, tools)
        self._tasks = TaskCheck(self.stage)
        self._sending = Sending(self.stage, self._limit, self._tasks, self.switching)
        self._hearing = Hearing(self.stage, self.switching, self._limit, make_counter)
        self.upkeep: Upkeep = Upkeep(self.stage)
        self.branching: Branching = Branching(self.stage, self._sending, surroundings.terminal)
        self.searching: Searching = Searching(self.stage, self.stage.beside)
        self._housekeeping = Housekeeping(self.stage, self.stage.beside)
        self.prompting: Prompting = Prompting(self.stage)
        self.reports: Reports = Reports(self.stage, self.stage.beside, tools.folder)
        self.watching = Watching(self.stage)
        self.stage.pauses = (self.watching.why, *self.stage.pauses)
        self._leaving = Leaving(self.stage)
        self._ahead = TypeAhead(self.stage, may_read_ahead)
        self._prefetch = Prefetch(self.stage, prefetcher)

    # --- the window ---

    def compose(self) -> ComposeResult:
        """Title, list, conversation, composer, meters, footer."""
        stage = self.stage
        with Horizontal(id="title"):
            yield stage.title
            yield stage.model_name
        yield stage.task
        with Horizontal(id="main"):
            yield stage.listing
            with Vertical(id="center"):
                yield stage.transcript
                yield self.desk.completing.widget
                yield stage.editing.hint
                yield stage.leasing.hint
                yield stage.composer.bar
                yield stage.composer
            yield stage.meters
        yield stage.meter_line
        yield Footer(show_command_palette=False)
        yield Static(clean(self.keys.fill(tr(TOO_SMALL))), id="too-small", markup=False)

    async def on_mount(self) -> None:
        """Paint what is stored, then load the model behind the user's back."""
        self.set_interval(TICK_S, self.stage.tick)
        self.set_interval(SIDEBAR_S, self.stage.refresh_sidebar)
        self.set_interval(WATCH_S, self.watching.look)
        self.set_interval(LOOK_S, self.stage.leasing.look)
        for field in (self.stage.composer, self.stage.listing.field):
            give_way(field, self.keys)
        self.theme_changed_signal.subscribe(self, self._keep_theme)
        for problem in (*self.keys.problems, *self._themes.problems):
            self.stage.warn(problem)
        self.stage.composer.focus()
        await self.stage.show(self.stage.current)
        # Not before the first picture: on two cores a loading model would hold it up.
        self.call_after_refresh(self._load)

    def _keep_theme(self, theme: Theme) -> None:
        if overruled := self._themes.keep(theme.name):
            self.stage.warn(overruled)

    def on_key(self, event: events.Key) -> None:
        """Letters typed while the text has the focus are meant for the box, but for the verbs of a marked message."""
        stage = self.stage
        if event.is_printable and event.character and self.focused is stage.transcript:
            if stage.transcript.is_verb(event.key):
                return
            event.stop()
            stage.composer.focus()
            stage.composer.insert(event.character)

    async def on_unmount(self) -> None:
        """Let go of the store's second connection, and of what this window may write in."""
        self.stage.leasing.close()
        await self.stage.beside.close()

    def on_resize(self) -> None:
        """Paint the meters in their new place."""
        self.stage.needs_paint = True

    def get_line_filters(self) -> Sequence[LineFilter]:
        """The rows' last stop before the terminal."""
        return [*super().get_line_filters(), GATE]

    def copy_to_clipboard(self, text: str) -> None:
        """Copy what can do nothing where it is pasted, by a way that this terminal takes."""
        self._clipboard = clean(text)
        self._copying.copy(self._clipboard)

    def _load(self) -> None:
        collecting.begin()
        self.set_interval(collecting.QUIET_S, self._rest)
        self.stage.work(self.stage.talk.load(self.stage.current or None), "load")
        self.welcome.begin()
        self._housekeeping.begin()

    def _rest(self) -> None:
        if not self.stage.talk.live:
            collecting.rest()

    @property
    def readings(self) -> Readings:
        """The live numbers of the conversation on the screen."""
        return self.stage.readings

    # --- what the workers say ---

    def on_model_event(self, message: ModelEvent) -> None:
        """Loading went on, succeeded or failed."""
        self._hearing.model(message.event)
        self._ahead.changed()

    def on_open_event(self, message: OpenEvent) -> None:
        """A history is being made resident."""
        self._hearing.opening(message.session_id, message.event)

    async def on_open_ended(self, message: OpenEnded) -> None:
        """A history is resident, or not."""
        await self._hearing.opened(message.session_id, message.failed)
        self._ahead.changed()

    def on_count_asked(self, message: CountAsked) -> None:
        """Count a draft that no key can wait for."""
        self._hearing.count(message)

    async def on_turn_event(self, message: TurnEvent) -> None:
        """A turn went on, on the screen or behind it."""
        await self._sending.take(message.live, message.event)
        if isinstance(message.event, Finished):
            self._ahead.changed()
        self._hearing.follow_model(message.event)

    async def on_turn_ended(self, message: TurnEnded) -> None:
        """The engine is through with a turn, its KV written or not."""
        await self._sending.end(message.live, message.failed)
        self._ahead.changed()

    def on_trouble(self, message: Trouble) -> None:
        """Something in the background went wrong."""
        self.stage.warn(message.sentence)

    # --- what the user does ---

    async def on_draft_sent(self, message: DraftSent) -> None:
        """Send the draft, or do what it says."""
        if is_command(message.typed):
            await self._do(message.draft.text, message.typed)
        elif names := self.desk.named_files(message.typed):
            self.stage.work(self._attach_and_send(names), "attach", exclusive=False)
        else:
            await self._sending.send(as_message(message.draft, message.typed), message.typed)

    async def _do(self, command: str, typed: str) -> None:
        found = find(self, command)
        if isinstance(found, str):
            self.stage.warn(found)
            return
        self.stage.composer.take(typed)
        await perform(self, *found)

    async def _attach_and_send(self, names: Sequence[str]) -> None:
        composer = self.stage.composer
        if await self.desk.attach_named(names):
            await self._sending.send(as_message(composer.content, composer.text), composer.text)

    def on_chip_line_viewed(self, message: ChipLine.Viewed) -> None:
        """Show what a chip of the draft stands for."""
        self.desk.view(message.chip)

    def on_chip_line_removed(self, message: ChipLine.Removed) -> None:
        """Take a chip out of the draft."""
        self.stage.composer.remove_chip(message.mark)

    async def on_part_asked(self, message: PartAsked) -> None:
        """Count what a chip stands for, while nothing waits for it."""
        self.stage.work(self.desk.count(message), "parts", exclusive=False)

    def on_text_area_changed(self, message: TextArea.Changed) -> None:
        """Keep the draft on disk; the judge of the task policy starts with its first key."""
        if message.text_area is self.stage.composer:
            self.desk.save_later()
            self._ahead.changed()
            if message.text_area.document.end != (0, 0):
                self._tasks.warm_up()

    def action_edit_draft(self) -> None:
        """Open the draft in the editor that VISUAL or EDITOR names."""
        self.desk.edit()

    async def on_session_chosen(self, message: SessionChosen) -> None:
        """Resume a conversation, at one of its messages or at its end."""
        self.screen_stack[0].remove_class("-show-sidebar")
        stage, at = self.stage, message.message_id
        stage.composer.focus()
        await stage.show(message.session_id, at=at)
        if at is not None and stage.current == message.session_id:
            if stage.transcript.marked is None:  # it is on a branch that is not shown
                await self.branching.show(at)
            stage.transcript.focus()

    async def on_verb_asked(self, message: VerbAsked) -> None:
        """Do something to a conversation of the list, or to the list."""
        if message.verb == "search":
            self.action_search()
        elif message.verb == "view":
            self.stage.overview.next_view()
        else:
            await self.upkeep.do(message.verb, message.session_id)

    def on_markdown_text_link_chosen(self, message: MarkdownText.LinkChosen) -> None:
        """Show the address of a clicked link."""
        self.branching.offer_links([message.address])

    async def on_message_verb_asked(self, message: MessageVerbAsked) -> None:
        """Do something with the marked message."""
        await self.branching.do(message.verb)

    def on_row_highlighted(self, message: RowHighlighted) -> None:
        """Tell what is known of a conversation of the list."""
        self.stage.overview.highlight(message.session_id)
        self._prefetch.highlighted(message.session_id)
        self.refresh_bindings()

    def on_more_asked(self, _: MoreAsked) -> None:
        """The end of the list is near."""
        self.stage.overview.more()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search with each key."""
        if event.input is self.stage.listing.field:
            self.searching.changed()

    def on_search_closed(self, _: SearchClosed) -> None:
        """Show the list again."""
        self.searching.close()

    def action_search(self) -> None:
        """Search all conversations while you type."""
        screen = self.screen_stack[0]
        screen.remove_class("-hide-sidebar")
        screen.set_class(screen.has_class("-narrow"), "-show-sidebar")
        self.searching.open()

    async def action_mark(self, step: int) -> None:
        """Mark a message of the conversation, for the verbs that are keys then."""
        # At once: the next key may be a verb already.
        self.screen_stack[0].set_focus(self.stage.transcript)
        await self.stage.transcript.mark(step)

    async def action_new(self) -> None:
        """Begin a conversation; it is stored with its first message."""
        self.stage.talk.forget(UNSAVED)
        self.stage.composer.focus()
        await self.stage.show(UNSAVED)

    def action_stop(self) -> None:
        """Stop the answer, or the opening, of this conversation; a waiting message is taken back; edit no more."""
        if self.stage.editing.question_id is not None:
            self.stage.editing.give_up()
        else:
            self._sending.stop()

    def action_toggle_sidebar(self) -> None:
        """Show or hide the list; in a narrow window it lies over the conversation."""
        screen = self.screen_stack[0]
        name = "-show-sidebar" if screen.has_class("-narrow") else "-hide-sidebar"
        screen.toggle_class(name)
        if name == "-show-sidebar" and screen.has_class(name):
            self.stage.sidebar.focus()
        elif not screen.has_class("-show-sidebar"):
            self.stage.composer.focus()

    def action_fold_meters(self) -> None:
        """Fold the meters to one line, or unfold them."""
        self.screen_stack[0].toggle_class("-fold-meters")
        self.stage.needs_paint = True

    def action_why(self) -> None:
        """Explain where the time of an answer went."""
        from chatapp.tui.whyscreen import show_why

        show_why(self.stage)

    async def action_rename(self) -> None:
        """Ask for a new title."""
        await self.upkeep.do("title")

    def action_take_over(self) -> None:
        """Ask the other window for this conversation."""
        self.stage.leasing.ask_for_it()

    async def action_toggle_done(self) -> None:
        """Mark this conversation as done, or reopen it."""
        await self.upkeep.do("done")

    def action_toggle_reasoning(self) -> None:
        """Show the whole reasoning of all answers, or fold it."""
        self.stage.transcript.toggle_reasoning()

    def action_help(self) -> None:
        """Show all keys, and what is known of the model."""
        from chatapp.tui.screens import HelpScreen

        self.push_screen(HelpScreen(self.stage.talk.model.info, self.keys))

    def action_scroll_transcript(self, pages: int) -> None:
        """Scroll the conversation by a page while the composer has the focus."""
        if pages < 0:
            self.stage.transcript.scroll_page_up()
        else:
            self.stage.transcript.scroll_page_down()

    def action_scroll_to_start(self) -> None:
        """Show the first message."""
        self.stage.transcript.action_scroll_home()

    def action_scroll_to_end(self) -> None:
        """Show the newest text and follow it."""
        self.stage.transcript.action_scroll_end()

    async def action_scroll_to_answer(self) -> None:
        """Show where the marked or the last answer begins."""
        await self.stage.transcript.to_answer()

    def action_copy_or_leave(self) -> None:
        """Copy what is selected; with nothing selected, the second press quits."""
        self._leaving.copy_or_leave()

    def action_leave(self) -> None:
        """Quit; a running answer is stopped first and kept."""
        self._leaving.leave()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only what can be done now."""
        if action == "stop":
            is_editing = self.stage.editing.question_id is not None
            is_busy = self.stage.current in self.stage.talk.live or self.readings.activity in ("restore", "prefill")
            return is_editing or is_busy
        if action == "take_over":
            return self.stage.leasing.is_reading
        if action == "toggle_reasoning":
            return self.stage.transcript.has_reasoning
        if action in ("rename", "toggle_done"):
            return self.upkeep.target() != UNSAVED
        return super().check_action(action, parameters)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The command palette: our verbs before Textual's own."""
        yield from commands(self)
        yield from translated(super().get_system_commands(screen))

    def action_command_palette(self) -> None:
        """Ask for a command, unless that is being asked already."""
        if not isinstance(self.screen, CommandPalette):
            self.push_screen(command_palette())

    def search_themes(self) -> None:
        """Ask for a theme."""
        self.push_screen(theme_palette())
