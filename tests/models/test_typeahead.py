"""Drafts that are read ahead: counts, answers, edits and other requests, with real models of each kind of memory."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.client import EngineProcess
from models.engine import Ahead, Entry, Event, Finished, Loaded, Prepared, Prompt, Sampling, Stored
from models.llama.context import N_BATCH
from models.loading import LocalSettings
from models.local import LocalEngine
from models.typeahead import draft_tokens, settled_text
from tests.models.helpers import after, copy_notes, local_settings, one, segment_files
from tests.models.tiny_models import build

GREEDY = Sampling(temperature=0, max_tokens=16)
KINDS = ("dense", "sliding window", "hybrid", "recurrent")
SENTENCE = "The keeper of lighthouse {n} counted {n} ships, and wrote each of them into the book of that year. "
SAID = "The old harbour lies behind the hill, and the boats come home before it is dark. "


def paste(n_sentences: int, first: int = 1) -> str:
    """A long text in which no sentence is like another."""
    return "".join(SENTENCE.format(n=first + n) for n in range(n_sentences))


@dataclass
class Talker:
    """One engine; `draft` reads ahead and returns the last word on it, `waits` says that a request does."""

    settings: LocalSettings
    waits: Callable[[], bool] = lambda: False
    told: list[Ahead] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.events: list[Event] = []
        self.engine = LocalEngine(self.settings, self.events.append, is_awaited=self._is_awaited)
        self.kv = self.settings.cache_dir / "kv"

    def _is_awaited(self) -> bool:
        return self.waits()

    def draft(self, prompt: Prompt) -> Ahead:
        """Read a draft ahead."""
        self.told = []
        self.engine.clear_cancel()
        self.engine.anticipate(prompt, self.told.append)
        return self.told[-1]

    def send(self, prompt: Prompt, sampling: Sampling = GREEDY) -> list[Event]:
        """Answer a prompt and wait until its KV is written."""
        self.events.clear()
        self.engine.clear_cancel()
        self.engine.generate(prompt, sampling, self.events.append)
        if writer := self.engine._residency._writer:
            writer.drain()
        return list(self.events)

    def prefill(self, chunks: list[list[int]]) -> None:
        """Make tokens resident in just these batches."""
        context = self.engine._context
        context.clear()
        self.engine._residency.cut(0)
        for chunk in chunks:
            assert context.prefill(chunk, lambda _done: None)

    @property
    def resident(self) -> list[int]:
        """Tokens of the context."""
        return list(self.engine._context.tokens)

    @property
    def files(self) -> list[tuple[str, int]]:
        """Everything that lies on disk of its KV, with the time it was changed."""
        return [(path.name, path.stat().st_mtime_ns) for path in segment_files(self.kv)]


def after_turn(prompt: Prompt, events: list[Event], draft: str) -> Prompt:
    """The conversation behind a turn, with a draft at its end."""
    return after(prompt, events, draft)


def typed(prompt: Prompt, text: str) -> Prompt:
    """The same prompt with another draft."""
    return replace(prompt, entries=(*prompt.entries[:-1], Entry("user", text)))


# --- which tokens are settled ---


@pytest.mark.parametrize(
    ("draft", "settled"),
    [
        ("", ""),
        ("hello", ""),
        ("hello wor", "hello"),
        ("hello world ", "hello"),
        ("one\ntwo\n\nthr", "one\ntwo"),
        ("한국어 입력", "한국어"),
        ("a " + "x" * 200, "a " + "x" * 136),
    ],
)
def test_the_last_word_is_not_settled(draft: str, settled: str) -> None:
    """Up to the white space before it; of an endless word all but its end."""
    assert settled_text(draft) == settled


@pytest.fixture(scope="module")
def starter(native_log: list[str], warm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talker]:
    """The starter model with room for a long paste."""
    assert native_log is not None
    root = copy_notes(warm_root, tmp_path_factory.mktemp("starter"))
    talker = Talker(local_settings(root, n_ctx=2560))
    yield talker
    talker.engine.close()


@given(
    text=st.text(st.sampled_from("ab .,\n1한é😀'"), max_size=60),
    more=st.text(st.sampled_from("ab .,\n1한é😀'"), max_size=20),
)
def test_typing_on_keeps_what_is_settled(starter: Talker, text: str, more: str) -> None:
    """Whatever is typed behind it, the tokens of the whole message begin with those that were read ahead."""
    engine = starter.engine
    draft = draft_tokens([Entry("user", text)], engine._questions.runs)
    whole = engine._questions.runs([Entry("user", text + more)])[0].ids
    n = len(draft.tokens)
    # Behind white space a tokenizer may join what comes with what is there: at most the last token.
    assert whole[: n - 1] == draft.tokens[: n - 1]


# --- the starter model ---


def test_send_evaluates_the_typed_tail_and_no_more(starter: Talker) -> None:
    """Of a paste of about 1,500 tokens, read ahead, only the end and the words typed since are evaluated at send."""
    first = Prompt((Entry("system", "Be brief."), Entry("user", "Name a lighthouse.")))
    begun = starter.send(first)
    pasted = paste(58)
    draft = after_turn(first, begun, pasted)
    ahead = starter.draft(draft)
    assert ahead.is_whole
    assert ahead.n_settled > 1400
    tail = " What is the sum of all ships?"
    sent = typed(draft, pasted + tail)
    events = starter.send(sent)
    prepared, stats = one(Prepared, events), one(Finished, events).stats
    assert stats.prefilled_tokens is not None
    assert stats.resident_tokens is not None
    n_tail = starter.engine.count(tail)
    glue = len(prepared.runs[-1].ids) - len(prepared.runs[-1].body) - prepared.runs[-1].body_start
    assert stats.prefilled_tokens <= n_tail + glue + len(prepared.opening) + 4 <= n_tail + N_BATCH
    assert stats.prefilled_tokens + stats.resident_tokens == stats.prompt_tokens
    assert (stats.restored_tokens, stats.miss_reason) == (0, None)


def test_greedy_answers_are_those_of_the_same_batches(starter: Talker) -> None:
    """What was read ahead answers token for token as a prefill in the same batches, which alone decide the rounding."""
    prompt = Prompt((Entry("user", paste(24, first=200)),), store_kv=False)
    starter.prefill([])
    starter.draft(prompt)
    tokens = starter.resident
    # The context was empty: what the draft's first token stands behind was in the first batch.
    n_before = len(tokens) - starter.told[-1].n_ready
    ends = [0, *(n_before + told.n_ready for told in starter.told[1:])]
    assert len(ends) > 2
    ahead = one(Finished, starter.send(prompt))
    starter.prefill([tokens[start:end] for start, end in pairwise(ends)])
    without = one(Finished, starter.send(prompt))
    assert ahead.run == without.run
    assert ahead.stats.prefilled_tokens == without.stats.prefilled_tokens
    assert ahead.stats.prefilled_tokens is not None
    assert ahead.stats.prefilled_tokens < 16


def test_a_draft_that_grows_is_evaluated_once(starter: Talker) -> None:
    """Each look evaluates only what was typed since."""
    starter.prefill([])
    prompt = Prompt((Entry("user", ""),), store_kv=False)
    n_before = 0
    for n in (5, 9, 14):
        starter.draft(typed(prompt, paste(n, first=300)))
        assert starter.told[0].n_ready == max(0, n_before)
        n_before = starter.told[-1].n_ready
        assert starter.told[-1].is_whole


def test_a_few_words_are_left_to_the_send(starter: Talker) -> None:
    """They fit into the batch that has to run anyway."""
    starter.prefill([])
    prompt = Prompt((Entry("user", paste(3)),), store_kv=False)
    n_ready = starter.draft(prompt).n_ready
    more = starter.draft(typed(prompt, paste(3) + "Hello there, my friend"))
    assert more.n_settled > more.n_ready == n_ready


def test_what_does_not_fit_the_context_is_left_alone(starter: Talker) -> None:
    """The send tells; the context stays what it was."""
    before = starter.resident
    starter.told = []
    starter.engine.anticipate(Prompt((Entry("user", paste(200)),)), starter.told.append)
    assert starter.told == []
    assert starter.resident == before


# --- each kind of memory ---


@pytest.fixture(scope="module", params=KINDS)
def talker(
    request: pytest.FixtureRequest, native_log: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Talker]:
    """A tiny random model of each kind."""
    assert native_log is not None
    root = tmp_path_factory.mktemp("tiny")
    made = Talker(
        LocalSettings(
            build(str(request.param), root),
            cache_dir=root / "cache",
            data_dir=root / "data",
            n_ctx=2048,
            threads=1,
            flash_attention="off",
        )
    )
    assert made.engine.info.memory_kind == request.param
    yield made
    made.engine.close()


@pytest.fixture
def turn(talker: Talker, request: pytest.FixtureRequest) -> tuple[Prompt, list[Event]]:
    """A first turn of a conversation of this test's own."""
    talker.waits = lambda: False
    prompt = Prompt((Entry("system", f"{SAID} {request.node.name}"), Entry("user", SAID * 3)))
    return prompt, talker.send(prompt)


