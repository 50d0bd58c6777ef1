"""What the tests of remote engines share."""

from collections.abc import Sequence
from typing import Any

from models.engine import Entry, Event, Failed, Finished, Loaded, Piece, Prompt, Sampling
from models.remote import RemoteEngine
from models.remote_profile import RemoteProfile
from tests.models.helpers import one
from tests.models.scripted_server import Scripted

KEY = "sk-very-secret-0123456789"
ASK = Prompt((Entry("system", "Be brief."), Entry("user", "Pears?")))


def engine_at(server: Scripted, **fields: Any) -> RemoteEngine:
    """An engine for a scripted server, with a key."""
    return RemoteEngine(RemoteProfile("box", **{"base_url": server.url, "key": lambda: KEY, **fields}))


async def turn(
    server: Scripted,
    prompt: Prompt = ASK,
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    **fields: Any,
) -> list[Event]:
    """All events of one answer by an engine of its own; those of connecting left out."""
    engine = engine_at(server, **fields)
    try:
        events = [event async for event in engine.load()]
        if isinstance(events[-1], Failed):
            return events
        assert isinstance(events[-1], Loaded)
        return [event async for event in engine.generate(prompt, sampling)]
    finally:
        await engine.close()


def said(events: Sequence[Event]) -> str:
    """The text of all pieces."""
    return "".join(event.text for event in events if isinstance(event, Piece))


def finished(events: Sequence[Event]) -> Finished:
    """The end of an answer, which says what the pieces said."""
    found = one(Finished, events)
    assert found.text == said(events)
    return found


def failed(events: Sequence[Event]) -> Failed:
    """A failure that comes last, in one sentence that shows no key."""
    found = events[-1]
    assert isinstance(found, Failed), events
    assert found is one(Failed, events)
    assert found.message.endswith((".", "?"))
    assert "\n" not in found.message
    assert len(found.message) < 400
    assert KEY not in found.message
    assert KEY[4:] not in found.message
    return found
