from dataclasses import replace
from pathlib import Path

import pytest

from models.client import EngineProcess
from models.engine import Failed, Finished, Prepared
from models.fake import FakeEngine
from sessions import summary
from sessions.errors import BadRequest
from sessions.manager import SessionManager
from sessions.store import Store
from sessions.titles import read_title
from tests.models.helpers import one, starter
from tests.sessions.helpers import GREEDY, drain, make_manager
from tests.sessions.test_room import message


def test_the_last_turns_are_quoted_where_there_is_no_room() -> None:
    """What is summarized ends behind an answer and leaves room for the question and the summary."""
    turns = [message(100) for _ in range(8)]
    history = [
        turn if n % 2 == 0 else type(turn)(n, "s", "assistant", "a", "complete", turn.run, None, 0.0)
        for n, turn in enumerate(turns)
    ]
    assert summary.split(history, 4096) == (history, [])
    summarized, quoted = summary.split(history, 700)  # 700 - 128 - 87: four messages
    assert (len(summarized), len(quoted)) == (4, 4)
    assert summary.split(history, 300)[0] == []


async def test_a_summary_leaves_the_conversation_alone(store: Store) -> None:
    """It is asked behind the resident history, its reasoning is left out, and nothing of it is stored."""
    engine = FakeEngine(lambda text: "<think>\nhm\n</think>\n\nIt was about tea." if "Summarize" in text else "yes")
    manager = make_manager(store, engine)
    session = manager.new(system="s")
    await drain(manager.send(session.id, "Is tea good?", GREEDY))
    before = manager.messages(session.id)
    events = await drain(manager.summarize(session.id))
    (text,) = [event.text for event in events if isinstance(event, Finished)]
    prompt = engine.prompts[-1]
    assert [entry.run for entry in prompt.entries[:-1]] == [message.run for message in before]
    assert not prompt.store_kv
    assert manager.messages(session.id) == before
    begun = manager.continuation(session.id, text)
    assert "It was about tea." in begun
    assert "hm" not in begun
    assert "Is tea good?" not in begun


async def test_what_cannot_be_summarized_is_said(store: Store) -> None:
    """Without a whole turn there is nothing to summarize."""
    manager = make_manager(store, FakeEngine())
    with pytest.raises(BadRequest, match="leave out turns"):
        await drain(manager.summarize(manager.new().id))


async def test_a_summary_can_be_stopped(store: Store) -> None:
    """What was said by then is what there is."""
    engine = FakeEngine(lambda _: "a long summary")
    manager = make_manager(store, engine)
    session = manager.new()
    await drain(manager.send(session.id, "hi", GREEDY))
    engine.hang_at = 3
    seen = []
    async for event in manager.summarize(session.id):
        seen.append(event)
        if len(seen) == 4:
            await manager.stop()
    assert not any(isinstance(event, Failed) for event in seen)
    assert any(isinstance(event, Finished) and event.reason == "cancelled" for event in seen)


async def test_a_title_leaves_the_cache_alone(store: Store) -> None:
    """The next turn evaluates what it would have without the title: the message and its glue."""
    engine = FakeEngine(lambda text: '"Tea and its merits."\nmore' if "title" in text else "yes")
    manager = make_manager(store, engine)
    session = manager.new(system="s")
    await drain(manager.send(session.id, "Is tea good?", GREEDY))
    plain = await drain(manager.send(session.id, "why?", GREEDY))
    events = await drain(manager.suggest_title(session.id))
    assert read_title(one(Finished, events).text) == "Tea and its merits"
    after = await drain(manager.send(session.id, "why?", GREEDY))
    assert one(Prepared, after).prefilled <= one(Prepared, plain).prefilled
    assert one(Prepared, after).restored == 0


def test_titles_are_read_without_their_wrapping() -> None:
    """Quotes, marks, the word itself and reasoning are no part of a title; an empty answer gives none."""
    answers = (
        "**Title: Tea**",
        "<think>hm</think>\n\n“차에 대하여.”",
        "# Tea\n\nIt is about tea",
        "",
        "<think>never ends",
    )
    assert [read_title(answer) for answer in answers] == ["Tea", "차에 대하여", "Tea", "", ""]


async def test_a_real_model_keeps_what_is_resident(store: Store, tmp_path: Path) -> None:
    """Behind a title and a summary the next turn evaluates the new message and its glue, nothing of the history."""
    engine = EngineProcess(starter(), cache_dir=tmp_path / "c", data_dir=tmp_path / "d", n_ctx=2048, threads=1)
    manager = SessionManager(store, engine)
    session = manager.new(system="You are brief.")
    short = replace(GREEDY, max_tokens=8)
    try:
        await drain(manager.send(session.id, "Is green tea good?", short))
        before = manager.messages(session.id)
        assert one(Finished, await drain(manager.suggest_title(session.id))).text
        assert one(Finished, await drain(manager.summarize(session.id))).text
        assert manager.messages(session.id) == before
        prepared = one(Prepared, await drain(manager.send(session.id, "Why?", short)))
    finally:
        await engine.close()
    n_history = sum(len(message.run.ids) for message in before if message.run)
    assert (prepared.resident >= n_history, prepared.restored) == (True, 0)
