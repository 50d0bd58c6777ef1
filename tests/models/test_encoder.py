import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from models.encoder import Encoder
from models.errors import ModelError
from models.similarity import load

TURN = ("Sourdough for beginners", "My dough does not rise.", "Feed the starter twice a day, at 25 degrees.")


@pytest_asyncio.fixture
async def encoder() -> AsyncIterator[Encoder]:
    """An encoder that is ended after the test."""
    made = Encoder()
    yield made
    await made.close()


async def test_it_scores_as_the_library_does(encoder: Encoder) -> None:
    """The process gives the same numbers, for texts of any length and script."""
    own = load()
    for draft in (
        "and how warm should the water be?",
        "물은 얼마나 따뜻해야 하나요?",
        "x" * 10_000,
        "\ud800 half a pair",
    ):
        assert await encoder.scores(draft, *TURN) == own.scores(draft, *TURN)
    assert await encoder.scores("ვარდი და ია", *TURN) is None


async def test_it_starts_when_it_is_asked_and_again_when_it_died(encoder: Encoder) -> None:
    """No process before the first question; one that was killed is a sentence once, and then a new one."""
    assert encoder.pid is None
    first = await encoder.scores("hello", *TURN)
    process = encoder._process
    assert process
    process.kill()
    await process.wait()
    assert await encoder.scores("hello", *TURN) == first


async def test_a_question_that_is_given_up_is_not_answered_later(encoder: Encoder) -> None:
    """The next question gets its own answer."""
    asked = asyncio.ensure_future(encoder.scores("a completely different thing", *TURN))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert await encoder.scores("hello", *TURN) == load().scores("hello", *TURN)


async def test_it_ends_when_nobody_asks() -> None:
    """The process holds memory only while it is used."""
    encoder = Encoder(idle_s=0)
    await encoder.scores("hello", *TURN)
    process = encoder._process
    assert process
    await asyncio.wait_for(process.wait(), 30)
    assert encoder.pid is None


async def test_a_missing_package_is_one_sentence(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process cannot do is told with the way out, and the next question tries again."""

    async def broken(_texts: list[str]) -> dict[str, str]:
        return {"error": "The task policy needs a package."}

    monkeypatch.setattr(encoder, "_ask", broken)
    with pytest.raises(ModelError, match="needs a package"):
        await encoder.scores("hello", *TURN)
    assert encoder.pid is None
