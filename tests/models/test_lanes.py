import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from models.engine import Ahead, Entry, Event, Failed, Finished, Loaded, Piece, Prepared, Prompt, Sampling, Stored
from models.errors import PromptTooLong
from models.llama import Context, ContextSettings
from models.local import LocalEngine
from models.schema import grammar_of
from tests.models.helpers import copy_notes, free, local_settings, one, segment_files
from tests.models.tiny_models import build

GREEDY = Sampling(temperature=0, max_tokens=16)
ROUNDING = 0.5
"""How far apart the two likeliest tokens may be where a batch of other rows makes another one likeliest."""
SYSTEM = "You are a guide in a harbor town. " + " ".join(
    f"House {i} belongs to a family that sells lamps, rope and salted fish." for i in range(8)
)
WORDS = ("lanterns", "orchards", "bridges", "winter", "pepper", "letters", "trains", "gardens", "copper", "rivers")


class Together:
    """An engine whose questions are answered together, and what it said to each of them."""

    def __init__(self, root: Path, *, n_ctx: int = 2048, n_parallel: int = 4) -> None:
        self.root = root
        self.heard: dict[int, list[Event]] = {}
        self.cancelled: set[int] = set()
        settings = replace(local_settings(root, n_ctx=n_ctx), n_parallel=n_parallel)
        self.engine = LocalEngine(settings, lambda _event: None, is_cancelled=self.cancelled.__contains__)

    def join(self, key: int, prompt: Prompt, sampling: Sampling = GREEDY) -> None:
        """Ask, without waiting."""
        self.heard[key] = []
        self.engine.join(key, prompt, sampling, self.heard[key].append)

    def run(self) -> None:
        """Answer all."""
        while self.engine.is_busy:
            self.engine.step()
        writer = self.engine._residency._writer
        assert writer is not None
        writer.drain()

    def finished(self, key: int) -> Finished:
        """How an answer ended."""
        return one(Finished, self.heard[key])

    def prepare(self, prompt: Prompt) -> Prepared:
        """Make what questions share resident."""
        events: list[Event] = []
        self.engine.prepare(prompt, events.append)
        return one(Prepared, events)

    @property
    def n_prefilled(self) -> int:
        """Tokens of prompts that were evaluated, for all questions together."""
        return sum(self.finished(key).stats.prefilled_tokens or 0 for key in self.heard)


@pytest.fixture
def together(warm_root: Path, tmp_path: Path) -> Iterator[Together]:
    """Four at once, over an empty disk."""
    made = Together(copy_notes(warm_root, tmp_path))
    yield made
    free(made.engine)


def about(word: str, *, system: str = SYSTEM, store_kv: bool = False) -> Prompt:
    """A question that shares a long system prompt with the others."""
    return Prompt((Entry("system", system), Entry("user", f"Tell me about {word}.")), store_kv=store_kv)


def answer_alone(engine: LocalEngine, prompt: Prompt, sampling: Sampling = GREEDY) -> Finished:
    """Answer a question while nobody else asks."""
    events: list[Event] = []
    engine.generate(prompt, sampling, events.append)
    return one(Finished, events)


def assert_equal_but_for_rounding(engine: LocalEngine, prompt: Prompt, alone: Finished, other: Finished) -> None:
    """Two greedy answers are the same, or part where the model finds both ways about equally likely."""
    ours, theirs = alone.run.body, other.run.body
    if ours == theirs:
        return
    at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    question = engine._questions.read(prompt, GREEDY)
    with_settings = ContextSettings(n_ctx=1024, flash_attention=False, threads=1)
    context = Context(engine._model, with_settings)
    try:
        assert context.prefill([*question.tokens, *ours[:at]], lambda _done: None)
        logits = context.logits()
    finally:
        context.close()
    best = max(logits)
    assert best - logits[ours[at]] < ROUNDING
    assert best - logits[theirs[at]] < ROUNDING


def test_answers_are_those_of_the_same_questions_alone(together: Together, warm_root: Path, tmp_path: Path) -> None:
    """At temperature 0, up to the rounding of larger batches."""
    alone = LocalEngine(local_settings(copy_notes(warm_root, tmp_path / "alone"), n_ctx=2048), lambda _event: None)
    for key, word in enumerate(WORDS):
        together.join(key, about(word))
    together.run()
    for key, word in enumerate(WORDS):
        assert_equal_but_for_rounding(alone, about(word), answer_alone(alone, about(word)), together.finished(key))
    free(alone)


