"""How a model's reasoning is marked inside the text of an answer; pure, and linear in the length of the text.

A block counts only where an answer begins, so that code which mentions `<think>` is never taken for one. What a text
says is independent of the model it comes from: an answer is read the same wherever it was written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["reasoning", "answer"]

_CHANNEL, _MESSAGE, _END, _START = "<|channel|>", "<|message|>", "<|end|>", "<|start|>assistant"
_HEADER = re.compile(r"<\|channel\|>(analysis|commentary|final)\b[^\n]*<\|message\|>")
_HEADER_CHARS = 200
"""Channels name a recipient and a format at most; what is longer is no header."""


@dataclass(frozen=True, slots=True)
class Family:
    """One way of marking reasoning.

    `close` ends a block behind `open`; `final` is what an answer without reasoning begins with. `marks` are all texts
    that a vocabulary may have a token of its own for, first the one that reasoning begins with.
    """

    name: str
    open: str
    close: str
    marks: tuple[str, ...]
    final: str = ""


def _pair(opening: str, closing: str) -> Family:
    return Family(opening, opening, closing, (opening, closing))


CHANNELS = Family(
    "channels",
    f"{_CHANNEL}analysis{_MESSAGE}",
    f"{_END}{_START}{_CHANNEL}final{_MESSAGE}",
    (_CHANNEL, _MESSAGE, _END, "<|start|>", "<|constrain|>"),
    final=f"{_CHANNEL}final{_MESSAGE}",
)
"""Analysis and commentary are reasoning, final is the answer; each channel is a message of its own."""

_PAIRS = (
    _pair("<think>", "</think>"),
    _pair("[THINK]", "[/THINK]"),
    _pair("<|START_THINKING|>", "<|END_THINKING|>"),
    _pair("<seed:think>", "</seed:think>"),
    _pair("<reasoning>", "</reasoning>"),
)
FAMILIES = (*_PAIRS, CHANNELS)


def family_in(template: str) -> Family | None:
    """Return the family whose marks a chat template's source writes or looks for, None where it has none."""
    for family in _PAIRS:
        if family.open in template or family.close in template:
            return family
    return CHANNELS if _CHANNEL in template and "analysis" in template else None


def family_named(name: str | None) -> Family | None:
    """Return a family by its name, None for None."""
    return next((family for family in FAMILIES if family.name == name), None)


