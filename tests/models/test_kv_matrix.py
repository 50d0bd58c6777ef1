"""Every kind of memory in every situation a conversation comes back in, through real engine processes."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from models.client import EngineProcess
from models.engine import (
    Entry,
    Event,
    Failed,
    Finished,
    Loaded,
    ModelInfo,
    Prepared,
    Prompt,
    Sampling,
    Stored,
    TurnStats,
)
from models.kvfolder import KvFolder
from models.llama import KvType
from tests.models.helpers import damage, n_ahead, n_new, one, segment_files
from tests.models.tiny_models import build

MEMORY_KINDS = ("dense", "sliding window", "hybrid", "recurrent", "moe", "q8_0")
GREEDY = Sampling(temperature=0, max_tokens=24)
QUESTIONS = (
    "Where does the river end, and who lives there all year round when the others have gone?",
    "And in the winter, when all of it is frozen and nobody goes out to the boats any more?",
    "Then tell me about the old bridge near the mill, and about the people who built it.",
)
SYSTEM = Entry("system", "You know the river and its people, the mill, the bridges and the boats.")


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer: what its prompt came from, its tokens, its stats, and the conversation behind it."""

    prepared: Prepared
    ids: tuple[int, ...]
    stats: TurnStats
    entries: tuple[Entry, ...]


class Chat:
    """One program over a folder."""

    def __init__(self, engine: EngineProcess, info: ModelInfo) -> None:
        self.engine = engine
        self.info = info

    async def ask(self, entries: Sequence[Entry], question: str, *, store_kv: bool = True) -> Turn:
        """Answer a question behind a conversation."""
        events: list[Event] = []
        prompt = Prompt((*entries, Entry("user", question)), store_kv=store_kv)
        async for event in self.engine.generate(prompt, GREEDY):
            assert not isinstance(event, Failed), event.message
            events.append(event)
        prepared, finished = one(Prepared, events), one(Finished, events)
        assert one(Stored, events).note is None
        said = [replace(e, run=r) for e, r in zip((*entries, Entry("user", question)), prepared.runs, strict=True)]
        behind = (*said, Entry("assistant", finished.text, finished.run))
        return Turn(prepared, finished.run.body, finished.stats, behind)

    async def open(self, entries: Sequence[Entry]) -> Prepared:
        """Open a conversation, as choosing it in the sidebar does."""
        events = [event async for event in self.engine.prepare(Prompt(tuple(entries)))]
        return one(Prepared, events)


@asynccontextmanager
async def program(model: Path, root: Path, kind: str) -> AsyncIterator[Chat]:
    """Start the program over a folder; leaving ends its engine process."""
    kv_type: KvType = "q8_0" if kind == "q8_0" else "f16"
    engine = EngineProcess(
        model,
        cache_dir=root / "cache",
        data_dir=root / "data",
        n_ctx=2048,
        threads=1,
        flash_attention="on" if kind == "q8_0" else "off",
        kv_type=kv_type,
    )
    try:
        events = [event async for event in engine.load()]
        yield Chat(engine, one(Loaded, events).info)
    finally:
        await engine.close()


def n_tokens(entries: Sequence[Entry]) -> int:
    """Tokens of messages that have been in the KV cache."""
    return sum(len(entry.run.ids) for entry in entries if entry.run)


@dataclass(frozen=True, slots=True)
class Told:
    """A conversation of two turns, and the third one as it was answered without leaving."""

    model: Path
    root: Path
    kind: str
    first: Turn
    second: Turn
    third: Turn


