"""Questions with numbered answers, and the lines that are asked for besides messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chatapp.plain.bridge import Bridge, Signal
from chatapp.plain.voice import Voice
from chatapp.texts import tr, tr_later

ANSWER = tr_later("Number: ")


@dataclass(frozen=True, slots=True)
class Way:
    """An answer: what it is called in the program, and the sentence that stands behind its number."""

    name: str
    sentence: str


class Asking:
    """Asks whoever sits there; where nobody does, each question stays without an answer."""

    def __init__(self, bridge: Bridge, voice: Voice) -> None:
        self._bridge = bridge
        self._voice = voice

    @property
    def can_ask(self) -> bool:
        """True if somebody sits there."""
        return self._bridge.reader.is_interactive

    async def choose(self, question: str, ways: Sequence[Way]) -> str | None:
        """Return the name of the way that is chosen by its number; None for an empty line, Ctrl+C or Ctrl+D."""
        if not self.can_ask:
            return None
        self._voice.say(question)
        for number, way in enumerate(ways, 1):
            self._voice.say(f"{number}. {way.sentence}")
        while line := await self.line(tr(ANSWER)):
            if line.isdecimal() and 1 <= int(line) <= len(ways):
                return ways[int(line) - 1].name
            self._voice.say(tr("Type a number from 1 to {n}, or nothing to cancel.").format(n=len(ways)))
        return None

    async def line(self, prompt: str, begin: str = "") -> str | None:
        """Return a line without white space around it; None if it is empty, or not answered."""
        if not self.can_ask:
            return None
        line = await self._bridge.line(prompt, begin, is_answer=True)
        return None if isinstance(line, Signal) else line.strip() or None
