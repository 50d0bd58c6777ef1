"""Reasoning in the answers of real engines over tiny models; what they sample is scripted, all else is real."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import pstdev

import pytest
from gguf import TokenType

from models.engine import Entry, Event, Finished, Piece, Prepared, Prompt, Reasoning, Sampling, Stored
from models.kvsettings import DEFAULT_KV, KvSettings
from models.llama import Context
from models.loading import LocalSettings
from models.local import LocalEngine
from models.reasoning import answer_of, reasoning_of
from models.tokenruns import answer_glue, joined
from tests.models.helpers import after, n_ahead, n_new, one, starter
from tests.models.test_template_turns import TEMPLATES
from tests.models.tiny_models import TEMPLATE, Extra, Tokenizer, build

TOLERANCE = 0.01
"""Of the logits' spread, as for restored states: batches of other sizes round differently."""
END = 2
THINK: tuple[Extra, ...] = tuple((mark, TokenType.USER_DEFINED) for mark in ("<think>", "</think>"))
BRACKETS: tuple[Extra, ...] = tuple((mark, TokenType.CONTROL) for mark in ("[THINK]", "[/THINK]"))
HARMONY: tuple[Extra, ...] = tuple(
    (f"<|{mark}|>", TokenType.CONTROL)
    for mark in ("start", "end", "message", "channel", "constrain", "return", "call", "im_sep")
)
SHARED: Extra = ("\n\nIt", TokenType.NORMAL)
MAGISTRAL = TEMPLATE + "{# answers reason in [THINK] and [/THINK] #}"
QUESTIONS = (
    "Where does the river end, and who lives there all year round when the others have gone?",
    "And in the winter, when all of it is frozen and nobody goes out to the boats any more?",
    "Then tell me about the old bridge near the mill, and about the people who built it.",
)


@dataclass
class Teller:
    """An engine whose samples come from a script; `logits` are those that each sample was to be chosen from."""

    engine: LocalEngine
    script: list[int] = field(default_factory=list)
    logits: list[array[float]] = field(default_factory=list)
    waiting: Prompt | None = None

    def ids(self, text: str) -> list[int]:
        """The tokens of a text whose marks are meant as such."""
        return self.engine._model.tokenize(text, True)

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of tokens in an answer."""
        return b"".join(map(self.engine._questions._text_of, ids)).decode()

    def says(self, prompt: Prompt, answer: str | Sequence[int], sampling: Sampling | None = None) -> list[Event]:
        """The events of an answer that is sampled as given, and then ends."""
        self.script[:] = [*(self.ids(answer) if isinstance(answer, str) else answer), END]
        self.logits.clear()
        events: list[Event] = []
        self.engine.clear_cancel()
        self.engine.generate(prompt, sampling or Sampling(), events.append)
        if writer := self.engine._residency._writer:
            writer.drain()
        return events

    def sample(self, _sampler: object, _at: int = -1) -> int:
        """The next token of the script."""
        self.logits.append(self.engine._context.logits())
        return self.script.pop(0)

    def cold_logits(self, tokens: Sequence[int]) -> array[float]:
        """What a context that has seen nothing makes of tokens."""
        context = Context(self.engine._model, self.engine._context.settings)
        try:
            assert context.prefill(tokens, lambda _done: None)
            return context.logits()
        finally:
            context.close()


def open_teller(
    folder: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    chat_format: str | None = None,
    kv: KvSettings = DEFAULT_KV,
) -> Teller:
    """Load a model with the program's folders in `folder`."""
    settings = LocalSettings(
        model,
        folder / "cache",
        folder / "data",
        n_ctx=2048,
        threads=1,
        flash_attention="off",
        chat_format=chat_format,
        kv=kv,
        speculation="off",
    )
    made: list[Teller] = []
    engine = LocalEngine(settings, lambda _event: None, next_prompt=lambda: made[0].waiting if made else None)
    made.append(Teller(engine))
    monkeypatch.setattr(engine._context, "sample", made[0].sample)
    return made[0]