def is_rewindable(talker: Talker) -> bool:
    """True for the kinds that need no copy."""
    return talker.engine.info.memory_kind in ("dense", "sliding window")


def test_every_kind_sends_only_the_rest(talker: Talker, turn: tuple[Prompt, list[Event]]) -> None:
    """What was read ahead is resident, the history too, and nothing is missed."""
    draft = after_turn(*turn, paste(8))
    ahead = talker.draft(draft)
    assert ahead.is_whole
    stats = one(Finished, talker.send(draft)).stats
    assert stats.prefilled_tokens is not None
    assert stats.prefilled_tokens < 40
    assert stats.resident_tokens is not None
    assert stats.resident_tokens > ahead.n_settled
    assert (stats.restored_tokens, stats.miss_reason) == (0, None)


def test_an_edited_draft_is_not_remembered(talker: Talker, turn: tuple[Prompt, list[Event]]) -> None:
    """After an edit in the middle the answer is that of a conversation in which nothing else was ever typed."""
    draft = after_turn(*turn, paste(8))
    talker.draft(draft)
    n_history = sum(len(entry.run.ids) for entry in draft.entries if entry.run)
    edited = replace(typed(draft, paste(3) + "But then it was night. " + paste(3, first=50)), store_kv=False)
    talker.draft(edited)
    # What cannot rewind goes back to behind the history, and what can to where the text parts.
    assert (talker.told[0].n_ready > 0) == is_rewindable(talker)
    assert talker.told[-1].is_whole
    assert len(talker.resident) > n_history
    found = one(Finished, talker.send(edited))
    again = after_turn(*turn, "")
    talker.send(replace(typed(again, "Go back."), store_kv=False))
    clean = one(Finished, talker.send(edited))
    assert found.stats.miss_reason is None
    assert found.run.body[:4] == clean.run.body[:4]