def test_what_is_told_of_each(together: Together) -> None:
    """The events are those of an answer alone: what was reused, the text piece by piece, the end, nothing stored."""
    for key, word in enumerate(WORDS[:3]):
        together.join(key, about(word))
    together.run()
    for events in together.heard.values():
        finished, prepared = one(Finished, events), one(Prepared, events)
        pieces = [event for event in events if isinstance(event, Piece)]
        assert "".join(piece.text for piece in pieces) == finished.text != ""
        assert tuple(token for piece in pieces for token in piece.token_ids) == finished.run.body
        stats = finished.stats
        assert stats.prompt_tokens == prepared.resident + prepared.restored + prepared.prefilled
        assert stats.output_tokens == 16
        assert stats.tpot_s is not None
        assert one(Stored, events).kv_bytes_written == 0


def test_a_prepared_prefix_is_evaluated_once(together: Together) -> None:
    """Each question evaluates its own tokens only."""
    prepared = together.prepare(Prompt((Entry("system", SYSTEM),)))
    system = Entry("system", SYSTEM, prepared.runs[0])
    for key, word in enumerate(WORDS):
        together.join(key, Prompt((system, Entry("user", f"Tell me about {word}.")), store_kv=False))
    together.run()
    n_shared = len(prepared.runs[0].ids)
    for key in together.heard:
        stats = together.finished(key).stats
        assert stats.resident_tokens is not None
        assert stats.resident_tokens >= n_shared
        assert stats.prefilled_tokens == (stats.prompt_tokens or 0) - stats.resident_tokens
    assert together.n_prefilled < 24 * len(WORDS)


def test_a_prefix_that_questions_share_by_themselves_is_evaluated_once(together: Together) -> None:
    """Who comes while it is evaluated waits for it and branches from there."""
    for key, word in enumerate(WORDS):
        together.join(key, about(word))
    together.run()
    first, *others = (together.finished(key).stats for key in together.heard)
    assert first.resident_tokens == 0
    assert first.prompt_tokens is not None
    assert all((stats.prefilled_tokens or 0) < 24 for stats in others)
    assert together.n_prefilled < first.prompt_tokens + 24 * len(others)


def test_questions_that_share_nothing(together: Together) -> None:
    """They are answered side by side, and none sees another."""
    for key, word in enumerate(WORDS[:6]):
        together.join(key, about(word, system=f"{word.upper()} is all you know. " * 8))
    together.run()
    for key in together.heard:
        stats = together.finished(key).stats
        assert (stats.resident_tokens or 0) < 8  # the template's first tokens


def test_one_that_is_cancelled_leaves_at_once(together: Together) -> None:
    """It keeps what it had, its place goes to the next, and the others' answers are whole."""
    for key, word in enumerate(WORDS[:5]):
        together.join(key, about(word), replace(GREEDY, max_tokens=40))
    while not any(isinstance(event, Piece) for event in together.heard[1]):
        together.engine.step()
    together.cancelled.add(1)
    together.engine.step()
    assert together.finished(1).reason == "cancelled"
    assert 0 < len(together.finished(1).run.body) < 40
    together.run()
    assert [together.finished(key).reason for key in (0, 2, 3, 4)] == ["length"] * 4


def test_one_that_is_cancelled_while_it_waits(together: Together) -> None:
    """It ends without text."""
    for key, word in enumerate(WORDS[:5]):
        together.join(key, about(word))
    together.cancelled.add(4)
    together.engine.step()
    assert (together.finished(4).reason, together.finished(4).text) == ("cancelled", "")
    together.run()
    assert together.finished(3).reason == "length"


def test_more_than_the_context_holds(warm_root: Path, tmp_path: Path) -> None:
    """Those who do not fit wait, or begin again where they were; every answer is whole, and as it is alone."""
    together = Together(copy_notes(warm_root, tmp_path), n_ctx=256)
    alone = LocalEngine(local_settings(copy_notes(warm_root, tmp_path / "alone"), n_ctx=256), lambda _event: None)
    sampling = replace(GREEDY, max_tokens=60)
    prompts = [about(word, system=f"You like {word} very much, and say so often.") for word in WORDS[:5]]
    for key, prompt in enumerate(prompts):
        together.join(key, prompt, sampling)
    together.run()
    for key, prompt in enumerate(prompts):
        assert_equal_but_for_rounding(alone, prompt, answer_alone(alone, prompt, sampling), together.finished(key))
    free(alone)
    free(together.engine)


