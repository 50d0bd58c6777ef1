from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest

from models.engine import Event, Finished, Piece, Prepared, Prompt, Sampling, Stored
from models.fake import FakeDisk, FakeEngine
from sessions.errors import BadRequest
from sessions.turn import ask, checked
from tests.sessions.helpers import Clock, drain


async def test_asking_without_a_conversation_stores_nothing() -> None:
    """The answer comes as always, measured, with the system prompt in front and the disk left empty."""
    disk = FakeDisk()
    engine = FakeEngine(str.upper, disk=disk)
    events = await drain(ask(engine, "hi", Sampling(), system="s", monotonic=Clock(step=0.25)))
    (finished,) = [event for event in events if isinstance(event, Finished)]
    assert (finished.text, finished.stats.ttft_s) == ("HI", 0.75)
    # The clock goes on each time it is read: when the engine was asked, when its model was there, at the first text.
    assert (finished.stats.waited_s, finished.stats.model_load_s) == (0.0, 0.25)
    assert [entry.role for entry in engine.prompts[0].entries] == ["system", "user"]
    assert (len(disk), isinstance(events[-1], Stored)) == (0, True)


class Telling(FakeEngine):
    """An engine of this machine: its first text says when it was told, by a clock both share."""

    told_at: float | None = None

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Event, None]:
        """The events of the fake, with that time."""
        async for event in super().generate(prompt, sampling):
            yield replace(event, told_at=self.told_at) if isinstance(event, Piece) else event


@pytest.mark.parametrize(("told_at", "transport_s"), [(9.0, 1.0), (11.0, 0.0), (None, None)])
async def test_the_way_from_the_engine_is_measured(told_at: float | None, transport_s: float | None) -> None:
    """From when the first text was told to when it came; never less than nothing, and unknown without a clock."""
    engine = Telling(str.upper)
    engine.told_at = told_at
    events = await drain(ask(engine, "hi", Sampling(), monotonic=Clock(now=10.0)))
    (finished,) = [event for event in events if isinstance(event, Finished)]
    assert finished.stats.transport_s == transport_s


async def test_leaving_early_frees_the_engine() -> None:
    """After a caller went away in mid-answer, the next question is answered."""
    engine = FakeEngine(str.upper)
    async with aclosing(ask(engine, "hello", Sampling(), monotonic=Clock())) as events:
        async for event in events:
            if isinstance(event, Piece):
                break
    events_after = await drain(ask(engine, "again", Sampling(), monotonic=Clock()))
    assert any(isinstance(event, Prepared) for event in events_after)


async def test_an_empty_question_is_refused() -> None:
    """Nothing is asked."""
    with pytest.raises(BadRequest):
        await drain(ask(FakeEngine(), "\n", Sampling(), monotonic=Clock()))
    assert checked(" x ") == " x "