def test_something_else_is_sent(talker: Talker, turn: tuple[Prompt, list[Event]]) -> None:
    """The history is resident all the same, in every kind of memory, and answers as if no draft had been there."""
    other = replace(after_turn(*turn, "Never mind: " + SAID), store_kv=False)
    plain = one(Finished, talker.send(other))
    talker.send(replace(turn[0], store_kv=False))  # the context is behind the question again
    talker.draft(after_turn(*turn, paste(8)))
    finished = one(Finished, talker.send(other))
    assert finished.run == plain.run
    assert finished.stats.miss_reason is None
    n_history = sum(len(entry.run.ids) for entry in other.entries if entry.run)
    assert finished.stats.resident_tokens is not None
    assert finished.stats.resident_tokens >= n_history


def test_nothing_is_written(talker: Talker, turn: tuple[Prompt, list[Event]]) -> None:
    """Files and chain are what they were, and the turn that is sent writes its own."""
    before, tip = talker.files, talker.engine._residency.tip
    draft = after_turn(*turn, paste(8))
    talker.draft(draft)
    assert (talker.files, talker.engine._residency.tip) == (before, tip)
    talker.draft(typed(draft, paste(4, first=90)))
    assert (talker.files, talker.engine._residency.tip) == (before, tip)
    stored = one(Stored, talker.send(draft))
    assert stored.kv_bytes_written > 0
    assert stored.tip not in (None, tip)
    assert [name for name, _ in before] == [name for name, _ in talker.files if name in dict(before)]


