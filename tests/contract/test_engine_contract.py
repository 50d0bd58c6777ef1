"""What every engine promises, asked of each of them: the shipped fake and the real one in its own process."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace

import pytest
import pytest_asyncio

from models.client import EngineProcess
from models.engine import (
    Engine,
    Entry,
    Event,
    Failed,
    Finished,
    Loaded,
    Piece,
    Prepared,
    Progress,
    Prompt,
    Sampling,
    Stored,
)
from models.fake import FakeDisk, FakeEngine
from tests.models.helpers import after, kinds, n_ahead, n_new, one, starter

pytestmark = pytest.mark.asyncio(loop_scope="module")

N_CTX = 1024
GREEDY = Sampling(temperature=0, max_tokens=8)
LONG = Sampling(temperature=0)
MakeEngine = Callable[[], Engine]


@pytest.fixture(scope="module", params=["fake", "process", "together"])
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MakeEngine:
    """Makes engines of one kind over one disk."""
    root = tmp_path_factory.mktemp(request.param)
    if request.param == "fake":
        # A real engine waits for its model; this one lets others run between its tokens.
        return lambda: FakeEngine(lambda text: f"You said {text}. " * 20, n_ctx=N_CTX, disk=FakeDisk(root / "kv"))
    model = starter()
    return lambda: EngineProcess(
        model,
        cache_dir=root / "cache",
        data_dir=root / "data",
        n_ctx=N_CTX,
        threads=1,
        flash_attention="off",
        n_parallel=3 if request.param == "together" else 1,
    )


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(make: MakeEngine) -> AsyncIterator[Engine]:
    """One engine for all tests that need no fresh one; each asks questions of its own."""
    made = make()
    yield made
    await made.close()


async def drain(events: AsyncIterator[Event]) -> list[Event]:
    """All events."""
    return [event async for event in events]


def ask(text: str, *, store_kv: bool = True) -> Prompt:
    """A new conversation with a system prompt of its own, so that nothing of it was seen before."""
    return Prompt((Entry("system", f"Topic: {text}"), Entry("user", text)), store_kv=store_kv)


def n_tokens(events: list[Event]) -> int:
    """Tokens of all messages of a finished turn."""
    return sum(len(run.ids) for run in (*one(Prepared, events).runs, one(Finished, events).run))


async def test_loading(make: MakeEngine) -> None:
    """Progress, then Loaded; again, Loaded at once; `info` is what was told. Closing twice is harmless."""
    engine = make()
    before = engine.info
    events = await drain(engine.load())
    assert before is None
    assert kinds(events) == [Progress, Loaded]
    assert one(Loaded, events).info == engine.info
    assert await drain(engine.load()) == [one(Loaded, events)]
    await engine.close()
    await engine.close()


async def test_a_load_that_was_given_up(make: MakeEngine) -> None:
    """Who asks next is told of the model all the same."""
    engine = make()
    loading = engine.load()
    await anext(loading)
    assert isinstance(loading, AsyncGenerator)
    await loading.aclose()
    assert one(Loaded, await drain(engine.load())).info == engine.info
    await engine.close()


async def test_a_request_cancelled_while_the_model_loads(make: MakeEngine) -> None:
    """It ends as cancelled once that is possible, and the next one is answered."""
    engine = make()
    events = []
    async for event in engine.generate(ask("loquats", store_kv=False), GREEDY):
        events.append(event)
        if len(events) == 1:
            await engine.cancel()
    assert isinstance(events[-1], Failed)
    assert events[-1].kind == "cancelled"
    assert one(Finished, await drain(engine.generate(ask("loquats", store_kv=False), GREEDY))).run.body
    await engine.close()


async def test_closing_an_engine_that_never_ran(make: MakeEngine) -> None:
    """Nothing was started, so nothing has to end."""
    engine = make()
    await engine.cancel()
    await engine.close()


def assert_reused(prepared: Prepared, n_history: int) -> None:
    """The whole history was reused, with or without the glue that any next message begins with; the rest was not."""
    reused = prepared.resident + prepared.restored
    assert reused in (n_history, n_history + n_ahead(prepared))
    assert reused + prepared.prefilled == n_history + n_ahead(prepared) + n_new(prepared)


async def test_a_turn(engine: Engine) -> None:
    """The order of events, the counts, and that pieces join to the text and runs to the prefix."""
    await drain(engine.load())
    events = await drain(engine.generate(ask("apples"), GREEDY))
    assert kinds(events) == [Progress, Prepared, Piece, Finished, Stored]
    prepared, finished = one(Prepared, events), one(Finished, events)
    assert (prepared.resident, prepared.restored) == (0, 0)
    assert prepared.prefilled == sum(len(run.ids) for run in prepared.runs) + len(prepared.opening)
    stats = finished.stats
    assert stats.prompt_tokens == prepared.prefilled
    assert (stats.resident_tokens, stats.restored_tokens, stats.prefilled_tokens) == (0, 0, stats.prompt_tokens)
    assert (finished.reason, len(finished.run.body), stats.output_tokens) == ("length", 8, 8)
    pieces = [event for event in events if isinstance(event, Piece)]
    assert "".join(piece.text for piece in pieces) == finished.text
    assert tuple(token for piece in pieces for token in piece.token_ids) == finished.run.body
    assert finished.run.ids == (*prepared.opening, *finished.run.body, *prepared.closing)
    assert one(Stored, events).kv_bytes_written > 0
    assert one(Stored, events).tip is not None


async def test_the_time_to_the_first_text_has_parts(engine: Engine) -> None:
    """What is told of restore, prefill and the first text fits into the time until that text was told."""
    begun = time.monotonic()
    ttft_s = None
    finished = None
    async for event in engine.generate(ask("parts"), GREEDY):
        if isinstance(event, Piece) and event.text and ttft_s is None:
            now = time.monotonic()
            ttft_s = now - begun
            assert event.told_at is None or begun <= event.told_at <= now, "the clocks of two processes differ"
        finished = event if isinstance(event, Finished) else finished
    assert finished
    stats = replace(finished.stats, ttft_s=ttft_s)
    parts = (stats.queue_s, stats.restore_s, stats.prefill_s, stats.first_decode_s)
    assert all(part is not None and part >= 0 for part in parts)
    assert sum(part or 0 for part in parts) == pytest.approx(ttft_s)
    assert stats.cpu_share is None or 0 < stats.cpu_share <= 1


async def test_the_next_turn_evaluates_only_the_new_message(engine: Engine) -> None:
    """The history's runs, concatenated, are the prefix that is resident."""
    first = ask("pears")
    events = await drain(engine.generate(first, GREEDY))
    prepared = one(Prepared, await drain(engine.generate(after(first, events, "more"), GREEDY)))
    assert prepared.restored == 0
    assert_reused(prepared, n_tokens(events))
    assert prepared.runs[:2] == one(Prepared, events).runs
    assert prepared.runs[2] == one(Finished, events).run