def test_an_answer_that_outgrows_what_was_expected(warm_root: Path, tmp_path: Path) -> None:
    """Without a limit answers may need more cells than there are: the newest gives way and goes on later."""
    together = Together(copy_notes(warm_root, tmp_path), n_ctx=256, n_parallel=2)
    for key, word in enumerate(WORDS[:3]):
        together.join(key, about(word, system="Go on and on."), Sampling(temperature=1.5, seed=7))
    together.run()
    for key in together.heard:
        pieces = [event for event in together.heard[key] if isinstance(event, Piece)]
        assert "".join(piece.text for piece in pieces) == together.finished(key).text
        assert together.finished(key).reason in ("end", "context")
    free(together.engine)


def test_a_conversation_comes_back_from_disk(together: Together) -> None:
    """What is to be stored is stored at its end, and another engine evaluates the next message only."""
    for key, word in enumerate(WORDS[:3]):
        together.join(key, about(word, store_kv=True))
    together.run()
    first = together.finished(0)
    prepared = one(Prepared, together.heard[0])
    history = tuple(replace(entry, run=run) for entry, run in zip(about(WORDS[0]).entries, prepared.runs, strict=True))
    following = Prompt((*history, Entry("assistant", first.text, first.run), Entry("user", "Why?")))
    again = Together(together.root, n_parallel=2)
    again.join(0, following)
    again.run()
    stats = again.finished(0).stats
    assert stats.restored_tokens is not None
    assert stats.restored_tokens >= sum(len(run.ids) for run in (*prepared.runs, first.run))
    assert (stats.prefilled_tokens or 0) < 16
    free(again.engine)


def test_a_grammar_beside_others(together: Together) -> None:
    """Its answer conforms, and the others know nothing of it."""
    grammar = grammar_of({"type": "object", "properties": {"name": {"enum": ["rope", "fish"]}}, "required": ["name"]})
    together.join(0, about("ropes"), replace(GREEDY, grammar=grammar, max_tokens=64))
    together.join(1, about("fish"))
    together.run()
    assert json.loads(together.finished(0).text)["name"] in ("rope", "fish")
    assert together.finished(1).reason == "length"


def test_a_draft_has_the_room_of_what_was_answered(warm_root: Path, tmp_path: Path) -> None:
    """It is not read while questions are answered; then what was kept of them to share gives way to it."""
    together = Together(copy_notes(warm_root, tmp_path), n_ctx=640)
    for key, word in enumerate(WORDS[:4]):
        together.join(key, about(word, system=" ".join(f"{word} {n}" for n in range(25))))
    told: list[Ahead] = []
    draft = Prompt((Entry("user", " ".join(f"boat {n}" for n in range(100))),))
    together.engine.anticipate(draft, told.append)
    assert told == []
    together.run()
    together.engine.anticipate(draft, told.append)
    assert told[-1].is_whole
    assert told[-1].n_ready > 300
    free(together.engine)


def test_one_that_is_too_long(together: Together) -> None:
    """It is refused before anything is evaluated, and the others go on."""
    together.join(0, about("ropes"))
    with pytest.raises(PromptTooLong):
        together.join(1, about("long " * 3000))
    together.run()
    assert together.finished(0).reason == "length"


def test_a_sampled_answer_is_its_own(together: Together) -> None:
    """Each question has its own seed and samplers; with one seed an answer comes again."""
    sampling = Sampling(temperature=0.9, seed=11, max_tokens=16)
    for key in range(2):
        together.join(key, about("rivers"), sampling)
    together.join(2, about("rivers"), replace(sampling, seed=12))
    together.run()
    assert together.finished(0).stats.seed == 11
    assert together.finished(2).run.body != together.finished(0).run.body


@pytest.mark.parametrize(("kind", "n_parallel"), [("sliding window", 3), ("hybrid", 1), ("recurrent", 1)])
def test_memory_kinds(tmp_path: Path, kind: str, n_parallel: int) -> None:
    """Windows are shared like dense rows; a state belongs to one sequence, and then one question is answered a time."""
    told: list[Event] = []
    settings = replace(local_settings(tmp_path), model_path=build(kind, tmp_path), n_parallel=3, n_ctx=256)
    engine = LocalEngine(settings, told.append)
    assert one(Loaded, told).info.n_parallel == n_parallel
    free(engine)


def test_failing_all(together: Together) -> None:
    """Everybody hears of what the engine cannot do, and the next question is answered."""
    together.join(0, about("ropes"))
    together.engine.step()
    together.engine.fail_joined("engine", "The engine broke.")
    assert one(Failed, together.heard[0]).message == "The engine broke."
    together.join(1, about("fish"))
    together.run()
    assert together.finished(1).reason == "length"
    assert not segment_files(together.root / "cache" / "kv")
