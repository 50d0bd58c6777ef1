"""What the window shows now: one conversation, its title, the list of all and the meters."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from textual.app import App
from textual.content import Content
from textual.widgets import Static
from textual.worker import Worker

from chatapp.safe import clean, clean_line
from chatapp.texts import tr
from chatapp.tui.beside import Beside
from chatapp.tui.composer import Composer
from chatapp.tui.drafts import Drafts
from chatapp.tui.editing import Editing
from chatapp.tui.keymap import Keymap
from chatapp.tui.leasing import Leasing
from chatapp.tui.listrows import MUTED, title_of
from chatapp.tui.live import Readings
from chatapp.tui.meterline import one_line
from chatapp.tui.meters import Meters
from chatapp.tui.overview import Overview, Prices
from chatapp.tui.readouts import context_share
from chatapp.tui.sidebar import Library
from chatapp.tui.talk import Talk
from chatapp.tui.transcript import Transcript
from sessions.conversation import Message, Session
from sessions.errors import SessionError
from sessions.lease import Leases
from sessions.manager import SessionManager

UNSAVED = ""
"""The id, within the window only, of a conversation that has no message yet."""

T = TypeVar("T")


class Stage:
    """Owner of the widgets, of which conversation they show, and of the drafts of the others.

    Clocks are injected: `clock` for ages, `monotonic` for durations.
    """

    def __init__(
        self,
        app: App[None],
        manager: SessionManager,
        talk: Talk,
        *,
        session_id: str | None,
        prices: Prices | None,
        keys: Keymap,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self.app = app
        self.manager = manager
        self.talk = talk
        self.keys = keys
        self.monotonic = monotonic
        self.current = session_id or UNSAVED
        leases = Leases(manager.leases_dir)
        self.leasing = Leasing(self, leases)
        self.drafts = Drafts(manager, leases, self.warn)
        self._warned = ""
        self._held: dict[str, str] = {}  # conversations that take no message, and why
        self.pauses: tuple[Callable[[str], str | None], ...] = (self.leasing.why,)
        """Each says why nothing is sent to a conversation for a while, though the box takes a draft."""
        self.needs_paint = True
        self.title = Static("", id="title-text", markup=False)
        self.model_name = Static("", id="title-model", markup=False)
        self.task = Static("", id="task", markup=False)
        self.listing = Library()
        self.sidebar = self.listing.list
        self.transcript = Transcript(lambda shown: self.ask(lambda: manager.versions(shown)) or {}, keys)
        self.composer = Composer()
        self.editing = Editing(self.composer)
        self.meters = Meters()
        self.meter_line = Static("", id="meter-line", markup=False)
        self.now = clock
        self.beside = Beside(manager.beside)
        self.overview = Overview(
            self.listing,
            fetch=lambda *wanted, **limits: self.ask(lambda: manager.sessions(*wanted, **limits)),
            work=self.work,
            beside=self.beside,
            prices=prices,
            clock=clock,
        )
        self._dialog: Worker[object] | None = None

    @property
    def is_standing(self) -> bool:
        """False while the window is being taken down, when late messages and timers find no widgets."""
        return self.app.is_running and self.composer.is_attached

    @property
    def readings(self) -> Readings:
        """The live numbers of the conversation on the screen."""
        return self.talk.readings(self.current)

    def session(self) -> Session | None:
        """The conversation on the screen, None for one without a message."""
        return self.ask(lambda: self.manager.session(self.current)) if self.current else None

    def messages(self) -> list[Message]:
        """The stored messages of the conversation on the screen."""
        return (self.ask(lambda: self.manager.messages(self.current)) or []) if self.current else []

    def ask(self, question: Callable[[], T]) -> T | None:
        """Ask the store; what it cannot answer is told to the user."""
        try:
            return question()
        except SessionError as error:
            self.warn(str(error))
            return None

    def did(self, change: Callable[[], object]) -> bool:
        """Change something in the store; False, and a sentence for the user, if that is not possible."""
        try:
            change()
        except SessionError as error:
            self.warn(str(error))
            return False
        return True

    def save_draft(self) -> None:
        """Save what is in the box, which may be nothing; a question that is being edited is no draft.

        A message that is not stored yet stays the draft, as long as there is no other.
        """
        if not self.composer.is_attached or self.editing.question_id is not None:
            return
        live, draft = self.talk.live.get(self.current), self.composer.content
        if draft.text.strip() or live is None or live.has_begun:
            self.drafts.keep(self.current, draft)

    def warn(self, sentence: str) -> None:
        """Tell the user that something went wrong."""
        self.app.notify(clean(sentence), severity="error", timeout=5, markup=False)

    def warn_once(self, sentence: str) -> None:
        """The same for what is tried again and again: not twice in a row."""
        if sentence != self._warned:
            self._warned = sentence
            self.warn(sentence)

    def tell(self, sentence: str) -> None:
        """Tell the user that something was done."""
        self.app.notify(clean(sentence), markup=False)

    def work(self, body: Coroutine[Any, Any, None], group: str, *, exclusive: bool = True) -> Worker[None]:
        """Run beside the widgets; bodies report their failures themselves."""
        return self.app.run_worker(body, group=group, exclusive=exclusive, exit_on_error=False)

    @property
    def is_conversing(self) -> bool:
        """True while the user is asked something, or a draft is looked at before it is sent."""
        return self._dialog is not None and not self._dialog.is_finished

    def converse(self, body: Coroutine[Any, Any, object]) -> None:
        """Run what asks the user something. One at a time: what comes while a dialog is open is dropped."""
        if self.is_conversing:
            body.close()
        else:
            self._dialog = self.app.run_worker(body, group="dialog", exit_on_error=False)

    # --- painting ---

    def tick(self) -> None:
        """Paint the meters, if anything can have changed."""
        if not self.is_standing:
            return
        now = self.monotonic()
        readings = self.readings
        readings.sample(now)
        if not (self.needs_paint or readings.activity not in ("idle", "failed") or self.talk.model.info is None):
            return
        self.needs_paint = False
        self.composer.say_context(context_share(readings.context_tokens, self.talk.model.info))
        if self.meters.display:
            self.meters.show(readings, self.talk.model, now)
        if self.meter_line.display:
            line = one_line(readings, self.talk.model, now, self.app.size.width - 4)
            self.meter_line.update(line, layout=False)

    def refresh_sidebar(self) -> None:
        """Bring the list up to date."""
        if self.is_standing:
            self.overview.refresh(self.current, frozenset(self.talk.live))

    def refresh_title(self, session: Session | None) -> None:
        """Bring the title line up to date, and whether the box takes text."""
        if not self.is_standing:
            return
        title = title_of(session) if session else tr("New conversation")
        tags = "".join(f" #{clean_line(tag, 40)}" for tag in session.tags) if session else ""
        self.title.update(Content.assemble(clean(title), _mark(session), (" " + tags if tags else "", MUTED)))
        task = clean_line(session.task, 300) if session else ""
        self.task.update(Content.assemble((tr("task") + " ", MUTED), task))
        self.task.display = task not in ("", title)
        self.model_name.update(clean_line(self._model_of(session), 60))
        reason = self.why_held(session)
        is_paused = reason is not None and reason == self.paused(self.current)
        self.composer.hold(reason, takes_text=is_paused)
        self.leasing.say(reason if is_paused else None)

    def _model_of(self, session: Session | None) -> str:
        """The name of the conversation's model: of the loaded one, unless it has another."""
        info, failure = self.talk.model.info, self.talk.model.failure
        own = session.model if session else None
        if own and not failure and not (info and info.weights == own.weights):
            return own.name
        return tr("no model") if failure else info.name if info else tr("loading…")

    def why_held(self, session: Session | None) -> str | None:
        """Why a conversation takes no message, None if it does."""
        if session is not None and session.trashed_at is not None:
            return self.keys.fill(tr("This conversation is in the trash · {palette} restores it"))
        if session is not None and session.state == "done":
            return self.keys.fill(tr("This conversation is done · {done} reopens it"))
        return (self._held.get(session.id) or self.paused(session.id)) if session else None

    def paused(self, session_id: str) -> str | None:
        """Why nothing is sent to a conversation for a while, None if it may be, or is closed anyway."""
        if session_id in self._held:
            return None
        return next(filter(None, (pause(session_id) for pause in self.pauses)), None)

    def hold(self, session_id: str, reason: str) -> None:
        """Let a conversation take no message until it is released."""
        self._held[session_id] = reason
        self.refresh()

    def release(self, session_id: str) -> None:
        """Let a conversation take messages again."""
        if self._held.pop(session_id, None):
            self.refresh()

    def refresh(self) -> None:
        """Bring title, list and keys up to date."""
        self.refresh_title(self.session())
        self.refresh_sidebar()
        if self.is_standing:
            self.app.refresh_bindings()

    # --- which conversation ---

    async def show(self, session_id: str, *, at: int | None = None) -> None:
        """Put a conversation on the screen, painted from the store; make it resident in the background.

        `at` is a message that is marked and scrolled to.
        """
        if session_id != self.current:
            self.editing.give_up()
        if session_id != self.current or self.composer.text:
            self.save_draft()
        session = self.ask(lambda: self.manager.session(session_id)) if session_id else None
        self.current = session.id if session else UNSAVED
        self.composer.clear_draft()
        self.leasing.enter(self.current)
        self.composer.put_back(self.drafts.opened(self.current))
        await self.show_messages(at=at)

    async def show_messages(self, *, at: int | None = None) -> None:
        """Paint the branch that is shown of the conversation on the screen; make it resident in the background."""
        session = self.session()
        messages = self.messages()
        live = self.talk.live.get(self.current)
        self.refresh_title(session)
        await self.transcript.show(messages, live, self.talk.notices.get(self.current), at=at)
        self.refresh_sidebar()
        self.needs_paint = True
        self.app.refresh_bindings()
        self.app.workers.cancel_group(self.app, "open")
        if session is None or live is not None or not messages:
            return
        self.talk.remember(session.id, messages)
        # A conversation with a model of its own may have one although the usual one cannot be used.
        is_read_only = session.id in self._held or self.paused(session.id) is not None
        if not is_read_only and (self.talk.model.failure is None or session.model is not None):
            self.make_resident(session.id)

    def make_resident(self, session_id: str, *, force: bool = False) -> None:
        """Bring a conversation's history into the context, behind the user's back; see `SessionManager.open`."""
        self.talk.readings(session_id).opening(self.monotonic(), queued=bool(self.talk.live))
        self.work(self.talk.open(session_id, force=force), "open")

    def forget(self, session_id: str) -> None:
        """A conversation was deleted for good: nothing of it stays in the window."""
        self.talk.forget(session_id)
        self.talk.notices.pop(session_id, None)
        self.drafts.forget(session_id)

    def adopt(self, session_id: str) -> None:
        """What is on the screen, a conversation without a message, has a row from now on."""
        self.talk.forget(UNSAVED)
        self.current = session_id
        self.leasing.enter(session_id)
        self.refresh()


def _mark(session: Session | None) -> str:
    """What is to be known of a conversation, behind its title."""
    if session is None:
        return ""
    marks = ["✓ " + tr("done")] if session.state == "done" else []
    if session.trashed_at:
        marks.append(tr("in the trash"))
    elif session.archived_at:
        marks.append(tr("archived"))
    return "".join("  " + mark for mark in marks)
