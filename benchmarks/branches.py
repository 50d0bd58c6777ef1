"""What forking, editing, answering once more and going on evaluate in a long conversation: tokens, counted.

`python -m benchmarks.branches [--tokens 4000]` prints a line for each verb: tokens of the history, tokens evaluated,
and how many of them are new (the message and its glue).
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from models.catalog import starter_model
from models.client import EngineProcess
from models.engine import Event, Failed, Finished, Prepared, Sampling
from sessions.manager import SessionManager
from sessions.store import Store

GREEDY = Sampling(temperature=0, max_tokens=16)
QUESTION = "Continue with the next item, briefly."


@dataclass(frozen=True, slots=True)
class Row:
    """One verb: tokens of what it begins with, tokens evaluated, and those that no conversation had before."""

    verb: str
    n_history: int
    evaluated: int
    new: int


async def measure(model: Path, folder: Path, *, n_tokens: int) -> list[Row]:
    """Build a conversation of so many tokens, and use each verb on it."""
    engine = EngineProcess(model, cache_dir=folder / "cache", data_dir=folder / "data", n_ctx=8192)
    with closing(Store(folder / "data")) as store:
        manager = SessionManager(store, engine)
        try:
            return await _measure(manager, n_tokens)
        finally:
            await engine.close()


async def _measure(manager: SessionManager, n_tokens: int) -> list[Row]:
    key = manager.new(system="You keep lists.").id
    n = 0
    while _size(manager, key) < n_tokens:
        n += 1
        text = f"Item {n}: " + "apples, pears, plums, cherries and quinces from the garden behind the house. " * 12
        await _run(manager.send(key, text, GREEDY))
    last_question, last_answer = manager.messages(key)[-2:]
    rows = []

    def row(verb: str, prepared: Prepared, at: str) -> None:
        question = manager.messages(at)[-2]
        assert question.run is not None, "it was tokenized for its answer"
        new = len(question.run.ids) + len(prepared.opening)
        rows.append(Row(verb, prepared.resident + prepared.restored, prepared.prefilled, new))

    row("answer once more", await _run(manager.regenerate(key, GREEDY)), key)
    row("edit the last question", await _run(manager.send(key, QUESTION, GREEDY, edits=last_question.id)), key)
    manager.show_branch(key, last_answer.id)
    fork = manager.fork(key)
    row("fork and ask", await _run(manager.send(fork.id, QUESTION, GREEDY)), fork.id)
    row("go on", await _run(manager.continue_answer(fork.id, GREEDY)), fork.id)
    return rows


def _size(manager: SessionManager, key: str) -> int:
    return sum(len(message.run.ids) for message in manager.messages(key) if message.run)


async def _run(events: AsyncIterator[Event]) -> Prepared:
    found: Prepared | None = None
    is_answered = False
    async for event in events:
        assert not isinstance(event, Failed), event.message
        found = event if isinstance(event, Prepared) else found
        is_answered = is_answered or isinstance(event, Finished)
    assert found is not None, "a turn prepares its prompt"
    assert is_answered, "and is answered"
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4000)
    model = starter_model()
    assert model is not None, "the starter model is not installed"
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(model, Path(folder), n_tokens=parser.parse_args().tokens))
    print(f"{'verb':<24}{'reused':>9}{'evaluated':>11}{'new':>6}")
    for row in rows:
        print(f"{row.verb:<24}{row.n_history:>9,}{row.evaluated:>11,}{row.new:>6,}")


if __name__ == "__main__":
    main()