async def test_a_cut_answer_goes_on(engine: Engine) -> None:
    """With the tokens it would have had in one go, told from its beginning; only its closing is evaluated anew."""
    prompt = ask("medlars")
    whole = one(Finished, await drain(engine.generate(prompt, replace(GREEDY, max_tokens=16))))
    events = await drain(engine.generate(prompt, GREEDY))
    finished = one(Finished, events)
    begun = Prompt(
        (
            *(
                Entry(entry.role, entry.text, run)
                for entry, run in zip(prompt.entries, one(Prepared, events).runs, strict=True)
            ),
            Entry("assistant", finished.text, finished.run),
        )
    )
    events = await drain(engine.generate(begun, GREEDY))
    prepared, went_on = one(Prepared, events), one(Finished, events)
    assert (went_on.run, went_on.text) == (whole.run, whole.text)
    assert (went_on.stats.output_tokens, len(prepared.runs)) == (8, 2)
    assert prepared.prefilled <= 1
    pieces = [event for event in events if isinstance(event, Piece)]
    assert "".join(piece.text for piece in pieces) == whole.text
    assert tuple(token for piece in pieces for token in piece.token_ids) == whole.run.body


async def test_a_new_engine_restores(engine: Engine, make: MakeEngine) -> None:
    """Over the same disk another engine evaluates the new message only, and the counts say so."""
    first = ask("plums")
    events = await drain(engine.generate(first, GREEDY))
    other = make()
    second = await drain(other.generate(after(first, events, "more"), GREEDY))
    await other.close()
    prepared, stats = one(Prepared, second), one(Finished, second).stats
    assert prepared.resident == 0
    assert_reused(prepared, n_tokens(events))
    assert stats.prompt_tokens == prepared.restored + prepared.prefilled
    assert stats.restored_tokens == prepared.restored
    assert prepared.miss_reason is None


async def test_nothing_is_stored_when_not_asked(engine: Engine, make: MakeEngine) -> None:
    """With store_kv False another engine finds nothing."""
    first = ask("quinces", store_kv=False)
    events = await drain(engine.generate(first, GREEDY))
    assert one(Stored, events).kv_bytes_written == 0
    assert one(Stored, events).tip is None
    other = make()
    prepared = one(Prepared, await drain(other.generate(after(first, events, "more"), GREEDY)))
    await other.close()
    assert prepared.restored < n_tokens(events) - len(one(Finished, events).run.ids)


async def test_cancel_in_the_middle_of_an_answer(engine: Engine) -> None:
    """What was said stays, the reason is 'cancelled', and the next message goes on from there."""
    prompt = ask("cherries")
    events: list[Event] = []
    async for event in engine.generate(prompt, LONG):
        events.append(event)
        if isinstance(event, Piece):
            await engine.cancel()
    finished = one(Finished, events)
    assert finished.reason == "cancelled"
    assert finished.text == "".join(event.text for event in events if isinstance(event, Piece))
    assert isinstance(events[-1], Stored)
    prepared = one(Prepared, await drain(engine.generate(after(prompt, events, "more"), GREEDY)))
    assert_reused(prepared, n_tokens(events))