@dataclass
class Maker:
    """Makes engines that are closed at the end of a test."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    made: list[Teller] = field(default_factory=list)

    def __call__(
        self,
        template: str,
        extra: Sequence[Extra] = (),
        *,
        kind: str = "dense",
        tokenizer: Tokenizer = "bpe",
        chat_format: str | None = None,
        kv: KvSettings = DEFAULT_KV,
    ) -> Teller:
        """Build a tiny model and load it."""
        model = build(kind, self.folder, template=template, tokenizer=tokenizer, extra=extra)
        self.made.append(open_teller(self.folder, model, self.monkeypatch, chat_format, kv))
        return self.made[-1]


@pytest.fixture
def make(tmp_path: Path, native_log: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Maker]:
    """Makes tellers over one folder."""
    assert native_log is not None
    maker = Maker(tmp_path, monkeypatch)
    yield maker
    for teller in maker.made:
        teller.engine.close()


def ask(text: str = "hello", reasoning: Reasoning = "keep", *, store_kv: bool = True) -> Prompt:
    """A new conversation."""
    return Prompt((Entry("user", text),), store_kv=store_kv, reasoning=reasoning)


def assert_agrees(teller: Teller, events: list[Event]) -> Finished:
    """Streamed, stored and joined text are one, and each piece agrees with its ids; only for answers that are kept."""
    finished = one(Finished, events)
    pieces = [event for event in events if isinstance(event, Piece)]
    assert all(piece.text == teller.text_of(piece.token_ids) for piece in pieces)
    assert "".join(piece.text for piece in pieces) == finished.text == teller.text_of(finished.run.body)
    assert tuple(token for piece in pieces for token in piece.token_ids) == finished.run.body
    return finished


# --- an answer's text says what is reasoning ---


@pytest.mark.parametrize("extra", [(), THINK], ids=["spelt", "tokens"])
def test_reasoning_begun_by_the_prompt_is_the_answers_beginning(make: Maker, extra: tuple[Extra, ...]) -> None:
    """It comes with the first piece; the tokens in the context are those of the whole text."""
    teller = make(TEMPLATES["qwen3-thinking"], extra)
    events = teller.says(ask(), "Hm.\n</think>\n\nYes.")
    prepared, finished = one(Prepared, events), assert_agrees(teller, events)
    first = next(event for event in events if isinstance(event, Piece))
    assert first.text.startswith("<think>\nH")
    assert finished.text == "<think>\nHm.\n</think>\n\nYes."
    assert list(prepared.opening) == teller.ids("<|im_start|>assistant\n")
    assert list(finished.run.ids[: finished.run.body_end]) == [
        *teller.ids("<|im_start|>assistant\n<think>\n"),
        *teller.ids("Hm.\n</think>\n\nYes."),
    ]
    assert (
        prepared.prefilled
        == finished.stats.prompt_tokens
        == len(joined(prepared.runs)) + len(teller.ids("<|im_start|>assistant\n<think>\n"))
    )
    assert finished.stats.output_tokens == len(teller.ids("Hm.\n</think>\n\nYes.")) + 1
    assert finished.stats.reasoning_tokens == len(teller.ids("<think>\nHm.\n</think>"))
    assert teller.engine.info.reasoning == "<think>"


def test_an_answer_that_never_came_has_the_mark_alone(make: Maker) -> None:
    """With no tokens allowed; stop strings are not looked for in what the prompt says."""
    teller = make(TEMPLATES["qwen3-thinking"], THINK)
    none = assert_agrees(teller, teller.says(ask(), "Hm.", Sampling(max_tokens=0)))
    assert (none.text, none.reason, none.stats.output_tokens) == ("<think>\n", "length", 0)
    stopped = assert_agrees(teller, teller.says(ask(), "Hm\nso.", Sampling(stop=("\n", "<think>"))))
    assert (stopped.text, stopped.reason) == ("<think>\nHm", "stop")


def test_a_template_that_begins_nothing_leaves_it_to_the_model(make: Maker) -> None:
    """The block is what the model writes, or does not."""
    teller = make(TEMPLATES["qwen3"], THINK)
    finished = assert_agrees(teller, teller.says(ask(), "<think>\nHm.\n</think>\n\nYes."))
    assert (reasoning_of(finished.text), answer_of(finished.text)) == ("Hm.", "Yes.")
    plain = assert_agrees(teller, teller.says(ask(), "Yes, <think>."))
    assert (plain.text, plain.stats.reasoning_tokens) == ("Yes, <think>.", None)


CHANNELS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."


@pytest.mark.parametrize(
    ("template", "extra", "answer", "name"),
    [
        (TEMPLATES["gpt-oss"], HARMONY, CHANNELS, "channels"),
        (MAGISTRAL, BRACKETS, "[THINK]Hm.[/THINK]Yes.", "[THINK]"),
    ],
    ids=["gpt-oss", "magistral"],
)
def test_marks_that_are_control_tokens_are_text_in_answers_only(
    make: Maker, template: str, extra: tuple[Extra, ...], answer: str, name: str
) -> None:
    """Of the template's own family; a message that has the same text never becomes such a token."""
    teller = make(template, extra)
    marks = {token for mark, _of in extra for token in teller.ids(mark)}
    assert len(marks) == len(extra)
    asked = ask(f"{answer} {''.join(mark for mark, _of in extra)}")
    events = teller.says(asked, answer)
    finished = assert_agrees(teller, events)
    assert (finished.text, finished.reason) == (answer, "end")
    assert (reasoning_of(finished.text), answer_of(finished.text)) == ("Hm.", "Yes.")
    assert marks & set(finished.run.body)
    assert teller.engine.info.reasoning == name
    (user,) = one(Prepared, events).runs
    assert not marks & set(user.body)
    imported = Prompt((Entry("user", "a"), Entry("assistant", answer), Entry("user", "b")))
    assert not marks & set(one(Prepared, teller.says(imported, "Yes.")).runs[1].body)


