"""Messages between the workers, the widgets and the app."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual.message import Message

from chatapp.tui.live import LiveAnswer
from models.engine import Event, Failed
from sessions.conversation import Draft


@dataclass
class ModelEvent(Message):
    """The engine said something while the model loads."""

    event: Event


@dataclass
class OpenEvent(Message):
    """Something happened while a conversation's history is made resident."""

    session_id: str
    event: Event


@dataclass
class OpenEnded(Message):
    """A conversation's history is resident, or could not be made so."""

    session_id: str
    failed: Failed | None


@dataclass
class TurnEvent(Message):
    """Something happened in a running turn."""

    live: LiveAnswer
    event: Event


@dataclass
class TurnEnded(Message):
    """A turn is over; `failed` says why when there is no whole answer."""

    live: LiveAnswer
    failed: Failed | None


@dataclass
class Trouble(Message):
    """Something in the background went wrong; one sentence for the user."""

    sentence: str


@dataclass
class DraftSent(Message):
    """The user sent what is in the composer; `typed` is how it stands there, with words in the places of chips."""

    draft: Draft
    typed: str


@dataclass
class SessionChosen(Message):
    """The user chose a conversation, or a message in it."""

    session_id: str
    message_id: int | None = None


@dataclass
class VerbAsked(Message):
    """The user wants something done to the highlighted conversation, if there is one."""

    verb: str
    session_id: str | None


@dataclass
class RowHighlighted(Message):
    """Another row of the list is highlighted."""

    session_id: str | None


@dataclass
class MoreAsked(Message):
    """The end of the list is near."""


@dataclass
class SearchClosed(Message):
    """The user wants the list back in the place of what was found."""


@dataclass
class MessageVerbAsked(Message):
    """The user wants something done with the marked message."""

    verb: str


@dataclass
class PartAsked(Message):
    """The exact number of tokens of something attached is wanted; `take` gets it, if it can be known now."""

    text: str
    take: Callable[[int], None]


@dataclass
class CountAsked(Message):
    """The exact number of tokens of a draft is wanted, as it was after so many changes."""

    text: str
    change: int
