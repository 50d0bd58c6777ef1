"""What is done to whole conversations: their place in the list, title, task, tags, done or open, the trash."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from chatapp.safe import clean_line
from chatapp.texts import tr, tr_later
from chatapp.tui.stage import UNSAVED, Stage
from chatapp.tui.talk import told
from models.engine import Event
from sessions.conversation import Session

_TITLE_CELLS = 60
_RESTORED = tr_later("Back from the trash: {title}")
_LISTED = tr_later("Back on the list: {title}")
_TAKES_BACK = tr_later("U in the list takes it back.")


@dataclass(frozen=True, slots=True)
class _Undo:
    """What takes a change back, and what is said then; `{title}` in it is the conversation's."""

    session_id: str
    change: Callable[[], Session]
    words: str


class Upkeep:
    """Works on the highlighted conversation while the list has the focus, else on the one on the screen.

    Remembers what was trashed, archived and pinned, so that it can be taken back.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._undos: list[_Undo] = []

    def target(self) -> str:
        """The id of the conversation that verbs are about; `UNSAVED` for none."""
        stage = self._stage
        # Not `has_focus`: while the palette is open nothing of the window has it.
        is_in_list = stage.is_standing and stage.app.screen_stack[0].focused is stage.sidebar
        return (stage.sidebar.chosen or UNSAVED) if is_in_list else stage.current

    @property
    def is_in_trash(self) -> bool:
        """True if that conversation is in the trash."""
        session_id = self.target()
        session = self._stage.ask(lambda: self._stage.manager.session(session_id)) if session_id else None
        return session is not None and session.trashed_at is not None

    async def do(self, verb: str, session_id: str | None = None) -> None:
        """Do what a key or a command says, to a conversation or (None) the target."""
        session_id = session_id or self.target()
        if verb == "undo":
            await self._take_back()
            return
        session = self._stage.ask(lambda: self._stage.manager.session(session_id)) if session_id else None
        if session is None:
            return
        match verb:
            case "trash" if session.trashed_at is None:
                await self._trash(session)
            case "restore" if session.trashed_at is not None:
                said = tr(_RESTORED).format(title=_name(session))
                self._change(lambda: self._stage.manager.restore(session_id), said)
            case "delete" if session.trashed_at is not None:
                self._stage.converse(self._delete(session))
            case "pin":
                self._pin(session)
            case "archive":
                self._archive(session)
            case "done":
                self._toggle_done(session)
            case "title":
                self._ask_title(session)
            case "task":
                self._ask_task(session)
            case "tags":
                self._ask_tags(session)
            case _:
                pass  # a key of the list that does not fit the row, as it is by now

    # --- its place ---

    async def _trash(self, session: Session) -> None:
        stage = self._stage
        if session.id in stage.talk.live:
            stage.warn(tr("This conversation is being answered. Stop the answer first."))
            return
        if stage.ask(lambda: stage.manager.trash(session.id)) is None:
            return
        self._remember(session, stage.manager.restore, _RESTORED)
        said = tr("In the trash: {title}").format(title=_name(session))
        stage.tell(f"{said}\n{tr(_TAKES_BACK)}")
        await self._leave(session)

    def _pin(self, session: Session) -> None:
        manager = self._stage.manager
        is_pinned = session.pinned_at is not None
        change, back = (manager.unpin, manager.pin) if is_pinned else (manager.pin, manager.unpin)
        if self._change(lambda: change(session.id)):
            pinned, unpinned = tr_later("Pinned again: {title}"), tr_later("No longer pinned: {title}")
            self._remember(session, back, pinned if is_pinned else unpinned)

    def _archive(self, session: Session) -> None:
        manager = self._stage.manager
        is_archived = session.archived_at is not None
        change, back = (manager.unarchive, manager.archive) if is_archived else (manager.archive, manager.unarchive)
        said = tr(_LISTED) if is_archived else tr("In the archive: {title}")
        said = said.format(title=_name(session))
        if self._change(lambda: change(session.id), f"{said}\n{tr(_TAKES_BACK)}"):
            self._remember(session, back, tr_later("In the archive again: {title}") if is_archived else _LISTED)

    async def _delete(self, session: Session) -> None:
        from chatapp.tui.dialogs import Way, WaysScreen

        stage = self._stage
        if session.id in stage.talk.live:
            stage.warn(tr("This conversation is being answered. Stop the answer first."))
            return
        ways = [
            Way("keep", tr("Keep it"), tr("Nothing is deleted.")),
            Way(
                "delete",
                tr("Delete “{title}” for good").format(title=_name(session)),
                tr("Its text, its search words and its KV. No way back."),
            ),
        ]
        sentence = tr("Delete “{title}” for good? It cannot be taken back.").format(title=_name(session))
        if await stage.app.push_screen_wait(WaysScreen(tr("Delete for good"), sentence, ways)) != "delete":
            return
        if not stage.did(lambda: stage.manager.delete_forever(session.id)):
            return
        self._undos = [undo for undo in self._undos if undo.session_id != session.id]
        stage.forget(session.id)
        stage.tell(tr("Deleted for good: {title}").format(title=_name(session)))
        await self._leave(session)

    async def _leave(self, session: Session) -> None:
        """A conversation is gone from the list: what shows it shows a new one."""
        if session.id == self._stage.current:
            await self._stage.show(UNSAVED)
        self._stage.refresh()

    async def _take_back(self) -> None:
        if not self._undos:
            self._stage.warn(tr("There is nothing to take back."))
            return
        undo = self._undos.pop()
        if session := self._stage.ask(undo.change):
            self._stage.tell(tr(undo.words).format(title=_name(session)))
        self._stage.refresh()

    def _remember(self, session: Session, back: Callable[[str], Session], words: str) -> None:
        self._undos.append(_Undo(session.id, lambda: back(session.id), words))

    # --- what is written on it ---

    def _toggle_done(self, session: Session) -> None:
        manager = self._stage.manager
        change = manager.reopen if session.state == "done" else manager.mark_done
        self._change(lambda: change(session.id))

    def _ask_title(self, session: Session) -> None:
        from chatapp.tui.lines import TitleScreen

        def suggest() -> AsyncGenerator[Event, None]:
            return told(self._stage.manager.suggest_title(session.id))

        self._stage.app.push_screen(
            TitleScreen(session.title, suggest),
            lambda title: self._answered(title, lambda new: self._stage.manager.rename(session.id, new)),
        )

    def _ask_task(self, session: Session) -> None:
        from chatapp.tui.lines import LineScreen

        self._stage.app.push_screen(
            LineScreen(tr("Task line"), session.task, hint=tr("What this conversation is for, in one line")),
            lambda task: self._answered(task, lambda new: self._stage.manager.set_task(session.id, new)),
        )

    def _ask_tags(self, session: Session) -> None:
        from chatapp.tui.lines import LineScreen

        def retag(line: str) -> Session:
            tags = {word.removeprefix("#").lower() for word in line.split()} - {""}
            return self._stage.manager.tag(session.id, add=tags - set(session.tags), remove=set(session.tags) - tags)

        hint = tr("Words with spaces between them; #word in the search field finds them")
        self._stage.app.push_screen(
            LineScreen(tr("Tags"), " ".join(session.tags), hint=hint, can_be_empty=True),
            lambda line: self._answered(line, retag),
        )

    def _answered(self, line: str | None, change: Callable[[str], Session]) -> None:
        if line is not None:
            self._change(lambda: change(line))

    def _change(self, change: Callable[[], Session], said: str = "") -> bool:
        """Change something and show it; False, and a sentence, if that is not possible."""
        session = self._stage.ask(change)
        self._stage.refresh()
        if session is not None and said:
            self._stage.tell(said)
        return session is not None


def _name(session: Session) -> str:
    return clean_line(session.title, _TITLE_CELLS) or tr("New conversation")