def test_a_template_that_knows_no_marks_gives_control_tokens_no_text(make: Maker) -> None:
    """The vocabulary of a ChatML model is not touched."""
    teller = make(TEMPLATE, BRACKETS)
    finished = assert_agrees(teller, teller.says(ask(), "[THINK]Hm.[/THINK]Yes."))
    assert (finished.text, teller.engine.info.reasoning) == ("Hm.Yes.", None)


def test_a_grammar_governs_the_answer_itself(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reasoning that the prompt begins is ended at once; the rest of the text is what the grammar says."""
    teller = make(TEMPLATES["qwen3-thinking"], THINK)
    monkeypatch.undo()
    events = teller.says(ask(), "", Sampling(grammar='root ::= "{\\"a\\": " [0-9] "}"'))
    finished = assert_agrees(teller, events)
    assert finished.text.startswith("<think>\n</think>\n\n{")
    assert set(json.loads(answer_of(finished.text))) == {"a"}
    start = answer_glue("user", teller.engine._glue, teller.engine._model.tokenize, has_grammar=True).start
    assert finished.run.body[: len(start)] == start
    assert one(Prepared, events).prefilled == finished.stats.prompt_tokens


# --- what later prompts contain ---


@pytest.mark.parametrize(
    ("template", "extra", "answer"),
    [
        ("qwen3-thinking", THINK, "Hm.\n</think>\n\nIt is so."),
        ("qwen3", THINK, "<think>Hm.</think>\n\n\n  It is so."),
        ("deepseek-r1", (), "Hm.\n</think>\n\nIt is so."),
        ("glm4", THINK, "<think>Let me see.</think>\nIt is so."),
        ("gpt-oss", HARMONY, CHANNELS),
    ],
)
def test_a_stripped_answer_is_what_the_template_prints(
    make: Maker, template: str, extra: tuple[Extra, ...], answer: str
) -> None:
    """Opened as earlier answers are, and the ids behind the block are those that were sampled."""
    teller = make(TEMPLATES[template], extra)
    kept = assert_agrees(teller, teller.says(ask(), answer))
    events = teller.says(ask(reasoning="strip"), answer)
    finished = one(Finished, events)
    assert finished.text == kept.text == "".join(piece.text for piece in events if isinstance(piece, Piece))
    run, glue = finished.run, teller.engine._glue
    assert teller.text_of(run.body) == answer_of(finished.text)
    assert kept.run.body[-len(run.body) :] == run.body
    assert list(run.ids[: run.body_start]) == teller.ids(glue.past_assistant)
    assert run.ids[run.body_end :] == kept.run.ids[kept.run.body_end :]
    assert finished.stats.stripped_tokens == len(kept.run.ids) - len(run.ids)
    assert (kept.stats.stripped_tokens, kept.stats.reasoning_tokens) == (None, finished.stats.reasoning_tokens)


def test_a_token_that_shares_its_text_with_the_blank_lines_is_spelt_anew(make: Maker) -> None:
    """The rest of the ids stay what they are."""
    teller = make(TEMPLATES["qwen3-thinking"], (*THINK, SHARED))
    shared = teller.engine._model.n_vocab - 1
    assert teller.text_of([shared]) == "\n\nIt"
    ids = [*teller.ids("Hm.</think>"), shared, *teller.ids(" is so.")]
    finished = one(Finished, teller.says(ask(reasoning="strip"), ids))
    assert finished.text == "<think>\nHm.</think>\n\nIt is so."
    assert list(finished.run.body) == [*teller.ids("It"), *teller.ids(" is so.")]


def test_an_answer_that_ended_inside_its_reasoning_is_empty(make: Maker) -> None:
    """Cut by a limit, later prompts hold what the template prints for an answer without text."""
    teller = make(TEMPLATES["qwen3-thinking"], THINK)
    prompt = ask(reasoning="strip")
    events = teller.says(prompt, "Hm, hm, hm.", Sampling(max_tokens=4))
    finished = one(Finished, events)
    assert (finished.reason, finished.run.body, answer_of(finished.text)) == ("length", (), "")
    assert list(finished.run.ids) == teller.ids("<|im_start|>assistant\n<|im_end|>\n")
    assert finished.stats.reasoning_tokens == len(teller.ids("<think>\n")) + 4
    following = one(Prepared, teller.says(after(prompt, events, "And?"), "So.</think>Yes."))
    assert following.prefilled == n_new(following) + len(teller.ids("<think>\n"))


def test_an_answer_without_reasoning_is_left_as_it_is(make: Maker) -> None:
    """And one that would not get shorter."""
    for template, extra, answer in (("qwen3", THINK, "It is so."), ("glm4", (), "<think></think>\nIt is so.")):
        teller = make(TEMPLATES[template], extra)
        kept = one(Finished, teller.says(ask(), answer))
        left = one(Finished, teller.says(ask(reasoning="strip"), answer))
        assert (left.run, left.stats.stripped_tokens) == (kept.run, None)


# --- the next turn ---

REASONED = "The mill, then the bridge: first one, then the other.\n</think>\n\nIt ends in the lake."


def assert_close(found: array[float], wanted: array[float]) -> None:
    """The same choice, and nearly the same numbers."""
    assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) <= TOLERANCE * pstdev(wanted)
    assert found.index(max(found)) == wanted.index(max(wanted))


@pytest.mark.parametrize("kind", ["dense", "sliding window", "hybrid", "recurrent", "moe"])
def test_the_turn_behind_a_stripped_answer_evaluates_its_message_only(
    make: Maker, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every kind of memory, in this process and in another; and it reads what a cold evaluation would read."""
    teller = make(TEMPLATES["qwen3-thinking"], THINK, kind=kind)
    n_start = len(teller.ids("<think>\n"))
    prompt = Prompt((Entry("system", "You know the river."), Entry("user", QUESTIONS[0])), reasoning="strip")
    n_history = 0
    for question in QUESTIONS[1:]:
        events = teller.says(prompt, REASONED)
        finished = one(Finished, events)
        n_history = len(joined((*one(Prepared, events).runs, finished.run)))
        assert finished.stats.stripped_tokens
        assert one(Stored, events).tip is not None
        prompt = after(prompt, events, question)
        prompt = replace(prompt, reasoning="strip")
        for entry in prompt.entries:
            assert entry.run is None or "mill, then" not in teller.text_of(entry.run.ids)
    teller.says(replace(prompt, store_kv=False), "So.</think>Yes.")
    following = one(Prepared, teller.says(replace(prompt, store_kv=False), "So.</think>Yes."))
    assert following.miss_reason is None
    tokens = [*joined(following.runs), *teller.ids("<|im_start|>assistant\n<think>\n")]
    assert_close(teller.logits[0], teller.cold_logits(tokens))
    other = open_teller(tmp_path, Path(teller.engine.info.path), monkeypatch)
    make.made.append(other)
    restored = one(Prepared, other.says(replace(prompt, store_kv=False), "So.</think>Yes."))
    assert (restored.resident, restored.restored) == (0, n_history + n_ahead(restored))
    assert restored.prefilled == n_new(restored) + n_start
    assert_close(other.logits[0], teller.cold_logits(tokens))


@pytest.mark.parametrize("kind", ["dense", "sliding window", "hybrid", "recurrent", "moe"])
def test_nothing_of_the_history_is_evaluated_twice(make: Maker, kind: str) -> None:
    """Turn after turn the prompt holds the answers alone, and its own tokens are resident when it comes."""
    teller = make(TEMPLATES["qwen3-thinking"], THINK, kind=kind)
    n_start = len(teller.ids("<think>\n"))
    prompt, n_history = ask(QUESTIONS[0], "strip"), 0
    for question in (*QUESTIONS, *QUESTIONS):
        events = teller.says(prompt, REASONED)
        prepared, finished = one(Prepared, events), one(Finished, events)
        if n_history:
            assert prepared.prefilled == n_new(prepared) + n_start
            assert (prepared.resident, prepared.restored) == (n_history + n_ahead(prepared), 0)
        n_history = len(joined((*prepared.runs, finished.run)))
        assert teller.engine._context.tokens[:n_history] == joined((*prepared.runs, finished.run))
        prompt = replace(after(prompt, events, question), reasoning="strip")


def test_a_real_model_goes_on_behind_the_answer_alone(make: Maker) -> None:
    """A vocabulary without the marks, in which they are several tokens that may join with what is around them."""
    teller = open_teller(make.folder, starter(), make.monkeypatch)
    make.made.append(teller)
    prompt = Prompt((Entry("system", "Be brief."), Entry("user", QUESTIONS[0])), reasoning="strip")
    events = teller.says(prompt, "<think>\nThe mill, then the bridge.\n</think>\n\nIt ends in the lake.")
    finished = one(Finished, events)
    assert teller.text_of(finished.run.body) == answer_of(finished.text) == "It ends in the lake."
    prompt = replace(after(prompt, events, QUESTIONS[1]), store_kv=False)
    following = one(Prepared, teller.says(prompt, "Nobody."))
    n_history = len(joined(following.runs[:-1]))
    assert (following.resident, following.prefilled) == (n_history + n_ahead(following), n_new(following))
    assert_close(teller.logits[0], teller.cold_logits([*joined(following.runs), *following.opening]))


def test_without_kept_kv_the_stripped_answer_is_evaluated_too(make: Maker) -> None:
    """The next turn finds it in the context."""
    teller = make(TEMPLATES["qwen3-thinking"], THINK, kv=KvSettings(enabled=False))
    prompt = ask(QUESTIONS[0], "strip")
    events = teller.says(prompt, REASONED)
    assert one(Stored, events).tip is None
    following = one(Prepared, teller.says(after(prompt, events, QUESTIONS[1]), "So.</think>Yes."))
    assert following.prefilled == n_new(following) + len(teller.ids("<think>\n"))


@pytest.mark.parametrize(("kind", "keeps_kv"), [("dense", True), ("dense", False), ("sliding window", True)])
def test_a_prompt_that_waits_does_not_wait_for_the_stripped_answer(make: Maker, kind: str, keeps_kv: bool) -> None:
    """Nothing of it is evaluated; what was asked is stored, if anything is, and both conversations go on."""
    teller = make(TEMPLATES["qwen3-thinking"], THINK, kind=kind, kv=KvSettings(enabled=keeps_kv))
    prompt = ask(QUESTIONS[0], "strip")
    teller.waiting = ask("Who are you?")
    events = teller.says(prompt, REASONED)
    teller.waiting = None
    prepared = one(Prepared, events)
    assert teller.engine._context.tokens == [*joined(prepared.runs), *prepared.opening]
    assert (one(Stored, events).tip is not None) == keeps_kv
    following = one(Prepared, teller.says(after(prompt, events, "And?"), "So.</think>Yes."))
    assert following.resident == len(joined(prepared.runs)) + len(prepared.opening)


# --- where an answer ends ---

ALPACA = (
    "{% for m in messages %}{% if m.role == 'user' %}### Instruction:\n{% elif m.role == 'system' %}{% else %}"
    "### Response:\n{% endif %}{{ m.content }}\n\n{% endfor %}{% if add_generation_prompt %}### Response:\n{% endif %}"
)
DONE = TEMPLATE.replace("<|im_end|>", "<|im_sep|>")


@pytest.mark.parametrize(
    ("template", "tokenizer", "chat_format", "ends_in"),
    [
        (TEMPLATE, "spm", "chatml", "<|im_end|>"),
        (ALPACA, "bpe", None, "### Instruction:"),
        (DONE, "bpe", None, "<|im_sep|>"),
    ],
)
def test_a_closing_that_is_text_ends_the_answer(
    make: Maker, template: str, tokenizer: Tokenizer, chat_format: str | None, ends_in: str
) -> None:
    """The model has ended by itself, and the mark is no part of the answer."""
    teller = make(template, tokenizer=tokenizer, chat_format=chat_format)
    events = teller.says(ask(), f"It is.{ends_in}\nand more")
    finished = assert_agrees(teller, events)
    assert (finished.text.strip(), finished.reason) == ("It is.", "end")
    following = one(Prepared, teller.says(after(ask(), events, "And?"), "No."))
    assert following.prefilled == n_new(following)


def test_a_control_token_that_closes_an_answer_ends_it(make: Maker) -> None:
    """Though the vocabulary does not say so; it has no text that could be found."""
    teller = make(DONE.replace("<|im_sep|>\n", "<|im_sep|>"), HARMONY)
    finished = assert_agrees(teller, teller.says(ask(), "It is.<|im_sep|>and more"))
    assert (finished.text, finished.reason, finished.stats.output_tokens) == (
        "It is.",
        "end",
        len(teller.ids("It is.")) + 1,
    )


def test_a_closing_with_an_end_token_implies_nothing(make: Maker) -> None:
    """Text that looks like its mark is text."""
    teller = make(TEMPLATE)
    ids = [token for char in "It is <|im_end|> so." for token in teller.engine._model.tokenize(char, False)]
    finished = assert_agrees(teller, teller.says(ask(), ids))
    assert (finished.text, finished.reason) == ("It is <|im_end|> so.", "end")


def test_a_users_stop_string_is_a_stop(make: Maker) -> None:
    """Also beside an implied one."""
    teller = make(ALPACA)
    finished = assert_agrees(teller, teller.says(ask(), "It is. So.", Sampling(stop=(" So",))))
    assert (finished.text, finished.reason) == ("It is.", "stop")
