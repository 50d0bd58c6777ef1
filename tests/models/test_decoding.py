from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.decoding import Answer, Decoded, Ending, decode_answer
from models.engine import Entry, Event, Finished, Piece, Prompt, Sampling
from models.llama import Context, ContextSettings, Model, Sampler
from models.local import LocalEngine
from models.speculation import Guesser, Speculation
from models.stats import common_prefix
from tests.models.helpers import local_settings, one
from tests.models.tiny_models import TEMPLATE, build

END = 0
N_WORDS = 6
# Two ways to compute the same logits differ by rounding; where the answers part, the two best tokens are so close.
TIE = 0.5
STORY = "The old lighthouse keeper counted the ships that passed in the night and wrote each into a book. "
PROMPTS = (
    f"Repeat this text word for word:\n\n{STORY}It was a cold winter, and few of them came back in spring.",
    "Count from one to thirty in words.",
    "Write a poem about the sea.",
)


class Always(Speculation):
    """Believes that as many guesses as are asked for pay, whatever was measured."""

    def __init__(self, n: int = 7) -> None:
        super().__init__()
        self._n = n

    def n_guesses(self, n_matched: int, most: int) -> int:
        """All that fit."""
        assert n_matched > 0
        return max(0, min(self._n, most))


class Wild(Guesser):
    """Guesses tokens that have nothing to do with the text."""

    def __init__(self, guesses: Sequence[Sequence[int]]) -> None:
        super().__init__(Speculation(), [])
        self._given = list(guesses)

    def guesses(self, most: int) -> list[int]:
        """The next of what was given."""
        return list(self._given.pop(0))[: max(0, most)] if self._given else []


# --- the loop, over a language whose next token follows from all before it ---


class Words:
    """Stands in for a model: a token is a letter, and 0 ends an answer."""

    n_vocab = N_WORDS

    def piece(self, token: int) -> bytes:
        """The letter."""
        return letter(token)

    def tokenize(self, text: str, _control_tokens: bool) -> list[int]:
        """A token for each letter."""
        return [ord(one) - ord("a") for one in text]

    def ends_generation(self, token: int) -> bool:
        """True for 0."""
        return token == END


class Language:
    """Stands in for a context and its sampler: what comes next is decided by all tokens before it, and is counted.

    A token sampled from anything but what was evaluated, or evaluated behind what is no part of the answer, shows.
    """

    def __init__(self, prompt: Sequence[int], *, n_free: int = 1_000, ends: bool = True) -> None:
        self.tokens = list(prompt)
        self.threads = 1
        self.is_cancelled = False
        self.n_sampled = 0
        self._least = END if ends else END + 1
        self._n_ctx = len(prompt) + n_free
        self._ends = [len(self.tokens)]

    @property
    def n_free(self) -> int:
        """Tokens that still fit."""
        return self._n_ctx - len(self.tokens)

    def sample(self, _sampler: object, at: int = -1) -> int:
        """The one next token behind the `at`th of what was evaluated last."""
        self.n_sampled += 1
        before = tuple(self.tokens[: self._ends[at]])
        return self._least + hash(before) % (N_WORDS - self._least)

    def decode(self, token: int) -> bool:
        """Append one token."""
        return self.decode_guessed(token, ())

    def decode_guessed(self, token: int, guesses: Sequence[int]) -> bool:
        """Append a token and guesses."""
        assert len(self.tokens) + 1 + len(guesses) <= self._n_ctx, "the context is full"
        begin = len(self.tokens)
        self.tokens += [token, *guesses]
        self._ends = list(range(begin + 1, len(self.tokens) + 1))
        return True

    def take_back(self, n: int) -> None:
        """Remove the newest tokens; what was computed behind them is worth nothing then."""
        if n:
            del self.tokens[-n:]
            self._ends = [end for end in self._ends if end <= len(self.tokens)]


def letter(token: int) -> bytes:
    """The text of a token."""
    return bytes([ord("a") + token])


