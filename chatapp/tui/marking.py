"""Which message is marked, and what can be done with it; apart from any widget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sessions.conversation import Message, Version
from sessions.manager import UNFINISHED


class Marking:
    """The messages that are shown, oldest first, the versions of those that have several, and the mark."""

    def __init__(self) -> None:
        self.messages: Sequence[Message] = ()
        self.versions: Mapping[int, Version] = {}
        self.message_id: int | None = None

    @property
    def at(self) -> int | None:
        """The position of the marked message."""
        return self.position(self.message_id)

    @property
    def message(self) -> Message | None:
        """The marked message."""
        return None if (at := self.at) is None else self.messages[at]

    def position(self, message_id: int | None) -> int | None:
        """Where a message stands; None if it is not shown."""
        return next((at for at, message in enumerate(self.messages) if message.id == message_id), None)

    def beside(self, step: int) -> int | None:
        """The position `step` messages away from the mark; without a mark, the last one."""
        at = self.at
        to = len(self.messages) - 1 if at is None else at + step
        return to if 0 <= to < len(self.messages) else None

    def can(self, verb: str) -> bool:
        """True if a message is marked that a verb fits."""
        marked = self.message
        if marked is None:
            return False
        if verb in ("older", "newer"):
            return marked.id in self.versions
        if verb == "continue":
            return self.can_go_on(marked)
        return marked.role == "user" if verb == "edit" else True

    def can_go_on(self, message: Message) -> bool:
        """True for an answer that ended early and that nothing follows."""
        is_unfinished = message.role == "assistant" and message.status in UNFINISHED and bool(message.text)
        return is_unfinished and message.id == self.messages[-1].id