def test_a_request_that_waits_ends_it(talker: Talker, turn: tuple[Prompt, list[Event]]) -> None:
    """Before the first batch nothing is touched; between two batches it ends, with what was read so far."""
    draft = after_turn(*turn, paste(16))
    before = talker.resident
    talker.waits = lambda: True
    talker.told = []
    talker.engine.anticipate(draft, talker.told.append)
    assert (talker.told, talker.resident) == ([], before)
    talker.waits = lambda: len(talker.told) > 1
    talker.told = []
    talker.engine.clear_cancel()
    talker.engine.anticipate(draft, talker.told.append)
    n_ready = talker.told[-1].n_ready
    assert talker.told[-1].n_settled > n_ready > 0
    assert len(talker.resident) > len(before)
    stats = one(Finished, talker.send(replace(draft, store_kv=False))).stats
    assert stats.resident_tokens == len(before) + n_ready


def test_a_request_that_comes_breaks_it_off(talker: Talker, turn: tuple[Prompt, list[Event]]) -> None:
    """`give_way` inside a batch: the history stays resident in every kind of memory."""
    draft = after_turn(*turn, paste(16))
    before = talker.resident
    engine = talker.engine
    engine.clear_cancel()
    engine.anticipate(draft, lambda _ahead: engine.give_way())
    assert talker.resident[: len(before)] == before
    assert len(talker.resident) - len(before) < N_BATCH
    stats = one(Finished, talker.send(replace(draft, store_kv=False))).stats
    assert (stats.restored_tokens, stats.miss_reason) == (0, None)
    engine.give_way()  # nothing is read ahead any more: nobody is hurt
    assert not engine._context.is_cancelled


def test_a_history_that_has_gone_is_restored_first(talker: Talker, turn: tuple[Prompt, list[Event]]) -> None:
    """Another conversation was resident: the draft brings its own back, and the send is counted as usual."""
    talker.send(Prompt((Entry("user", "Another conversation altogether."),), store_kv=False))
    talker.engine._residency._rates = replace(talker.engine._residency._rates, restore_s_per_byte=0.0)
    draft = after_turn(*turn, paste(8))
    assert talker.draft(draft).is_whole
    stats = one(Finished, talker.send(replace(draft, store_kv=False))).stats
    assert stats.miss_reason is None
    assert stats.prefilled_tokens is not None
    assert stats.prefilled_tokens < 40


def test_a_history_comes_back_from_its_newest_state(talker: Talker, turn: tuple[Prompt, list[Event]]) -> None:
    """All of it is restored in every kind of memory, though states are stored behind the opening that follows it."""
    talker.send(Prompt((Entry("user", "Another conversation altogether."),), store_kv=False))
    residency = talker.engine._residency
    residency._rates = replace(residency._rates, restore_s_per_byte=0.0, restore_s_per_file=0.0)
    draft = after_turn(*turn, paste(8))
    assert talker.draft(draft).is_whole
    assert residency._chain[-1].end >= sum(len(entry.run.ids) for entry in draft.entries if entry.run)


def test_an_anchor_inside_a_stored_piece_is_no_border(talker: Talker, turn: tuple[Prompt, list[Event]]) -> None:
    """A text was read ahead from the middle of a piece on, and its conversation is asked again: the piece is loaded."""
    asked = after_turn(*turn, paste(8))
    said = talker.send(asked)
    tokens = talker.resident
    border = max(talker.engine._residency._chain, key=lambda piece: piece.end - piece.start).start
    assert border > 40
    talker.prefill([tokens[: border - 20]])
    talker.engine._context.anchor()
    assert talker.engine._context.prefill(tokens[border - 20 : border + 20], lambda _done: None)
    residency = talker.engine._residency
    residency._rates = replace(residency._rates, restore_s_per_byte=0.0, restore_s_per_file=0.0)
    stats = one(Finished, talker.send(replace(after_turn(asked, said, "And then?"), store_kv=False))).stats
    assert stats.restored_tokens
    assert stats.miss_reason is None


