from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from chatapp.tui.beside import Beside
from sessions.conversations import Conversations
from sessions.store import Store


def opener(folder: Path) -> Beside:
    """Conversations of a folder, asked beside this thread."""
    store = Store(folder)
    return Beside(lambda: Conversations(store.beside()))


async def test_questions_have_a_thread_and_a_connection_of_their_own(tmp_path: Path) -> None:
    """All are answered in one thread, which is not this one, by the same conversations."""
    beside = opener(tmp_path)
    first = await beside.ask(lambda them: (threading.get_ident(), id(them)))
    second = await beside.ask(lambda them: (threading.get_ident(), id(them)))
    await beside.close()
    assert first == second
    assert first[0] != threading.get_ident()


async def test_a_question_that_nobody_waits_for_is_not_asked(tmp_path: Path) -> None:
    """Of several questions that wait, those whose callers went away are left out."""
    beside = opener(tmp_path)
    gate = threading.Event()
    asked: list[str] = []
    running = asyncio.ensure_future(beside.ask(lambda _: gate.wait()))
    waiting = [asyncio.ensure_future(beside.ask(lambda _: asked.append("a")))]
    waiting.append(asyncio.ensure_future(beside.ask(lambda _: asked.append("b"))))
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(running, *waiting, return_exceptions=True)
    await beside.close()
    assert asked == ["b"]


async def test_nothing_is_asked_after_the_end(tmp_path: Path) -> None:
    """Once it is closed, whoever still asks is cancelled, and no connection is opened again."""
    beside = opener(tmp_path)
    await beside.ask(lambda them: them.sessions())
    await beside.close()
    with pytest.raises(asyncio.CancelledError):
        await beside.ask(lambda them: them.sessions())
