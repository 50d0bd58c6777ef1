import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.engine import (
    Entry,
    Event,
    Failed,
    Finished,
    Loaded,
    Piece,
    Prepared,
    Progress,
    Prompt,
    Reasoning,
    Sampling,
    Stored,
    TokenRun,
)
from models.fake import BEGIN, END, KV_BYTES_PER_TOKEN, ROLE_TOKENS, FakeDisk, FakeEngine, echo, tokenize

E = TypeVar("E")


async def drain(events: AsyncIterator[Event]) -> list[Event]:
    """Return all events."""
    return [event async for event in events]


def one(kind: type[E], events: list[Event]) -> E:
    """Return the only event of a kind."""
    (found,) = [event for event in events if isinstance(event, kind)]
    return found


def ask(text: str, *before: Entry, store_kv: bool = True) -> Prompt:
    """Return a prompt that ends with a question."""
    return Prompt((*before, Entry("user", text)), store_kv=store_kv)


def after(prompt: Prompt, events: list[Event]) -> tuple[Entry, ...]:
    """Return the history that a finished turn leaves behind."""
    runs = one(Prepared, events).runs
    answer = one(Finished, events)
    asked = (Entry(entry.role, entry.text, run) for entry, run in zip(prompt.entries, runs, strict=True))
    return (*asked, Entry("assistant", answer.text, answer.run))


async def test_it_keeps_the_order_of_the_contract() -> None:
    """A turn is Progress, Prepared, Pieces, Finished, Stored; the events of loading come before the first."""
    engine = FakeEngine(lambda _: "ab")
    assert isinstance((await drain(engine.generate(ask("lo"), Sampling())))[3], Loaded)
    events = await drain(engine.generate(ask("hi"), Sampling()))
    kinds = [type(event) for event in events]
    assert kinds == [Progress, Prepared, Piece, Piece, Finished, Stored]


@given(st.text())
async def test_pieces_join_to_the_text(reply: str) -> None:
    """Text is the same whole or in pieces, wherever bytes of a character are split."""
    events = await drain(FakeEngine(lambda _: reply).generate(ask("hi"), Sampling()))
    finished = one(Finished, events)
    pieces = [event for event in events if isinstance(event, Piece)]
    assert "".join(piece.text for piece in pieces) == finished.text
    assert tuple(token for piece in pieces for token in piece.token_ids) == finished.run.body


async def test_tokens_are_bytes_and_glue() -> None:
    """Each message is its role's token, its bytes and an end; the first one has a beginning before that."""
    prompt = ask("é", Entry("system", "s"))
    prepared = one(Prepared, await drain(FakeEngine().prepare(prompt)))
    assert prepared.runs == (
        TokenRun((BEGIN, ROLE_TOKENS["system"], 115, END), 2, 3),
        TokenRun((ROLE_TOKENS["user"], 0xC3, 0xA9, END), 1, 3),
    )
    assert await FakeEngine().count("é") == 2


async def test_the_next_turn_evaluates_only_the_new_message() -> None:
    """What is in the context is not evaluated again."""
    engine = FakeEngine()
    first = ask("one")
    events = await drain(engine.generate(first, Sampling()))
    second = ask("two", *after(first, events))
    prepared = one(Prepared, await drain(engine.generate(second, Sampling())))
    assert (prepared.restored, prepared.prefilled) == (0, len("two") + 3)


async def test_another_engine_restores_from_the_same_disk(tmp_path: Path) -> None:
    """A new engine over the same folder restores the whole history."""
    first = ask("one")
    events = await drain(FakeEngine(disk=FakeDisk(tmp_path / "kv")).generate(first, Sampling()))
    history = after(first, events)
    n_history = sum(len(entry.run.ids) for entry in history if entry.run)
    second = ask("two", *history)
    prepared = one(Prepared, await drain(FakeEngine(disk=FakeDisk(tmp_path / "kv")).generate(second, Sampling())))
    assert (prepared.resident, prepared.restored, prepared.prefilled) == (0, n_history, len("two") + 3)


