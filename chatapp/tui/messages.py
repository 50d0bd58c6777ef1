"""Messages between the workers, the widgets and the app."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from chatapp.tui.live import LiveAnswer
from models.engine import Event


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
    """A conversation's history is resident, or could not be made so (`failure`, one sentence)."""

    session_id: str
    failure: str | None


@dataclass
class TurnEvent(Message):
    """Something happened in a running turn."""

    live: LiveAnswer
    event: Event


@dataclass
class TurnEnded(Message):
    """A turn is over; `failure` is one sentence when there is no whole answer."""

    live: LiveAnswer
    failure: str | None


@dataclass
class Trouble(Message):
    """Something in the background went wrong; one sentence for the user."""

    sentence: str


@dataclass
class DraftSent(Message):
    """The user sent the text of the composer."""

    text: str


@dataclass
class SessionChosen(Message):
    """The user chose a conversation in the sidebar."""

    session_id: str


@dataclass
class TrashAsked(Message):
    """The user wants a conversation in the trash; None takes the last one out again."""

    session_id: str | None