def spoken(language: Language, guesser: Guesser | None, *, max_tokens: int, stops: tuple[str, ...] = ()) -> Decoded:
    """An answer in this language."""
    answer = Answer(
        cast(Model, Words()),
        letter,
        lambda _event: None,
        start=(),
        ending=Ending(stops),
        room=language.n_free,
        max_tokens=max_tokens,
    )
    return decode_answer(answer, cast(Context, language), cast(Sampler, None), nullcontext, guesser)


TEXTS = st.lists(st.integers(1, N_WORDS - 1), min_size=1, max_size=12)
GUESSES = st.lists(st.lists(st.integers(0, N_WORDS - 1), max_size=9), max_size=40)


@given(TEXTS, GUESSES, st.integers(1, 40), st.integers(1, 50))
def test_whatever_is_guessed_the_answer_is_the_same(
    prompt: list[int], guesses: list[list[int]], max_tokens: int, n_free: int
) -> None:
    """Right, wrong or behind the end: tokens, reason and what the context holds are as without guesses."""
    plain, guessed = Language(prompt, n_free=n_free), Language(prompt, n_free=n_free)
    expected = spoken(plain, None, max_tokens=max_tokens)
    found = spoken(guessed, Wild(guesses), max_tokens=max_tokens)
    assert (found.ids, found.reason, found.text, found.n_output) == (
        expected.ids,
        expected.reason,
        expected.text,
        expected.n_output,
    )
    assert guessed.tokens == plain.tokens
    # One draw of the sampler for each token: with a seed, the same numbers meet the same tokens.
    assert guessed.n_sampled == plain.n_sampled


def test_right_guesses_save_evaluations() -> None:
    """All tokens of an answer that was foreseen are evaluated together."""
    expected = spoken(Language([1, 2], ends=False), None, max_tokens=5)
    again = Language([1, 2], ends=False)
    calls: list[int] = []
    evaluate = again.decode_guessed

    def counted(token: int, guesses: Sequence[int]) -> bool:
        calls.append(1 + len(guesses))
        return evaluate(token, guesses)

    again.decode_guessed = counted  # type: ignore[method-assign]
    found = spoken(again, Wild([expected.ids[1:4]]), max_tokens=5)
    assert found.ids == expected.ids
    assert calls == [4]


def test_a_stop_string_among_the_guesses_ends_the_answer() -> None:
    """Guesses behind it are taken back."""
    whole = spoken(Language([1, 2], ends=False), None, max_tokens=20).text
    stop = whole[3:5]
    plain, guessed = Language([1, 2], ends=False), Language([1, 2], ends=False)
    expected = spoken(plain, None, max_tokens=20, stops=(stop,))
    ids = [ord(one) - ord("a") for one in whole]
    found = spoken(guessed, Wild([ids[1:9], ids[2:9], ids[3:9]]), max_tokens=20, stops=(stop,))
    assert (found.text, found.reason, guessed.tokens) == (expected.text, "stop", plain.tokens)


def test_the_first_text_carries_its_time() -> None:
    """The engine's clock at the first piece with text, and never again."""
    pieces: list[Piece] = []

    def emit(event: Event) -> None:
        assert isinstance(event, Piece)
        pieces.append(event)

    answer = Answer(cast(Model, Words()), letter, emit, start=(), ending=Ending(), room=3, max_tokens=None)
    for token in (1, 2, 3):
        answer.take(token)
    decoded = answer.finish()
    assert [piece.told_at for piece in pieces] == [decoded.text_at, *[None] * (len(pieces) - 1)]
    assert decoded.text_at is not None


# --- the real model ---


