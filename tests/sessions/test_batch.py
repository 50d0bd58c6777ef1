import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from models.engine import Engine, Entry, Event, Finished, Prompt, Sampling
from models.errors import EngineError
from models.fake import FakeDisk, FakeEngine
from models.schema import grammar_of
from sessions.batch import PATIENCE, Answered, EngineGone, InTurn, Shared, answer_row, answer_rows, prepare
from sessions.batch_rows import Reading, Row
from tests.sessions.batch_engine import SeveralAtOnce
from tests.sessions.helpers import Clock, drain


def rows_of(*lines: bytes) -> list[Row]:
    """Return the rows of lines."""
    return [Reading().row(place + 1, place, line) for place, line in enumerate(lines)]


def prompts(*texts: str) -> list[Row]:
    """Return rows that ask these."""
    return rows_of(*(b'{"id": "%s", "prompt": "%s"}' % (text.encode(), text.encode()) for text in texts))


async def each(rows: Sequence[Row]) -> AsyncIterator[Row]:
    """Yield rows."""
    for row in rows:
        yield row


async def answered(
    engine: Engine,
    rows: Sequence[Row],
    shared: Shared = Shared(),  # noqa: B008 - frozen
    *,
    n_at_once: int = 1,
    timeout_s: float | None = None,
) -> list[Answered]:
    """Return the answers, in the order in which they came."""
    answers: list[Answered] = []

    async def ask(row: Row) -> Answered:
        return await answer_row(engine, row, shared, timeout_s=timeout_s, monotonic=Clock(step=0.01))

    await answer_rows(each(rows), ask, answers.append, n_at_once=n_at_once)
    return answers


async def test_each_row_is_answered_in_order() -> None:
    """With text, tokens and stats."""
    found = await answered(FakeEngine(str.upper), prompts("a", "b"))
    assert [(one.row.id, one.text, one.token_ids, one.status, one.reason) for one in found] == [
        ("a", "A", (65,), "complete", "end"),
        ("b", "B", (66,), "complete", "end"),
    ]
    assert found[0].stats
    assert found[0].stats.ttft_s == pytest.approx(0.03)
    assert found[0].stats.kv_bytes_written == 0


async def test_bad_rows_are_errors_and_stop_nothing() -> None:
    """One that cannot be read, one that is longer than the context."""
    rows = rows_of(b"nonsense", b'{"id": 9, "prompt": "' + b"x" * 100 + b'"}', b'{"id": 10, "prompt": "fine"}')
    found = await answered(FakeEngine(str.upper, n_ctx=50), rows)
    assert [(one.row.line, one.status, one.error is None) for one in found] == [
        (1, "failed", False),
        (2, "failed", False),
        (3, "complete", True),
    ]


async def test_what_rows_share_is_evaluated_once() -> None:
    """Rows evaluate themselves only, and leave no KV; that of the shared part is kept for a later run."""
    disk = FakeDisk()
    shared, prepared = await prepare(engine := FakeEngine(str.upper, disk=disk), Shared((Entry("system", "s" * 100),)))
    assert prepared
    assert prepared.prefilled == 103
    assert len(disk) == 1
    found = await answered(engine, prompts("abc", "xyz"), shared)
    assert [(one.stats.resident_tokens, one.stats.prefilled_tokens) for one in found if one.stats] == [
        (103, 6),
        (104, 5),  # all questions open alike
    ]
    assert len(disk) == 1
    _, again = await prepare(FakeEngine(str.upper, disk=disk), Shared((Entry("system", "s" * 100),)))
    assert again
    assert (again.restored, again.prefilled) == (103, 0)


async def test_a_shared_part_that_cannot_be_asked_is_no_rows_fault() -> None:
    """It would fail all of them."""
    with pytest.raises(EngineError, match="more than the context"):
        await prepare(FakeEngine(n_ctx=50), Shared((Entry("system", "s" * 100),)))


async def test_a_row_may_have_a_system_prompt_and_a_sampling_of_its_own() -> None:
    """They come before those of all rows."""
    engine = FakeEngine(str.upper)
    rows = rows_of(
        b'{"messages": [{"role": "system", "content": "own"}, {"role": "user", "content": "x"}]}',
        b'{"prompt": "y", "json_schema": {"type": "integer"}}',
    )
    await answered(engine, rows, Shared((Entry("system", "all"),), sampling=Sampling(grammar="all")))
    assert [[entry.text for entry in prompt.entries] for prompt in engine.prompts] == [["own", "x"], ["all", "y"]]
    assert [sampling.grammar for sampling in engine.samplings] == ["all", grammar_of({"type": "integer"})]


async def test_a_row_that_breaks_off_keeps_its_text() -> None:
    """The engine's sentence is the error, what was said stays."""
    (one,) = await answered(FakeEngine(str.upper, fail_at=2), prompts("abc"))
    assert (one.text, one.token_ids, one.status, one.stats) == ("AB", (65, 66), "failed", None)
    assert one.error == "The fake engine failed, as its script says."


async def test_a_row_that_takes_too_long_is_an_error() -> None:
    """It keeps what it had, and the next one is answered."""
    engine = FakeEngine(str.upper, hang_at=2)
    rows = prompts("abc", "x")
    (one, two) = await answered(engine, rows, timeout_s=0.05)
    assert (one.text, one.status) == ("AB", "failed")
    assert "longer than its time, 0.05 s" in str(one.error)
    assert (two.text, two.status) == ("X", "complete")