async def test_a_turn_writes_only_its_new_tokens() -> None:
    """Stored counts the tokens the disk did not have."""
    engine = FakeEngine(lambda _: "ok")
    first = ask("one")
    events = await drain(engine.generate(first, Sampling()))
    second = await drain(engine.generate(ask("two", *after(first, events)), Sampling()))
    assert one(Stored, second).kv_bytes_written == (len("two") + 2 + len("ok") + 2) * KV_BYTES_PER_TOKEN


async def test_nothing_is_stored_when_not_asked() -> None:
    """A prompt with store_kv False leaves the disk empty."""
    disk = FakeDisk()
    events = await drain(FakeEngine(disk=disk).generate(ask("hi", store_kv=False), Sampling()))
    assert (one(Stored, events).tip, len(disk)) == (None, 0)


def test_a_disk_forgets(tmp_path: Path) -> None:
    """Forgotten sequences are gone from the folder too; unknown keys do no harm."""
    disk = FakeDisk(tmp_path)
    key, _ = disk.put((1, 2, 3))
    disk.forget([key, "unknown"])
    assert (disk.match((1, 2)), list(tmp_path.iterdir())) == (0, [])


@pytest.mark.parametrize(
    ("sampling", "text", "reason"),
    [
        (Sampling(max_tokens=3), "one", "length"),
        (Sampling(max_tokens=13), "one two three", "end"),
        (Sampling(stop=("three", " two")), "one", "stop"),
        (Sampling(stop=("four",)), "one two three", "end"),
    ],
)
async def test_it_ends_where_it_is_told(sampling: Sampling, text: str, reason: str) -> None:
    """max_tokens and stop strings cut the answer and name the reason."""
    events = await drain(FakeEngine(lambda _: "one two three").generate(ask("hi"), sampling))
    finished = one(Finished, events)
    assert (finished.text, finished.reason) == (text, reason)


async def test_the_context_is_a_limit() -> None:
    """An answer ends where the context does; a prompt that does not fit is refused before anything happens."""
    engine = FakeEngine(lambda _: "long answer", n_ctx=12)
    finished = one(Finished, await drain(engine.generate(ask("12345"), Sampling())))
    assert (finished.reason, finished.text) == ("context", "lo")
    (failed,) = await drain(engine.generate(ask("1234567890"), Sampling()))
    assert isinstance(failed, Failed)
    assert failed.kind == "too_long"


@pytest.mark.parametrize(("script", "kind"), [("fail_at", "engine"), ("crash_at", "died")])
async def test_it_fails_where_the_script_says(script: str, kind: str) -> None:
    """The answer breaks off before the scripted token."""
    engine = FakeEngine()
    setattr(engine, script, 2)
    events = await drain(engine.generate(ask("hi"), Sampling()))
    assert len([event for event in events if isinstance(event, Piece)]) == 2
    assert one(Failed, events).kind == kind
    assert events[-1] is one(Failed, events)


async def test_a_crash_loses_the_context() -> None:
    """After a crash nothing is resident."""
    engine = FakeEngine(crash_at=1)
    await drain(engine.generate(ask("hi"), Sampling()))
    engine.crash_at = None
    assert one(Prepared, await drain(engine.generate(ask("hi"), Sampling()))).resident == 0


async def test_cancel_keeps_what_was_said() -> None:
    """A cancelled answer finishes with the pieces so far, also when it hangs."""
    engine = FakeEngine(hang_at=3)
    text = ""
    async for event in engine.generate(ask("hi"), Sampling()):
        if isinstance(event, Piece):
            text += event.text
            if len(text) == 3:
                await engine.cancel()
        if isinstance(event, Finished):
            assert (event.reason, event.text) == ("cancelled", text)
    assert text == echo("hi")[:3]


async def test_cancel_ends_a_prefill() -> None:
    """Cancelled between two chunks, a generation is Finished without text and a preparation is Failed."""
    engine = FakeEngine()
    await drain(engine.load())
    long = ask("x" * 2000)
    kinds = []
    for events in (engine.generate(long, Sampling()), engine.prepare(long)):
        async for event in events:
            kinds.append(type(event))
            await engine.cancel()
    assert kinds == [Progress, Finished, Stored, Progress, Failed]


