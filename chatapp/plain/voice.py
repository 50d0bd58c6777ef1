"""What plain mode says: answers and lists on stdout, sentences about them on stderr, each on lines of its own.

No cursor is moved and nothing is taken back: a screen reader, a log and a line printer get the same text.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable

from chatapp.console import PHASES, print_text
from chatapp.safe import clean
from chatapp.texts import tr
from models.engine import Event, Progress

PROGRESS_AFTER_S = 2.0
"""What is over before that needs no word."""
PROGRESS_EVERY_S = 5.0
_UNIT = re.compile(r"\n|[.!?…:;][\"'”’)\]*_`]*\s+|[。！？]")
_LONGEST_UNIT = 240
"""Characters behind which a text without ends of sentences is said, too."""
_QUIET, _NORMAL = "\x1b[2m", "\x1b[0m"


class Voice:
    """Owner of both streams. On a terminal an answer comes by lines and sentences, so that each is read as a whole.

    Into a pipe it goes as it was written. `has_colour` sets sentences off from answers, where they are on a terminal.
    """

    def __init__(self, *, has_colour: bool, monotonic: Callable[[], float]) -> None:
        self._is_shown = sys.stdout.isatty()
        self._is_watched = sys.stderr.isatty()
        self._has_colour = has_colour and self._is_watched
        self._monotonic = monotonic
        self._held = self._aside = ""
        self._is_at_start = True
        self._next_progress: float | None = None

    # --- sentences ---

    def say(self, sentence: str) -> None:
        """Say a sentence on lines of its own."""
        self.end_line()
        self._say(sentence)

    def _say(self, sentence: str) -> None:
        text = clean(sentence)
        with contextlib.suppress(OSError):  # nobody reads what is said any more; that is no reason to stop
            sys.stderr.write(f"{_QUIET}{text}{_NORMAL}\n" if self._has_colour else f"{text}\n")
            sys.stderr.flush()

    def hint(self, sentence: str) -> None:
        """Say a sentence that only somebody who watches has a use for."""
        if self._is_watched:
            self.say(sentence)

    def begin_waiting(self) -> None:
        """From now on it is worth a word how far things are."""
        self._next_progress = self._monotonic() + PROGRESS_AFTER_S

    def end_waiting(self) -> None:
        """Say nothing of how far things are: a line is typed."""
        self._next_progress = None

    def progress(self, event: Progress) -> None:
        """Say how far a phase is, not too often, and only to somebody who watches."""
        now = self._monotonic()
        if not self._is_watched or self._next_progress is None or now < self._next_progress:
            return
        self._next_progress = now + PROGRESS_EVERY_S
        phase = tr(PHASES[event.phase])
        phase = phase[:1].upper() + phase[1:]
        if event.total:
            text = tr("{phase}, {percent} % done.")
            if event.left_s is not None and event.left_s >= 1:
                text = tr("{phase}, {percent} % done, about {n} s left.")
            percent = 100 * event.done // event.total
            self.say(text.format(phase=phase, percent=percent, n=f"{event.left_s or 0:,.0f}"))
        else:
            self.say(f"{phase}.")

    def loading(self, event: Event) -> None:
        """Say the same of an event that may be progress."""
        if isinstance(event, Progress):
            self.progress(event)

    def begin_part(self, name: str) -> None:
        """Say that what follows is the reasoning, or the answer."""
        self.end_line()
        self.say(f"[{name}]")

    def tell_aside(self, text: str) -> None:
        """Say a piece of the reasoning, once its line is there: it is no part of what is written to stdout."""
        *lines, self._aside = (self._aside + text).split("\n")
        for line in lines:
            self._say(line)

    # --- data ---

    def tell(self, text: str) -> None:
        """Write a piece of an answer; on a terminal once its line or sentence is there."""
        if not self._is_shown:
            self._write(text)
            return
        self._held += text
        end = max((found.end() for found in _UNIT.finditer(self._held)), default=0)
        if not end and len(self._held) > _LONGEST_UNIT:
            end = self._held.rfind(" ") + 1 or len(self._held)
        self._write(self._held[:end])
        self._held = self._held[end:]

    def print(self, text: str) -> None:
        """Write a list or the like, which begins and ends a line."""
        self.end_line()
        self._write(text if text.endswith("\n") else f"{text}\n")

    def end_line(self) -> None:
        """Write what was held back, and end the line it stands on."""
        text, self._held = self._held, ""
        aside, self._aside = self._aside, ""
        if aside:
            self._say(aside)
        self._write(text)
        if not self._is_at_start:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            print_text(text)
            self._is_at_start = text.endswith("\n")