# --- through the pipe ---


async def test_a_question_ends_the_reading_of_a_draft(warm_root: Path, tmp_path: Path) -> None:
    """In the engine process: a draft is read in steps, gives way to a count and to a question."""
    root = copy_notes(warm_root, tmp_path)
    settings = local_settings(root, n_ctx=2560)
    engine = EngineProcess(
        settings.model_path,
        cache_dir=settings.cache_dir,
        data_dir=settings.data_dir,
        n_ctx=2560,
        threads=1,
        flash_attention="off",
    )
    try:
        prompt = Prompt((Entry("user", paste(24)),))
        assert [ahead async for ahead in engine.anticipate(prompt)] == []  # nothing is loaded for a draft
        one(Loaded, [event async for event in engine.load()])
        reading = asyncio.create_task(_last(engine, prompt))
        assert await engine.count("three little words") == 3
        first = await reading
        whole = await _last(engine, prompt)
        assert whole is not None
        assert whole.is_whole
        assert first is None or first.n_ready <= whole.n_ready
        longer = asyncio.create_task(_last(engine, typed(prompt, paste(30))))
        await asyncio.sleep(0)
        asked = Prompt((Entry("user", "Name a colour."),))
        events = [event async for event in engine.generate(asked, replace(GREEDY, max_tokens=2))]
        assert one(Finished, events).reason == "length"
        await longer
        stats = one(Finished, [event async for event in engine.generate(prompt, replace(GREEDY, max_tokens=2))]).stats
        assert stats.prompt_tokens is not None
    finally:
        await engine.close()


async def test_a_draft_that_nobody_wants_any_more_ends(warm_root: Path, tmp_path: Path) -> None:
    """Closing its events cancels it: the next request need not wait, and `cancel` never means a draft."""
    root = copy_notes(warm_root, tmp_path)
    settings = local_settings(root, n_ctx=2560)
    engine = EngineProcess(
        settings.model_path,
        cache_dir=settings.cache_dir,
        data_dir=settings.data_dir,
        n_ctx=2560,
        threads=1,
        flash_attention="off",
    )
    try:
        one(Loaded, [event async for event in engine.load()])
        async with aclosing(engine.anticipate(Prompt((Entry("user", paste(24)),)))) as events:  # type: ignore[type-var]
            async for ahead in events:
                assert not ahead.is_whole
                break
        await engine.cancel()
        asked = Prompt((Entry("user", "Name a colour."),))
        told = [event async for event in engine.generate(asked, replace(GREEDY, max_tokens=2))]
        assert one(Finished, told).reason == "length"
    finally:
        await engine.close()


async def test_an_engine_that_dies_while_it_reads_is_started_by_the_question(warm_root: Path, tmp_path: Path) -> None:
    """The reading just ends, and no draft starts a process; the question that comes then is answered."""
    root = copy_notes(warm_root, tmp_path)
    settings = local_settings(root, n_ctx=2560)
    engine = EngineProcess(
        settings.model_path,
        cache_dir=settings.cache_dir,
        data_dir=settings.data_dir,
        n_ctx=2560,
        threads=1,
        flash_attention="off",
    )
    try:
        one(Loaded, [event async for event in engine.load()])
        told = []
        async for ahead in engine.anticipate(Prompt((Entry("user", paste(24)),))):
            told.append(ahead)
            if len(told) == 1:
                assert engine.pid is not None
                os.kill(engine.pid, signal.SIGKILL)
        assert not told[-1].is_whole
        assert [ahead async for ahead in engine.anticipate(Prompt((Entry("user", paste(24)),)))] == []
        assert engine.pid is None
        asked = Prompt((Entry("user", "Name a colour."),))
        events = [event async for event in engine.generate(asked, replace(GREEDY, max_tokens=2))]
        assert one(Finished, events).reason == "length"
    finally:
        await engine.close()


async def _last(engine: EngineProcess, prompt: Prompt) -> Ahead | None:
    told = [ahead async for ahead in engine.anticipate(prompt)]
    return told[-1] if told else None