@dataclass
class Real:
    """The starter model and a context of it."""

    model: Model
    context: Context

    def answer(self, prompt: str, speculation: Speculation | None, sampling: Sampling) -> Decoded:
        """An answer behind a cold prefill."""
        tokens = self.tokens(prompt)
        self.context.clear()
        assert self.context.prefill(tokens, lambda _done: None)
        sampler = Sampler(self.model, sampling, sampling.seed or 0, tokens)
        answer = Answer(
            self.model,
            self.model.piece,
            lambda _event: None,
            start=(),
            ending=Ending(),
            room=self.context.n_free,
            max_tokens=sampling.max_tokens,
        )
        guesser = speculation.begin(tokens) if speculation else None
        decoded = decode_answer(answer, self.context, sampler, nullcontext, guesser)
        sampler.close()
        return decoded

    def tokens(self, prompt: str) -> list[int]:
        """A question as the model's template has it."""
        return self.model.tokenize(f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n", True)

    def gap_behind(self, prompt: str, ids: Sequence[int]) -> float:
        """How much better the best next token is than the second best, in single steps."""
        self.context.clear()
        assert self.context.prefill(self.tokens(prompt), lambda _done: None)
        assert all(self.context.decode(token) for token in ids)
        best, second = sorted(self.context.logits(), reverse=True)[:2]
        return best - second


@pytest.fixture(scope="module", params=[True, False], ids=["flash attention on", "flash attention off"])
def real(request: pytest.FixtureRequest, model: Model) -> Iterator[Real]:
    """The starter model with either way of attention."""
    context = Context(model, ContextSettings(1024, flash_attention=request.param, threads=1))
    yield Real(model, context)
    context.close()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_answers_are_the_same_up_to_rounding(real: Real, prompt: str) -> None:
    """With guesses checked all the time, tokens are those of single steps, or part where two were as good as equal."""
    greedy = Sampling(temperature=0, max_tokens=48)
    expected, found = (real.answer(prompt, guess, greedy) for guess in (None, Always()))
    n = common_prefix(found.ids, expected.ids)
    if n < max(len(found.ids), len(expected.ids)):
        assert real.gap_behind(prompt, expected.ids[:n]) < TIE
    assert found.n_guessed is not None
    assert (found.n_guessed or 0) >= (found.n_guessed_right or 0)


def test_a_copied_text_is_guessed_right(real: Real) -> None:
    """Of a text that stands in the prompt most guesses become part of the answer."""
    found = real.answer(PROMPTS[0], Always(), Sampling(temperature=0, max_tokens=24))
    assert found.n_guessed
    assert (found.n_guessed_right or 0) > 8


def test_a_penalty_counts_the_same_tokens(real: Real) -> None:
    """The sampler's memory goes forward token by token, never over a guess that was wrong."""
    strict = Sampling(temperature=0, repeat_penalty=1.3, max_tokens=32)
    expected, found = (real.answer(PROMPTS[1], guess, strict) for guess in (None, Always()))
    n = common_prefix(found.ids, expected.ids)
    assert n == len(expected.ids) or n > 4


def test_what_is_taken_back_leaves_no_trace(real: Real) -> None:
    """After wrong guesses the next logits are those of a context that never guessed."""
    context, tokens = real.context, real.tokens(STORY)

    def logits(guesses: Sequence[int]) -> array[float]:
        context.clear()
        assert context.prefill(tokens, lambda _done: None)
        if guesses:
            assert context.decode_guessed(tokens[-1], guesses)
            context.take_back(len(guesses))
        else:
            assert context.decode(tokens[-1])
        assert len(context.tokens) == context.cells_end == len(tokens) + 1
        assert context.decode(tokens[-1])
        return context.logits()

    plain, guessed = logits(()), logits((5, 6, 7))
    spread = max(plain) - min(plain)
    assert max(abs(a - b) for a, b in zip(plain, guessed, strict=True)) < 0.1 * spread
    assert plain.index(max(plain)) == guessed.index(max(guessed)) or max(plain) - sorted(plain)[-2] < TIE


def test_a_window_survives_wrong_guesses(tmp_path: Path, native_log: list[str]) -> None:
    """Behind a prompt longer than the window, taking back leaves the rows that the next token sees."""
    assert native_log is not None
    model = Model(build("sliding window", tmp_path), gpu_layers=0, progress=lambda _share: None)
    context = Context(model, ContextSettings(1024, flash_attention=False, threads=1))
    tokens = model.tokenize(STORY * 3, False)[:200]

    def logits(guesses: Sequence[int]) -> array[float]:
        context.clear()
        assert context.prefill(tokens, lambda _done: None)
        for _ in range(3):
            assert context.decode_guessed(9, guesses) if guesses else context.decode(9)
            context.take_back(len(guesses))
        assert context.decode(9)
        return context.logits()

    plain, guessed = logits(()), logits((10, 11, 12, 13))
    spread = max(plain) - min(plain)
    assert max(abs(a - b) for a, b in zip(plain, guessed, strict=True)) < 0.01 * spread
    context.close()
    model.close()


# --- the engine ---


def answered(engine: LocalEngine, prompt: Prompt, sampling: Sampling) -> Finished:
    """The end of an answer."""
    events: list[Event] = []
    engine.generate(prompt, sampling, events.append)
    return one(Finished, events)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., LocalEngine]]:
    """Starts an engine."""
    started: list[LocalEngine] = []

    def run(**changed: object) -> LocalEngine:
        settings = replace(local_settings(tmp_path), **changed)  # type: ignore[arg-type]
        started.append(LocalEngine(settings, lambda _event: None))
        return started[-1]

    yield run
    for engine in started:
        engine.close()


