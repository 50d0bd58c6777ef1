"""The loop of plain mode: a line is read, a command is done or a message answered, until the lines end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from chatapp.config import Settings
from chatapp.console import INTERRUPTED
from chatapp.plain.asking import Asking
from chatapp.plain.bridge import Bridge, Signal
from chatapp.plain.follow import Following
from chatapp.plain.holding import Holding
from chatapp.plain.lines import Gathering, Typed
from chatapp.plain.voice import Voice
from chatapp.slash import as_message, is_command
from chatapp.texts import tr
from models.engine import Engine, TurnStats
from models.errors import EngineError
from sessions.attachments import Part
from sessions.conversation import Draft, Session
from sessions.errors import BadRequest, SessionError
from sessions.manager import SessionManager

PROMPT, MORE = "> ", "... "
N_REMEMBERED = 200


@dataclass(slots=True)
class Repl:
    """What plain mode works with, and its state; the functions of `turns` and of the commands work on it.

    `find` returns the conversation whose id begins so. `current` is the conversation that messages go to, None for one
    that begins with the next message. `listed` are the ids of the last list, whose numbers commands take. `parts` are
    attached to the next message. `failed` says that something was not done, for the exit code of a pipe.
    """

    manager: SessionManager
    find: Callable[[str], Session]
    engine: Engine
    settings: Settings
    bridge: Bridge
    voice: Voice
    asking: Asking
    following: Following
    holding: Holding
    current: str | None = None
    listed: list[str] = field(default_factory=list)
    trashed: str | None = None
    parts: list[Part] = field(default_factory=list)
    last_stats: TurnStats | None = None
    shows_stats: bool = False
    notes: list[str] = field(default_factory=list)
    """What is to be said before the next line is read: it came about beside."""
    is_over: bool = False
    failed: bool = False

    def session(self) -> Session:
        """The conversation that messages go to. Raises `BadRequest` if it has not begun."""
        if self.current is None:
            raise BadRequest(
                tr("There is no conversation yet: your first message begins one, /open goes on with another.")
            )
        return self.manager.session(self.current)

    def begun(self) -> Session:
        """The same; one that has not begun begins."""
        if self.current is None:
            self.current = self.manager.new().id
        return self.session()

    def writable(self) -> Session:
        """The conversation that messages go to, to be changed. Raises `BadRequest` also while another window has it."""
        session = self.session()
        if reason := self.holding.why(session.id):
            raise BadRequest(reason)
        return session

    def named(self, text: str) -> Session:
        """Return the conversation that a number of the last list, or the beginning of an id, names.

        Raises `SessionError`.
        """
        if text.isdecimal() and 1 <= int(text) <= len(self.listed):
            return self.manager.session(self.listed[int(text) - 1])
        return self.find(text)

    def fail(self, sentence: str) -> None:
        """Say that something was not done."""
        self.failed = True
        self.voice.say(sentence)

    async def run(self) -> int:
        """Read and answer until the lines end; return the exit code."""
        from chatapp.plain.turns import send

        is_interactive = self.bridge.reader.is_interactive
        was_interrupted = False
        while not self.is_over:
            await self._say_notes()
            typed = await self._typed()
            if typed is Signal.END:
                break
            if typed is Signal.CLEARED:
                continue
            if typed is Signal.INTERRUPT:
                if was_interrupted or not is_interactive:
                    break
                was_interrupted = True
                self.voice.say(tr("Ctrl+C once more leaves, and so do Ctrl+D and /quit."))
                continue
            was_interrupted = False
            try:
                if typed.is_literal or not is_command(typed.text):
                    draft = Draft(typed.text)
                    await send(self, (draft if typed.is_literal else as_message(draft, typed.text)).text)
                else:
                    await self._command(typed.text)
            except (SessionError, EngineError) as error:
                self.fail(str(error))
            if self.following.was_interrupted and not is_interactive:
                break
        with contextlib.suppress(SessionError, EngineError):  # the text is stored; only KV was still to be written
            await self.following.settle(is_end=True)
        if not is_interactive and self.following.was_interrupted:
            return INTERRUPTED
        return int(self.failed and not is_interactive)

    async def _command(self, text: str) -> None:
        from chatapp.plain.verbs import find, perform

        found = find(text)
        if isinstance(found, str):
            self.fail(found)
        else:
            await perform(self, *found)

    async def _typed(self) -> Typed | Signal:
        """Return a message or a command, which may take several lines; empty ones are left out."""
        self.voice.end_waiting()
        gathering = Gathering()
        while True:
            # Whoever asks for the conversation gets it while nothing is typed that would then be refused.
            if gathering.has_begun:
                line = await self.bridge.line(MORE)
            else:
                line = await self.holding.keep(self.current, self.bridge.line(PROMPT))
            if line in (Signal.INTERRUPT, Signal.CLEARED) and gathering.has_begun:
                self.voice.say(tr("The lines so far are dropped."))
                gathering = Gathering()
            elif isinstance(line, Signal):
                return gathering.taken() if gathering.has_begun else line
            elif self.bridge.reader.is_literal:
                return Typed(line, is_literal=True)
            elif gathering.add(line):
                typed = gathering.taken()
                if typed.text.strip():
                    return typed
                gathering = Gathering()

    async def _say_notes(self) -> None:
        await self.following.settle()
        for note in self.notes:
            self.voice.hint(note)
        self.notes.clear()