async def test_as_many_rows_as_the_engine_serves_are_under_way() -> None:
    """No more, and each is answered once."""
    engine = SeveralAtOnce(3, str.upper)
    await drain(engine.load())
    found = await answered(engine, prompts(*"abcdefgh"), n_at_once=3)
    assert sorted(one.text for one in found) == list("ABCDEFGH")
    assert engine.most_at_once == 3


async def test_of_several_rows_one_can_run_out_of_time() -> None:
    """The others go on."""
    engine = SeveralAtOnce(2, str.upper)
    await drain(engine.load())
    engine.engines[1].hang_at = 1  # the first request goes to it
    found = await answered(engine, prompts("ab", "c", "d"), n_at_once=2, timeout_s=0.2)
    assert sorted((one.row.id, one.status) for one in found if isinstance(one.row.id, str)) == [
        ("ab", "failed"),
        ("c", "complete"),
        ("d", "complete"),
    ]


async def test_a_short_answer_does_not_wait_for_a_long_one() -> None:
    """Answers come as they are complete; in turn, each waits for those before it."""
    engine = SeveralAtOnce(2)
    engine.engines[1]._reply = lambda _text: "x" * 50
    engine.engines[0]._reply = lambda _text: "y"
    await drain(engine.load())
    found = await answered(engine, prompts(*"abcd"), n_at_once=2)
    assert [one.row.place for one in found] == [1, 2, 3, 0]
    ordered: list[Answered] = []
    in_turn = InTurn(ordered.append, most=8)
    for one in found:
        in_turn.take(one)
    assert [one.row.place for one in ordered] == [0, 1, 2, 3]


async def test_what_is_held_back_has_a_limit() -> None:
    """No more rows are taken until the one that all wait for is answered."""
    rows = prompts(*"abcde")
    ordered: list[Answered] = []
    in_turn = InTurn(ordered.append, most=3)
    admitted = in_turn.admitted(each(rows))
    taken = [await anext(admitted) for _ in range(3)]
    waiting = asyncio.ensure_future(anext(admitted))
    for row in taken[1:]:
        in_turn.take(Answered(row))
    await asyncio.sleep(0)
    assert (waiting.done(), ordered) == (False, [])
    in_turn.take(Answered(taken[0]))
    assert (await waiting).place == 3
    assert [one.row.place for one in ordered] == [0, 1, 2]


async def test_a_dead_engine_ends_the_batch() -> None:
    """After some rows: those that are left are not marked as failed for it."""
    answers: list[Answered] = []

    async def ask(row: Row) -> Answered:
        return await answer_row(engine, row, Shared(), monotonic=Clock())

    engine = FakeEngine(crash_at=0)
    with pytest.raises(EngineGone, match=f"failed {PATIENCE} rows one after another.*died"):
        await answer_rows(each(prompts(*"abcdefgh")), ask, answers.append)
    assert len(answers) == PATIENCE


async def test_an_engine_that_recovers_ends_nothing() -> None:
    """Only failures in a row count: one row that is answered in between, and the count begins anew."""
    n_asked = 0

    async def ask(row: Row) -> Answered:
        nonlocal n_asked
        n_asked += 1
        engine.crash_at = None if n_asked % PATIENCE == 0 else 0
        return await answer_row(engine, row, Shared(), monotonic=Clock())

    engine = FakeEngine()
    answers: list[Answered] = []
    await answer_rows(each(prompts(*map(str, range(3 * PATIENCE)))), ask, answers.append)
    assert [one.is_engines_fault for one in answers] == ([True] * (PATIENCE - 1) + [False]) * 3


async def test_rows_beside_one_that_kills_the_engine_are_answered() -> None:
    """Each is asked once more; the one that kills it again is the one that fails, and the batch goes on."""
    texts = [f"{i}" for i in range(2 * PATIENCE)]
    living = asyncio.Condition()
    deaths = 0

    async def ask(row: Row) -> Answered:
        """An engine that dies, with all rows under way, when the fourth is asked."""
        nonlocal deaths
        life = deaths
        async with living:
            if row.id == "3":
                deaths += 1
            elif deaths == 0:
                await living.wait_for(lambda: deaths > life)
            living.notify_all()
        return Answered(row, error="It died.", is_engines_fault=deaths > life)

    answers: list[Answered] = []
    await answer_rows(each(prompts(*texts)), ask, answers.append, n_at_once=PATIENCE + 3)
    assert sorted(str(one.row.id) for one in answers) == texts
    assert [one.row.id for one in answers if one.is_engines_fault] == ["3"]
    assert deaths == 2


async def test_rows_that_fail_by_themselves_end_nothing() -> None:
    """However many they are."""
    found = await answered(FakeEngine(n_ctx=30), prompts(*("x" * 40 for _ in range(2 * PATIENCE))))
    assert len(found) == 2 * PATIENCE


async def test_an_error_of_the_output_ends_the_other_rows() -> None:
    """It is raised, and nothing is left running."""
    engine = SeveralAtOnce(3)
    await drain(engine.load())

    def full(_answered: Answered) -> None:
        raise OSError("full")

    async def ask(row: Row) -> Answered:
        return await answer_row(engine, row, Shared(), monotonic=Clock())

    with pytest.raises(OSError, match="full"):
        await answer_rows(each(prompts(*"abcdef")), ask, full, n_at_once=3)
    assert engine.n_running == 0


async def test_an_engine_without_a_word_is_an_error() -> None:
    """Each row says so."""

    class Silent(FakeEngine):
        async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Event]:
            async for event in super().generate(prompt, sampling):
                if not isinstance(event, Finished):
                    yield event
                    continue
                return

    (one,) = await answered(Silent(), prompts("x"))
    assert one.error == "The engine ended without an answer."
    assert one == replace(one, status="failed", is_engines_fault=True)
