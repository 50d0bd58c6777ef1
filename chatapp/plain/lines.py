"""What is typed: readers of lines, and how several lines become one message."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any, Protocol

FENCE = '"""'
MAX_REMEMBERED_CHARS = 20_000
"""Longer questions are not brought back by Up: a terminal takes seconds to show them."""


class Reader(Protocol):
    """Where lines come from. `read` returns one without its end, None at the end of all.

    A line may hold line breaks (a paste), and lone surrogates for bytes that are no text. `begin` is what the user
    finds written already, `is_answer` says that the line answers a question and is not to be remembered.
    """

    @property
    def is_interactive(self) -> bool:
        """True if somebody sits there who can be asked."""
        ...

    @property
    def is_literal(self) -> bool:
        """True if what is read is one message as it is: no command, no block."""
        ...

    def read(self, prompt: str, begin: str = "", *, is_answer: bool = False) -> str | None:
        """Wait for a line."""
        ...

    def has_begun(self) -> bool:
        """True if something is typed on the line that is read."""
        ...

    def remember(self, questions: Sequence[str]) -> None:
        """Let Up bring back these, the last one first."""
        ...


class PipeReader:
    """Lines of a pipe or a file; with `is_literal` all of it at once."""

    is_interactive = False

    def __init__(self, stream: IO[bytes] | None, *, is_literal: bool) -> None:
        self.is_literal = is_literal
        self._stream = stream
        self._first: str | None = None

    def has_text(self) -> bool:
        """True once there is something to read, False if all of it is blank; waits for one of both."""
        while self._first is None:
            line = self._next()
            if line is None:
                return False
            if line.strip():
                self._first = line
        return True

    def read(self, prompt: str, begin: str = "", *, is_answer: bool = False) -> str | None:  # noqa: ARG002
        """Return the next line."""
        line, self._first = self._first, None
        return self._next() if line is None else line

    def has_begun(self) -> bool:
        """Nothing is typed here."""
        return False

    def remember(self, questions: Sequence[str]) -> None:
        """Nobody looks back here."""

    def _next(self) -> str | None:
        if self._stream is None:
            return None
        data = self._stream.read() if self.is_literal else self._stream.readline()
        if not data:
            return None
        text = data.decode("utf-8", "surrogateescape")
        return text.rstrip("\n") if self.is_literal else text.removesuffix("\n").removesuffix("\r")


class TerminalReader:
    """Lines that somebody types, with the keys and the history of readline where there is one.

    Only the history in memory is used: the questions are in the store, and nothing else is written.
    """

    is_interactive = True
    is_literal = False

    def __init__(self, complete: Callable[[str], Sequence[str]]) -> None:
        """`complete` returns what a line may become that begins so."""
        self._readline = _readline() if sys.stdout.isatty() else None
        self._complete = complete
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")  # bytes that are no text are replaced, and told
        if self._readline is not None:
            self._readline.set_auto_history(False)
            self._readline.set_completer_delims("")
            self._readline.set_completer(self._completed)
            is_libedit = "libedit" in (self._readline.__doc__ or "")
            self._readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
            if not is_libedit:
                # Without it each line of a paste would be sent as a message; newer ones have it on.
                self._readline.parse_and_bind("set enable-bracketed-paste on")

    def read(self, prompt: str, begin: str = "", *, is_answer: bool = False) -> str | None:
        """Return the line that is typed."""
        is_shown = sys.stdout.isatty()
        if not is_shown:  # what stdout gets is kept: the prompt is no part of that
            sys.stderr.write(prompt)
            sys.stderr.flush()
        if self._readline is not None:
            self._readline.set_startup_hook(lambda: self._readline.insert_text(begin) if self._readline else None)
        try:
            line = input(prompt if is_shown else "")
        except BaseException as error:  # Ctrl+D, Ctrl+C, or the end of the program
            with contextlib.suppress(OSError):  # that of a terminal that is gone
                print(file=sys.stdout if is_shown else sys.stderr, flush=True)
            if isinstance(error, EOFError):
                return None
            raise
        if self._readline is not None and line.strip() and not is_answer and len(line) <= MAX_REMEMBERED_CHARS:
            self._readline.add_history(line)
        return _as_typed(line, sys.stdin.encoding)

    def has_begun(self) -> bool:
        """True if readline says so; without it nobody knows."""
        return self._readline is not None and bool(self._readline.get_line_buffer())

    def remember(self, questions: Sequence[str]) -> None:
        """Put questions into readline's history."""
        for question in questions:
            if self._readline is not None and len(question) <= MAX_REMEMBERED_CHARS and "\0" not in question:
                self._readline.add_history(question)

    def _completed(self, text: str, state: int) -> str | None:
        found = self._complete(text)
        return found[state] if state < len(found) else None


def _readline() -> Any:
    """The module of that name, None on systems that have none."""
    try:
        import readline
    except ImportError:
        return None
    return readline


def _as_typed(line: str, encoding: str) -> str:
    """Return a line as UTF-8 where its bytes are that, whatever the locale says of the terminal."""
    try:
        return line.encode(encoding, "surrogateescape").decode("utf-8")
    except (UnicodeError, LookupError):
        return line


@dataclass(frozen=True, slots=True)
class Typed:
    """A message or a command; `is_literal` is a block, which is never a command."""

    text: str
    is_literal: bool = False


class Gathering:
    """Lines on their way to one message: a block between two `\"\"\"`, or lines that end in a backslash."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._is_block = False

    @property
    def has_begun(self) -> bool:
        """True if a further line is waited for."""
        return self._is_block or bool(self._lines)

    def add(self, line: str) -> bool:
        """Take a line; True if the message is whole."""
        if not self.has_begun and line.lstrip().startswith(FENCE):
            self._is_block = True
            line = line.lstrip().removeprefix(FENCE).removeprefix("\n")
            if not line.strip():
                return False
        if self._is_block:
            is_end = line.rstrip().endswith(FENCE)
            line = line.rstrip().removesuffix(FENCE).removesuffix("\n") if is_end else line
            if line or not is_end:
                self._lines.append(line)
            return is_end
        n_backslashes = len(line) - len(line.rstrip("\\"))
        self._lines.append(line[:-1] if n_backslashes % 2 else line)
        return n_backslashes % 2 == 0

    def taken(self) -> Typed:
        """What was gathered."""
        return Typed("\n".join(self._lines), self._is_block)
