"""The reasoning of an answer as one block above it: its last lines while it is written, a header once it is folded."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content
from textual.events import Click
from textual.widgets import Static

from chatapp.safe import clean
from chatapp.texts import tr, tr_n
from chatapp.tui import words

LAST_LINES = 4
"""Lines that are shown of reasoning while it is written."""
_LAST_CHARS = 600
_GROWING_CHARS = 20_000
"""Characters that are shown at most of unfolded reasoning while it grows: each paint lays them out anew."""

LIVE = 0
"""The key of the answer that is being written: it has no id yet."""


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning so far, without its marks; tokens and seconds are None where nobody knows them."""

    text: str
    n_tokens: int | None
    seconds: float | None
    is_open: bool


class Folds:
    """Which blocks of one conversation are unfolded, and how long each took; outlives their widgets.

    A block's key is the id of its message, or `LIVE`.
    """

    def __init__(self) -> None:
        self.has_blocks = False
        self._are_unfolded = False
        self._exceptions: set[int] = set()
        self._seconds: dict[int, float] = {}

    def is_unfolded(self, key: int) -> bool:
        """True if all of the block's text is to be seen."""
        return self._are_unfolded != (key in self._exceptions)

    def toggle(self, key: int) -> None:
        """Fold or unfold one block."""
        self._exceptions ^= {key}

    def toggle_all(self) -> None:
        """Unfold all blocks; fold all if they are unfolded."""
        self._are_unfolded = not self._are_unfolded
        self._exceptions.clear()

    def settle(self, key: int, seconds: float | None) -> None:
        """The answer that was being written is stored as message `key`."""
        if seconds is not None:
            self._seconds[key] = seconds
        if LIVE in self._exceptions:
            self._exceptions ^= {LIVE, key}

    def seconds(self, key: int) -> float | None:
        """How long the reasoning took, if it was written since the program started."""
        return self._seconds.get(key)


class ThoughtBlock(Static):
    """One block of reasoning; a click on its header folds or unfolds it."""

    def __init__(self, folds: Folds, key: int, thought: Thought | None = None) -> None:
        super().__init__("", markup=False, classes="reasoning")
        self._folds = folds
        self._key = key
        self._thought: Thought | None = None
        self.display = False
        if thought is not None:
            self.tell(thought)

    def tell(self, thought: Thought) -> None:
        """Show reasoning, folded or not."""
        self._thought = thought
        self._folds.has_blocks = True
        self.display = True
        self.repaint()

    def settle(self, key: int, thought: Thought | None) -> None:
        """The answer is stored as message `key`: show its reasoning as stored, if it has any."""
        self._key = key
        if thought is None:
            self.display = False
        else:
            self.tell(thought)

    def repaint(self) -> None:
        """Show the block as it is folded now."""
        if self._thought is not None:
            self.update(block_text(self._thought, is_unfolded=self._folds.is_unfolded(self._key)))

    def on_click(self, event: Click) -> None:
        """Fold or unfold; clicks into the text select."""
        if event.y == 0 and self._thought is not None:
            event.stop()
            self._folds.toggle(self._key)
            self.repaint()


def block_text(thought: Thought, *, is_unfolded: bool) -> Content:
    """`▸ reasoning · 412 tokens · 12 s`, or `thinking… 212 tokens, 5 s` and the last lines."""
    if thought.text and thought.n_tokens is None:
        size = tr("{n} characters").format(n=words.count(len(thought.text)))
    else:
        n_tokens = thought.n_tokens or 0
        size = tr_n("{n} token", "{n} tokens", n_tokens).format(n=words.count(n_tokens))
    figures = [size, words.seconds(thought.seconds)] if thought.seconds is not None else [size]
    if thought.is_open:
        header = tr("thinking… {figures}").format(figures=", ".join(figures))
        text = thought.text[-_GROWING_CHARS:] if is_unfolded else _last_lines(thought.text)
    else:
        header = " · ".join([("▾ " if is_unfolded else "▸ ") + tr("reasoning"), *figures])
        text = thought.text.strip("\n") if is_unfolded else ""
    return Content.assemble((header, "bold"), *([("\n" + clean(text), "dim")] if text else []))


def _last_lines(text: str) -> str:
    lines = [line for line in text[-_LAST_CHARS:].splitlines() if line.strip()]
    return "\n".join(lines[-LAST_LINES:])