def start_in(prompt: str) -> tuple[Family, int] | None:
    """Return the family of the block that a generation prompt leaves open, and where its mark begins, else None."""
    text = prompt.rstrip()
    for family in FAMILIES:
        if text.endswith(family.open):
            return family, len(text) - len(family.open)
    return None


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of an answer, without marks and without blank lines in front.

    `is_open`: it is reasoning, and the text ends before its end mark.
    """

    kind: Kind
    text: str
    is_open: bool


@dataclass(frozen=True, slots=True)
class Block:
    """Where the reasoning of a text lies: `[0, end)` is the block, marks and what is between included.

    `[end, answer_start)` are blank lines, `[answer_start, len(text))` is the answer. Both are 0 where a text begins
    without marks. `is_reasoning` is False where the marks name an answer alone.
    """

    end: int
    answer_start: int
    is_reasoning: bool
    is_open: bool


def parts(text: str) -> tuple[Part, ...]:
    """Return reasoning and answer of a text, in this order; what is empty is left out, unless it is still open."""
    splitter = Splitter()
    pieces = [*splitter.feed(text), *splitter.finish()]
    found = []
    kinds: tuple[Kind, ...] = ("reasoning", "answer")
    for kind in kinds:
        joined = "".join(piece for of, piece in pieces if of == kind)
        is_open = kind == "reasoning" and splitter.is_open
        if joined or is_open:
            found.append(Part(kind, joined, is_open))
    return tuple(found)


def answer_of(text: str) -> str:
    """Return a text without its reasoning and the blank lines behind it; a text without any is returned as it is."""
    return text[block_of(text).answer_start :]


def reasoning_of(text: str) -> str:
    """Return the reasoning of a text without marks and white space around it, empty if there is none."""
    return "".join(part.text for part in parts(text) if part.kind == "reasoning").strip()


def block_of(text: str) -> Block:
    """Return where the reasoning of a text lies."""
    splitter = Splitter()
    splitter.feed(text)
    splitter.finish()
    return splitter.block


class Splitter:
    """Tells reasoning from answer while a text arrives. What may become a mark is held back.

    Joined by kind, what `feed` and `finish` return is the same however the text was cut.
    """

    def __init__(self) -> None:
        self._state: Literal["begin", "header", "inside", "between", "text"] = "begin"
        self._kind: Kind = "answer"
        self._close = ""
        self._held = ""
        self._n_fed = 0
        self._lead: list[str] = []  # white space before a first mark: text, if none comes
        self._indent: list[str] = []  # the line that has begun, as long as it is blank
        self._is_fresh = False  # nothing but blank lines so far, and there will be none
        self._has_said = False  # a reasoning message was there before
        self._end = self._answer_start = 0
        self._is_reasoning = False

    @property
    def is_open(self) -> bool:
        """True inside reasoning that has not ended."""
        return self._state == "inside" or (self._state == "header" and not self._held_is_final)

    @property
    def block(self) -> Block:
        """Where the reasoning lies, of all that was fed; final after `finish`."""
        end = self._n_fed if self._state in ("inside", "between", "header") else self._end
        is_pending = self._is_fresh or self._state in ("inside", "between", "header")
        answer_start = self._n_fed if is_pending else self._answer_start
        return Block(end, answer_start, self._is_reasoning or self.is_open, self.is_open)

    def feed(self, text: str) -> list[tuple[Kind, str]]:
        """Take in text; return what is certain now."""
        self._n_fed += len(text)
        self._held += text
        out: list[tuple[Kind, str]] = []
        while self._held and self._step(out):
            pass
        return out

    def finish(self) -> list[tuple[Kind, str]]:
        """No more text comes: what was held back is text, but for a mark between two channels that was cut short."""
        out: list[tuple[Kind, str]] = []
        if self._state == "begin":
            self._begin_text("".join(self._lead) + self._held, out)
        elif self._state == "inside":
            self._say(self._held, out)
        if self._state != "header":
            self._held = ""
        return out

    # --- one step a state: True if there may be more to do with what is held ---

    def _step(self, out: list[tuple[Kind, str]]) -> bool:
        match self._state:
            case "begin":
                return self._at_begin(out)
            case "header":
                return self._at_header(out)
            case "inside":
                return self._inside(out)
            case "between":
                return self._between(out)
            case "text":
                text, self._held = self._held, ""
                self._say(text, out)
                return False

    def _at_begin(self, out: list[tuple[Kind, str]]) -> bool:
        bare = self._held.lstrip()
        self._lead.append(self._held[: len(self._held) - len(bare)])
        self._held = bare
        if not bare:
            return False
        for family in _PAIRS:
            if bare.startswith(family.open):
                self._begin_reasoning(family.close, len(family.open))
                return True
        if bare.startswith(_CHANNEL):
            self._state = "header"
            return True
        if any(mark.startswith(bare) for mark in (*(family.open for family in _PAIRS), _CHANNEL)):
            return False
        self._begin_text("".join(self._lead) + bare, out)
        return False

    def _at_header(self, out: list[tuple[Kind, str]]) -> bool:
        window = self._held[:_HEADER_CHARS]
        at = window.find(_MESSAGE)
        head = window if at < 0 else window[: at + len(_MESSAGE)]
        if at < 0 and "\n" not in head and len(window) < _HEADER_CHARS:
            return False
        header = _HEADER.fullmatch(head)
        if header is None:
            if self._end:
                self._begin_answer(0)
            else:
                self._begin_text("".join(self._lead) + self._held, out)
        elif header[1] == "final":
            self._begin_answer(header.end())
        else:
            self._begin_reasoning(_END, header.end())
        return True

    def _inside(self, out: list[tuple[Kind, str]]) -> bool:
        before, mark, behind = self._held.partition(self._close)
        if not mark:
            n_held = _overlap(before, self._close)
            self._held = before[len(before) - n_held :]
            self._say(before[: len(before) - n_held], out)
            return False
        self._say(before, out)
        self._held = mark + behind
        if self._close == _END:
            self._take(len(mark))
            self._state = "between"
        else:
            self._begin_answer(len(mark))
        return True

    def _between(self, _out: list[tuple[Kind, str]]) -> bool:
        mark = _START + _CHANNEL
        if self._held.startswith(mark):
            self._take(len(_START))
            self._state = "header"
        elif mark.startswith(self._held):
            return False
        else:
            self._begin_answer(0)
        return True

    # --- changes of state ---

    def _take(self, n: int) -> None:
        """Take a mark of `n` characters; the block reaches to its end."""
        self._held = self._held[n:]
        self._end = self._n_fed - len(self._held)

    def _begin_reasoning(self, close: str, n_mark: int) -> None:
        self._take(n_mark)
        self._state, self._kind, self._close = "inside", "reasoning", close
        self._is_fresh = self._is_reasoning = True
        self._indent.clear()

    def _begin_answer(self, n_mark: int) -> None:
        self._take(n_mark)
        self._state, self._kind = "text", "answer"
        self._is_fresh = True
        self._indent.clear()

    def _begin_text(self, text: str, out: list[tuple[Kind, str]]) -> None:
        """No block after all: everything is the answer, white space in front included."""
        self._state, self._kind, self._held = "text", "answer", ""
        self._end = 0
        self._say(text, out)

    def _say(self, text: str, out: list[tuple[Kind, str]]) -> None:
        if self._is_fresh:
            bare = text.lstrip()
            blank = text[: len(text) - len(bare)]
            cut = blank.rfind("\n") + 1
            if cut:
                self._indent.clear()
            self._indent.append(blank[cut:])
            if not bare:
                return
            text = "".join(self._indent) + bare
            self._is_fresh = False
            if self._kind == "answer":
                self._answer_start = self._n_fed - len(self._held) - len(text)
            elif self._has_said:
                text = "\n\n" + text
            self._has_said = True
        if text:
            out.append((self._kind, text))

    @property
    def _held_is_final(self) -> bool:
        return self._held.startswith(CHANNELS.final[: len(_CHANNEL) + 1])


def _overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of `text` are a beginning of `mark`, but not all of it."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-n:])), 0)