@pytest.fixture(scope="module", params=MEMORY_KINDS)
def _original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Have the conversation once with the model of each kind; its third turn leaves no KV behind."""
    kind, root = str(request.param), tmp_path_factory.mktemp("told")
    return asyncio.run(_tell(kind, root))


async def _tell(kind: str, root: Path) -> Told:
    model = build("dense" if kind == "q8_0" else kind, root)
    async with program(model, root, kind) as chat:
        expected = {"moe": "dense", "q8_0": "dense"}.get(kind, kind)
        assert (chat.info.memory_kind, chat.info.kv_note) == (expected, None)
        first = await chat.ask([SYSTEM], QUESTIONS[0])
        second = await chat.ask(first.entries, QUESTIONS[1])
        third = await chat.ask(second.entries, QUESTIONS[2], store_kv=False)
    return Told(model, root, kind, first, second, third)


@pytest.fixture
def told(_original: Told, tmp_path: Path) -> Told:
    """The conversation, on a disk of its own."""
    shutil.copytree(_original.root / "cache", tmp_path / "cache")
    shutil.copytree(_original.root / "data", tmp_path / "data")
    return replace(_original, root=tmp_path)


async def test_same_process(told: Told) -> None:
    """Switching to another conversation and back evaluates the new message only, and answers as if never left."""
    async with program(told.model, told.root, told.kind) as chat:
        await chat.open(told.second.entries)
        await chat.ask([Entry("system", "You are somebody else.")], "Who are you?")
        back = await chat.open(told.second.entries)
        turn = await chat.ask(told.second.entries, QUESTIONS[2])
    assert (back.resident + back.restored, back.prefilled) == (n_tokens(told.second.entries), 0)
    assert (back.restored > back.resident, back.miss_reason) == (True, None)
    n_reused = n_tokens(told.second.entries) + n_ahead(turn.prepared)
    assert (turn.prepared.resident, turn.prepared.prefilled) == (n_reused, n_new(turn.prepared))
    assert turn.ids == told.third.ids


async def test_new_process(told: Told) -> None:
    """A fresh process restores the whole history; the continuation is token for token the live one."""
    async with program(told.model, told.root, told.kind) as chat:
        turn = await chat.ask(told.second.entries, QUESTIONS[2])
    n_reused = n_tokens(told.second.entries) + n_ahead(turn.prepared)
    assert (turn.prepared.restored, turn.prepared.prefilled) == (n_reused, n_new(turn.prepared))
    assert (turn.prepared.miss_reason, turn.stats.restore_decision) == (None, "restore")
    assert turn.ids == told.third.ids


async def test_fork(told: Told) -> None:
    """Another question behind the first turn reuses all of it, and writes nothing of it again."""
    async with program(told.model, told.root, told.kind) as chat:
        before = {path: path.stat().st_mtime_ns for path in segment_files(told.root / "cache" / "kv")}
        turn = await chat.ask(told.first.entries, "Is there a ferry?")
        again = await chat.ask(told.second.entries, QUESTIONS[2])
    n_reused = n_tokens(told.first.entries) + n_ahead(turn.prepared)
    assert (turn.prepared.restored, turn.prepared.prefilled) == (n_reused, n_new(turn.prepared))
    assert again.prepared.prefilled == n_new(again.prepared)
    assert again.ids == told.third.ids
    assert {path: path.stat().st_mtime_ns for path in before} == before


async def test_edit_in_the_middle(told: Told) -> None:
    """With the second question changed, all before it is reused; the answer is that of a program without stored KV."""
    async with program(told.model, told.root, told.kind) as chat:
        turn = await chat.ask(told.first.entries, QUESTIONS[1].replace("winter", "summer"))
    expected = n_tokens(told.first.entries) + n_ahead(turn.prepared)
    assert turn.prepared.miss_reason is None
    assert turn.prepared.restored >= expected
    assert turn.prepared.prefilled <= n_new(turn.prepared)
    if told.kind not in ("dense", "moe", "q8_0"):
        assert turn.prepared.restored == expected


async def test_damaged(told: Told) -> None:
    """A damaged beginning is set aside and named, and the answer is the one a program gives that has nothing stored."""
    kv = KvFolder(told.root / "cache" / "kv")
    (generation,) = kv.generations()
    for file in segment_files(kv.root):
        damage(file)
    async with program(told.model, told.root, told.kind) as chat:
        turn = await chat.ask(told.second.entries, QUESTIONS[2])
        assert turn.prepared.miss_reason == "damaged file set aside: its checksum does not match"
        assert turn.prepared.restored == 0
        following = await chat.ask(turn.entries, "And then?")
        assert following.prepared.prefilled == n_new(following.prepared)
    kv.remove_generation(generation)
    kv.index_path.unlink()
    async with program(told.model, told.root, told.kind) as chat:
        clean = await chat.ask(told.second.entries, QUESTIONS[2])
        assert clean.prepared.miss_reason == "nothing stored"
    assert turn.ids == clean.ids