def test_an_answer_says_what_choosing_took_and_what_was_guessed(start: Callable[..., LocalEngine]) -> None:
    """With guesses allowed they are counted; with a grammar nothing is guessed; sampling is a part of decoding."""
    engine = start(speculation="auto")
    prompt = Prompt((Entry("user", "Say yes."),), store_kv=False)
    stats = answered(engine, prompt, Sampling(max_tokens=12)).stats
    assert stats.speculated_tokens is not None
    assert stats.sampling_s is not None
    assert stats.tpot_s is not None
    assert stats.sampling_s > 0
    constrained = answered(engine, prompt, Sampling(temperature=0, grammar='root ::= "yes"')).stats
    assert (constrained.speculated_tokens, constrained.accepted_tokens) == (None, None)


@pytest.mark.parametrize(
    ("sampling", "guesses"),
    [
        (Sampling(temperature=0, max_tokens=4), False),
        (Sampling(seed=3, max_tokens=4), False),
        (Sampling(max_tokens=4), True),
    ],
)
def test_an_answer_that_should_come_again_is_not_guessed_for(
    start: Callable[..., LocalEngine], sampling: Sampling, guesses: bool
) -> None:
    """Without flash attention batches round differently, so only answers drawn at random are guessed for."""
    stats = answered(start(speculation="auto"), Prompt((Entry("user", "Hi"),), store_kv=False), sampling).stats
    assert (stats.speculated_tokens is not None) == guesses


def test_with_flash_attention_greedy_answers_are_guessed_for(start: Callable[..., LocalEngine]) -> None:
    """There a batch rounds as single steps do."""
    engine = start(speculation="auto", flash_attention="on")
    greedy = Sampling(temperature=0, max_tokens=4)
    assert answered(engine, Prompt((Entry("user", "Hi"),), store_kv=False), greedy).stats.speculated_tokens is not None


def test_nothing_is_guessed_when_told_so(start: Callable[..., LocalEngine]) -> None:
    """Off is off: nothing is counted either."""
    stats = answered(start(), Prompt((Entry("user", "Hi"),), store_kv=False), Sampling(max_tokens=4)).stats
    assert (stats.speculated_tokens, stats.accepted_tokens) == (None, None)


def test_a_memory_that_cannot_rewind_is_never_guessed_for(start: Callable[..., LocalEngine], tmp_path: Path) -> None:
    """A hybrid model answers without guesses, although they are allowed."""
    path = build("hybrid", tmp_path, template=TEMPLATE)
    engine = start(model_path=path, speculation="auto")
    stats = answered(engine, Prompt((Entry("user", "aaa aaa aaa"),), store_kv=False), Sampling(max_tokens=8)).stats
    assert stats.speculated_tokens is None
