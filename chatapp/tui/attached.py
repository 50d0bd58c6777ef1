"""What is attached to a message on the screen: each a folded line that unfolds."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.style import Style

from chatapp.safe import clean
from chatapp.tui.chips import Chip, described
from sessions.attachments import Part, n_lines, pieces_of
from sessions.conversation import Attachment, Draft

MAX_UNFOLDED = 20_000
"""Characters that are unfolded in their place; of more, a window of its own is faster."""


class Folded:
    """A message's text with its attachments as lines; `action` names what a click on one does, with its number."""

    def __init__(self, text: str, attachments: Sequence[Attachment], action: str) -> None:
        self._pieces = pieces_of(Draft(text, tuple(attachments)))
        self._action = action
        self._unfolded: set[int] = set()
        self.parts = [piece for piece in self._pieces if isinstance(piece, Part)]
        self._chips = [Chip(part, n_lines(part)) for part in self.parts]

    def chip(self, number: int) -> Chip:
        """What is known of an attachment."""
        return self._chips[number]

    def counted(self, number: int, n_tokens: int) -> None:
        """Note how many tokens an attachment has."""
        chip = self._chips[number]
        self._chips[number] = Chip(chip.part, chip.n_lines, n_tokens)

    def toggle(self, number: int) -> bool:
        """Unfold an attachment or fold it; False if it is too large to stand in its place."""
        if len(self.parts[number].text) > MAX_UNFOLDED:
            return False
        self._unfolded ^= {number}
        return True

    def toggle_all(self) -> None:
        """Unfold all that can be, or fold all if one is unfolded."""
        small = {number for number, part in enumerate(self.parts) if len(part.text) <= MAX_UNFOLDED}
        self._unfolded = set() if self._unfolded else small

    def content(self) -> Content:
        """The text as it stands on the screen."""
        lines: list[Content | str] = []
        number = 0
        for piece in self._pieces:
            if isinstance(piece, str):
                lines.append(clean(piece.strip("\n")))
                continue
            is_open = number in self._unfolded
            click = Style.from_meta({"@click": f"{self._action}({number})"})
            line = Content.assemble(("▾ " if is_open else "▸ ", "$accent"), described(self._chips[number]))
            lines.append(line.stylize(click))
            if is_open:
                lines.append(clean(piece.text))
            number += 1
        return Content("\n").join(Content(clean(line)) if isinstance(line, str) else line for line in lines if line)
