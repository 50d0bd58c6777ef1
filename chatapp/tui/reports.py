"""What is asked about conversations and shown in windows of their own, and their way to files and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from chatapp.safe import clean, clean_line
from chatapp.texts import tr
from chatapp.tui import words
from chatapp.tui.beside import Beside
from chatapp.tui.stage import Stage
from sessions.errors import SessionError

if TYPE_CHECKING:
    from sessions.conversations import Conversations
    from sessions.statistics import Key, Statistics

T = TypeVar("T")
_BY_MODEL: tuple[Key, ...] = ("model",)
_BY_DAY: tuple[Key, ...] = ("day",)


def _statistics(them: Conversations) -> tuple[Statistics, Statistics]:
    return them.statistics(_BY_MODEL), them.statistics(_BY_DAY)


class Reports:
    """Asks over the second connection, so that no key waits. `folder` is what paths are taken from."""

    def __init__(self, stage: Stage, beside: Beside, folder: Path) -> None:
        self._stage = stage
        self._beside = beside
        self._folder = folder

    def cost(self) -> None:
        """Show what the conversation on the screen costs."""
        self._stage.converse(self._cost())

    def statistics(self) -> None:
        """Show how fast answers came, and what of their prompts was reused."""
        from chatapp.tui.statscreen import StatisticsScreen

        self._stage.app.push_screen(StatisticsScreen(lambda: self._beside.ask(_statistics)))

    def export(self, name: str) -> None:
        """Write the conversation on the screen to a new file."""
        self._stage.work(self._export(name), "transfer")

    def take_in(self, name: str) -> None:
        """Add the conversations of a file."""
        self._stage.work(self._import(name), "transfer", exclusive=False)

    async def _cost(self) -> None:
        from chatapp.tui.costscreen import CostScreen

        stage = self._stage
        session = stage.session()
        if session is None:
            return
        info = stage.talk.model.info
        is_own = info is not None and session.model is not None and info.weights == session.model.weights
        n_ctx = session.n_ctx or (info.n_ctx if info and is_own else None)
        per_token = info.kv_bytes_per_token if info and is_own else None
        try:
            cost = await self._beside.ask(lambda them: them.cost(session.id, n_ctx=n_ctx, kv_bytes_per_token=per_token))
        except SessionError as error:
            stage.warn(str(error))
            return
        texts = {message.id: message.text for message in stage.messages()}
        if await stage.app.push_screen_wait(CostScreen(session.title, cost, texts)) is not True or cost.heavy is None:
            return
        left_out = cost.heavy.question_id
        if left_out is None:
            return
        fork = stage.ask(lambda: stage.manager.fork(session.id, without=[left_out]))
        if fork is not None:
            await stage.show(fork.id)
            stage.tell(tr("This is the fork without that turn; the old conversation is in the list."))

    async def _export(self, name: str) -> None:
        stage = self._stage
        session_id = stage.current

        def write(them: Conversations) -> Path:
            from sessions.filing import names_folder

            return them.export(session_id, self._folder / Path(name).expanduser(), is_folder=names_folder(name))

        if (path := await self._told(write)) is not None:
            stage.tell(tr("Written: {path}").format(path=clean_line(str(path), 200)))

    async def _import(self, name: str) -> None:
        stage = self._stage
        stage.tell(tr("Reading {name}…").format(name=clean_line(name, 80)))
        found = await self._told(lambda them: them.import_from(self._folder / Path(name).expanduser()))
        if found is None or not stage.is_standing:
            return
        counts = found.counts
        said = [(tr("{n} added"), counts["added"]), (tr("{n} already there"), counts["there"])]
        said += [
            (text, n) for text, n in ((tr("{n} empty"), counts["empty"]), (tr("{n} failed"), counts["failed"])) if n
        ]
        listed = ", ".join(text.format(n=words.count(n)) for text, n in said)
        sentence = f"{clean_line(name, 80)}: {listed}."
        if found.reason:
            stage.warn(f"{sentence} {clean(found.reason)}")
        else:
            stage.tell(sentence)
        stage.refresh_sidebar()

    async def _told(self, question: Callable[[Conversations], T]) -> T | None:
        """Ask; what cannot be done is told."""
        try:
            return await self._beside.ask(question)
        except SessionError as error:
            self._stage.warn(str(error))
        except (OSError, RuntimeError) as error:
            self._stage.warn(tr("That file cannot be used ({reason}): choose another place.").format(reason=error))
        return None