async def test_cancel_during_prefill(engine: Engine) -> None:
    """A generation is Finished without Prepared or text, a preparation Failed; the next request works."""
    prompt = Prompt((Entry("user", "long " * 180),), store_kv=False)
    for request, last in ((engine.generate(prompt, GREEDY), Finished), (engine.prepare(prompt), Failed)):
        events = []
        async for event in request:
            events.append(event)
            if isinstance(event, Progress) and event.phase == "prefill":
                await engine.cancel()
        assert [kind for kind in kinds(events) if kind is not Stored] == [Progress, last]
        if last is Finished:
            assert one(Finished, events).reason == "cancelled"
            assert one(Finished, events).text == ""
        else:
            assert one(Failed, events).kind == "cancelled"
    assert one(Finished, await drain(engine.generate(ask("grapes"), GREEDY))).reason == "length"


async def test_an_abandoned_answer_frees_the_engine(engine: Engine) -> None:
    """A caller that goes away in the middle does not block the next one."""
    abandoned = engine.generate(ask("melons"), LONG)
    async for event in abandoned:
        if isinstance(event, Piece):
            break
    del abandoned, event
    assert one(Finished, await drain(engine.generate(ask("figs"), GREEDY))).reason == "length"


async def test_prepare_then_generate(engine: Engine) -> None:
    """What was prepared is resident when the question comes."""
    first = ask("dates")
    second = after(first, await drain(engine.generate(first, GREEDY)), "more")
    await drain(engine.generate(ask("something else"), GREEDY))
    prepared = one(Prepared, await drain(engine.prepare(Prompt(second.entries[:-1]))))
    assert (prepared.opening, prepared.closing) == ((), ())
    n_history = sum(len(run.ids) for run in prepared.runs)
    assert prepared.resident + prepared.restored + prepared.prefilled == n_history
    asked = one(Prepared, await drain(engine.generate(second, GREEDY)))
    assert asked.restored == 0
    assert_reused(asked, n_history)


async def test_too_long_a_prompt(engine: Engine) -> None:
    """It is refused in one sentence, and what is resident stays so."""
    first = ask("limes")
    events = await drain(engine.generate(first, GREEDY))
    for request in (engine.generate(ask("long " * 1500), GREEDY), engine.prepare(ask("long " * 1500))):
        (failed,) = await drain(request)
        assert isinstance(failed, Failed)
        assert failed.kind == "too_long"
        assert "\n" not in failed.message
    prepared = one(Prepared, await drain(engine.generate(after(first, events, "more"), GREEDY)))
    assert_reused(prepared, n_tokens(events))


async def test_a_stop_string(engine: Engine) -> None:
    """The text ends before it."""
    prompt = ask("kiwis", store_kv=False)
    whole = one(Finished, await drain(engine.generate(prompt, GREEDY)))
    stop = whole.text[3:5]
    events = await drain(engine.generate(prompt, Sampling(temperature=0, max_tokens=8, stop=(stop,))))
    cut = one(Finished, events)
    assert (cut.reason, cut.text) == ("stop", whole.text[: whole.text.index(stop)])
    pieces = [event for event in events if isinstance(event, Piece)]
    assert "".join(piece.text for piece in pieces) == cut.text
    assert tuple(token for piece in pieces for token in piece.token_ids) == cut.run.body


async def test_count_is_the_body_alone(engine: Engine) -> None:
    """As many tokens as the body has in its run."""
    text = "naïve 漢字 🙂"
    prepared = one(Prepared, await drain(engine.prepare(ask(text))))
    assert await engine.count(text) == len(prepared.runs[-1].body)


async def test_requests_do_not_mix(engine: Engine) -> None:
    """Two questions at once are answered one after the other, each in its own stream."""
    first, second = await asyncio.gather(
        drain(engine.generate(ask("onions"), GREEDY)), drain(engine.generate(ask("leeks"), GREEDY))
    )
    for events in (first, second):
        assert kinds(events)[-3:] == [Piece, Finished, Stored]
        text = "".join(event.text for event in events if isinstance(event, Piece))
        assert text == one(Finished, events).text


async def test_a_draft_that_was_read_ahead_is_resident(engine: Engine) -> None:
    """The turn that is sent counts it so, evaluates the rest, and misses nothing."""
    await drain(engine.load())
    words = " ".join(f"word {n}" for n in range(60))
    first = Prompt((Entry("user", "What is read ahead?"),))
    draft = after(first, await drain(engine.generate(first, GREEDY)), words)
    told = [ahead async for ahead in engine.anticipate(draft)]
    assert told[-1].is_whole
    assert told[-1].n_ready > 60
    prepared = one(Prepared, await drain(engine.generate(draft, GREEDY)))
    assert prepared.resident >= told[-1].n_ready
    assert prepared.prefilled < 20
    assert (prepared.restored, prepared.miss_reason) == (0, None)