async def test_pace_is_kept_by_the_injected_sleep() -> None:
    """`tokens_per_s` becomes one sleep a token."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    await drain(FakeEngine(lambda _: "abcd", tokens_per_s=50, sleep=sleep).generate(ask("hi"), Sampling()))
    assert slept[-4:] == [0.02] * 4


async def test_without_a_pace_others_have_a_turn_now_and_then() -> None:
    """The event loop is given up before every 16th token, and a stop that is asked for there is obeyed at once."""
    n_turns = 0

    async def turn(_seconds: float) -> None:
        nonlocal n_turns
        n_turns += 1
        if n_turns == 3:
            await engine.cancel()

    engine = FakeEngine(lambda _: "x" * 64, sleep=turn)
    await drain(engine.load())
    n_turns = -1  # prefill has one
    finished = one(Finished, await drain(engine.generate(ask("hi"), Sampling())))
    assert (finished.reason, finished.text) == ("cancelled", "x" * 32)


async def test_loading_twice_answers_at_once() -> None:
    """The first load has progress, the second only the result; a scripted error is a failure."""
    assert FakeEngine().info is None
    engine = FakeEngine()
    assert one(Loaded, await drain(engine.load())).info == engine.info
    assert [type(event) for event in await drain(engine.load())] == [Loaded]
    assert await drain(FakeEngine(load_error="no file").load()) == [Failed("model", "no file")]


async def test_requests_run_one_after_another() -> None:
    """Two requests at once do not mix their events."""
    engine = FakeEngine(lambda text: text)
    first, second = await asyncio.gather(
        drain(engine.generate(ask("aaa"), Sampling())), drain(engine.generate(ask("bbb"), Sampling()))
    )
    assert (one(Finished, first).text, one(Finished, second).text) == ("aaa", "bbb")
    await engine.close()


def test_unencodable_text_is_replaced() -> None:
    """A lone surrogate cannot break the tokenizer."""
    assert tokenize("\ud800") == (63,)


async def test_reasoning_stays_or_is_stripped() -> None:
    """The answer is told whole either way; with strip the next turn goes on behind the answer alone."""
    reply = "<think>\nHm.\n</think>\n\nYes."
    engine = FakeEngine(lambda _: reply)
    policies: tuple[tuple[Reasoning, str], ...] = (("keep", reply), ("strip", "Yes."))
    for policy, body in policies:
        first = Prompt((Entry("user", policy),), reasoning=policy)
        events = await drain(engine.generate(first, Sampling()))
        finished = one(Finished, events)
        assert (finished.text, bytes(finished.run.body)) == (reply, body.encode())
        assert finished.stats.reasoning_tokens == len("<think>\nHm.\n</think>")
        assert (finished.stats.stripped_tokens or 0) == len(reply) - len(body)
        second = await drain(engine.generate(ask("two", *after(first, events)), Sampling()))
        assert one(Prepared, second).prefilled == len("two") + 3


async def test_an_answer_that_ends_inside_its_reasoning_is_stripped_to_nothing() -> None:
    """There is no answer yet, so later prompts hold an empty one."""
    engine = FakeEngine(lambda _: "<think>\nHm.\n</think>Yes.")
    prompt = Prompt((Entry("user", "hi"),), reasoning="strip")
    finished = one(Finished, await drain(engine.generate(prompt, Sampling(max_tokens=10))))
    assert (finished.text, finished.run) == ("<think>\nHm", TokenRun((ROLE_TOKENS["assistant"], END), 1, 1))
    assert (finished.stats.reasoning_tokens, finished.stats.stripped_tokens) == (10, 10)


async def test_an_answer_without_reasoning_is_what_it_was() -> None:
    """Nothing is stripped, and the stats say nothing."""
    engine = FakeEngine(lambda _: "Use <think>.")
    prompt = Prompt((Entry("user", "hi"),), reasoning="strip")
    finished = one(Finished, await drain(engine.generate(prompt, Sampling())))
    assert bytes(finished.run.body) == b"Use <think>."
    assert (finished.stats.reasoning_tokens, finished.stats.stripped_tokens) == (None, None)
